#include "hlo/shape.h"

#include <string>
#include <vector>

#include "testing/expect.h"
#include "testing/hlo_proto_builder.h"

namespace coopjax::hlo {
namespace {

using testing::ArrayShape;
using testing::F32;
using testing::TupleShape;

// The size of a serialized shape; -1 when it is refused.
int64_t Bytes(const std::string& serialized) {
  Shape shape;
  return ParseShape(serialized, &shape) ? shape.byte_size() : -1;
}

std::string Tile(const std::vector<int64_t>& dimensions) {
  std::string tile, field;
  AppendPackedField(1, dimensions, &tile);
  AppendBytesField(6, tile, &field);
  return field;
}

std::string VarintField(uint32_t number, uint64_t value) {
  std::string out;
  AppendVarintField(number, value, &out);
  return out;
}

TEST(SizesOfPlainShapes) {
  EXPECT_EQ(Bytes(F32({})), 4);
  EXPECT_EQ(Bytes(F32({3, 5})), 60);
  EXPECT_EQ(Bytes(F32({3, 0, 5})), 0);
  EXPECT_EQ(Bytes(ArrayShape(1, {7})), 7);                               // pred
  EXPECT_EQ(Bytes(ArrayShape(16, {7})), 14);                             // bf16
  EXPECT_EQ(Bytes(ArrayShape(18, {2})), 32);                             // c128
  EXPECT_EQ(Bytes(TupleShape({F32({3}), F32({5}), TupleShape({})})), 24);  // three pointers
  EXPECT_EQ(Bytes(VarintField(2, 17)), 0);                               // token
}

TEST(SizesWithLayouts) {
  EXPECT_EQ(Bytes(ArrayShape(21, {7})), 7);                              // s4, a byte each
  EXPECT_EQ(Bytes(ArrayShape(21, {7}, VarintField(7, 4))), 4);           // s4, packed: ceil(7 / 2)
  EXPECT_EQ(Bytes(ArrayShape(11, {10, 100}, Tile({8, 128}))), 16 * 128 * 4);
  EXPECT_EQ(Bytes(ArrayShape(11, {3, 10, 100}, Tile({8, 128}))), 3 * 16 * 128 * 4);
  EXPECT_EQ(Bytes(ArrayShape(11, {}, Tile({128}))), 128 * 4);
  // bf16[64]: one tile of 256 elements, cut into (128) and then pairs: no further padding.
  EXPECT_EQ(Bytes(ArrayShape(16, {64}, Tile({256}) + Tile({128}) + Tile({2, 1}))), 512);
  // bf16[9,100]: tiles of 16 x 128 made of row pairs.
  EXPECT_EQ(Bytes(ArrayShape(16, {9, 100}, Tile({8, 128}) + Tile({2, 1}))), 16 * 128 * 2);
  EXPECT_EQ(Bytes(ArrayShape(11, {10}, VarintField(16, 8))), 16 * 4);    // tail padded to a multiple of 8
}

TEST(DynamicDimensionsAddTheirSizes) {
  std::string shape = F32({3, 5});
  AppendBytesField(6, std::string("\0\1", 2), &shape);
  EXPECT_EQ(Bytes(shape), 60 + 2 * 4);
}

TEST(ShapesThatMakeNoSense) {
  EXPECT_EQ(Bytes(ArrayShape(99, {2})), -1);                             // unknown element type
  EXPECT_EQ(Bytes(F32({-1})), -1);
  EXPECT_EQ(Bytes(F32({int64_t{1} << 40, int64_t{1} << 40})), -1);       // 2^82 bytes
  EXPECT_EQ(Bytes(ArrayShape(11, {2, 3}, Tile({0}))), -1);
  std::string rank_mismatch = VarintField(2, 11) + VarintField(3, 5);
  AppendBytesField(5, VarintField(1, 1), &rank_mismatch);
  EXPECT_EQ(Bytes(rank_mismatch), -1);
  std::string nested = F32({});
  for (int depth = 0; depth < 100; ++depth) nested = TupleShape({nested});
  EXPECT_EQ(Bytes(nested), -1);
}

}  // namespace
}  // namespace coopjax::hlo
