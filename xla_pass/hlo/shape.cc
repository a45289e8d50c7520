#include "hlo/shape.h"

#include <algorithm>

#include "hlo/wire.h"

namespace coopjax::hlo {
namespace {

// Nested tuples deeper than this are garbage, not shapes.
constexpr int kMaxDepth = 32;
constexpr size_t kMaxRank = 64;
constexpr int64_t kMaxBytes = int64_t{1} << 62;
constexpr int32_t kOpaqueType = 14;
constexpr int32_t kBufferType = 34;     // memref-like: the element is its one child
constexpr int64_t kPointerBytes = 8;
// A tile dimension of this value merges the dimension into the next minor one.
constexpr int64_t kCombineDimension = INT64_MIN;

// Bits of one element as XLA stores it unless the layout says otherwise (sub-byte types take a whole
// byte); 0 for types that are not arrays, -1 for unknown ones.
int64_t StorageBits(int32_t element_type) {
  switch (element_type) {
    case 13:
    case 14:
    case 17:
    case kBufferType:                      // tuple, opaque, token, buffer
      return 0;
    case 1:
    case 2:
    case 6:                                           // pred, s8, u8
    case 21:
    case 22:
    case 26:
    case 27:
    case 30:
    case 31:
    case 32:    // s4, u4, s2, u2, s1, u1, f4
    case 19:
    case 20:
    case 23:
    case 24:
    case 25:
    case 28:
    case 29:
    case 33:  // the 8-bit floats
      return 8;
    case 3:
    case 7:
    case 10:
    case 16:                                 // s16, u16, f16, bf16
      return 16;
    case 4:
    case 8:
    case 11:                                          // s32, u32, f32
      return 32;
    case 5:
    case 9:
    case 12:
    case 15:                                 // s64, u64, f64, c64
      return 64;
    case 18:                                                          // c128
      return 128;
    default:
      return -1;
  }
}

int64_t CeilOfRatio(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// a * b for non-negative numbers, or kMaxBytes when the product is larger.
int64_t SaturatingMultiply(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return kMaxBytes;
  return std::min(product, kMaxBytes);
}

int64_t Product(const std::vector<int64_t>& factors) {
  if (std::ranges::count(factors, 0) > 0) return 0;
  int64_t product = 1;
  for (const int64_t factor : factors) product = SaturatingMultiply(product, factor);
  return product;
}

// `physical` (major to minor) tiled by `tile`, which covers its minor dimensions: each covered
// dimension becomes a count of tiles, and the tile's own dimensions follow.
std::vector<int64_t> Tiled(std::vector<int64_t> physical, const std::vector<int64_t>& tile) {
  if (physical.size() < tile.size()) physical.insert(physical.begin(), tile.size() - physical.size(), 1);
  const size_t first = physical.size() - tile.size();
  std::vector<int64_t> inner;
  for (size_t i = 0; i < tile.size(); ++i) {
    int64_t& dimension = physical[first + i];
    if (tile[i] == kCombineDimension) {
      if (i + 1 < tile.size()) physical[first + i + 1] = SaturatingMultiply(dimension, physical[first + i + 1]);
      dimension = 1;
      continue;
    }
    dimension = CeilOfRatio(dimension, tile[i]);
    inner.push_back(tile[i]);
  }
  physical.insert(physical.end(), inner.begin(), inner.end());
  return physical;
}

bool ParseTile(std::string_view message, std::vector<int64_t>* tile) {
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    if (field.number == 1 && !ReadRepeatedInt64(field, tile)) return false;
  }
  return reader.ok() && std::ranges::all_of(*tile, [](int64_t size) { return size > 0 || size == kCombineDimension; });
}

bool ParseLayout(std::string_view message, Shape* shape) {
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    switch (field.number) {
      case 1:
        if (!ReadRepeatedInt64(field, &shape->minor_to_major)) return false;
        break;
      case 6:
        if (!ParseTile(field.bytes, &shape->tiles.emplace_back())) return false;
        shape->has_layout_extras = true;
        break;
      case 7:
        shape->element_size_in_bits = field.as_int64();
        shape->has_layout_extras = shape->has_layout_extras || field.value != 0;
        break;
      case 8:
        shape->memory_space = field.as_int64();
        break;
      case 16:  // tail_padding_alignment_in_elements
        shape->tail_alignment_elements = std::max<int64_t>(1, field.as_int64());
        shape->has_layout_extras = shape->has_layout_extras || shape->tail_alignment_elements > 1;
        break;
      default:
        shape->has_layout_extras = true;
    }
  }
  return reader.ok();
}

bool IsPermutation(const std::vector<int64_t>& order, size_t rank) {
  if (order.size() != rank || rank > kMaxRank) return false;
  uint64_t seen = 0;
  for (const int64_t dimension : order) {
    if (dimension < 0 || dimension >= static_cast<int64_t>(rank) || (seen >> dimension & 1) != 0) return false;
    seen |= uint64_t{1} << dimension;
  }
  return true;
}

// Layouts are permutations of the dimensions, sizes are not negative and fit: what byte_size assumes.
bool IsConsistent(const Shape& shape) {
  if (StorageBits(shape.element_type) < 0) return false;
  if (shape.element_size_in_bits < 0 || shape.element_size_in_bits > 128) return false;
  if (std::ranges::any_of(shape.dimensions, [](int64_t size) { return size < 0; })) return false;
  if (shape.element_type == kBufferType && shape.tuple_shapes.size() != 1) return false;
  if (!shape.minor_to_major.empty() && !IsPermutation(shape.minor_to_major, shape.dimensions.size())) return false;
  return shape.byte_size() < kMaxBytes / 128;
}

bool ParseShapeAtDepth(std::string_view message, int depth, Shape* shape) {
  if (depth > kMaxDepth) return false;
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    switch (field.number) {
      case 2:
        shape->element_type = static_cast<int32_t>(field.value);
        break;
      case 3:
        if (!ReadRepeatedInt64(field, &shape->dimensions)) return false;
        break;
      case 4:
        if (!ParseShapeAtDepth(field.bytes, depth + 1, &shape->tuple_shapes.emplace_back())) return false;
        break;
      case 5:
        if (!ParseLayout(field.bytes, shape)) return false;
        break;
      case 6: {
        std::vector<int64_t> is_dynamic;
        if (!ReadRepeatedInt64(field, &is_dynamic)) return false;
        shape->is_dynamic |= std::ranges::any_of(is_dynamic, [](int64_t flag) { return flag != 0; });
        break;
      }
      default:
        shape->has_layout_extras = true;
    }
  }
  return reader.ok() && IsConsistent(*shape);
}

}  // namespace

int64_t Shape::num_elements() const { return Product(dimensions); }

int64_t Shape::byte_size() const {
  if (is_tuple()) return kPointerBytes * static_cast<int64_t>(tuple_shapes.size());
  if (element_type == kOpaqueType) return kPointerBytes;
  if (element_type == kBufferType) return tuple_shapes.front().byte_size();
  if (!is_array()) return 0;
  int64_t num_padded = num_elements();
  if (!tiles.empty() && minor_to_major.size() == dimensions.size()) {
    std::vector<int64_t> physical;  // major to minor
    for (auto it = minor_to_major.rbegin(); it != minor_to_major.rend(); ++it) physical.push_back(dimensions[*it]);
    for (const auto& tile : tiles) physical = Tiled(std::move(physical), tile);
    num_padded = Product(physical);
  }
  const int64_t alignment = std::max<int64_t>(1, tail_alignment_elements);
  const int64_t elements = SaturatingMultiply(CeilOfRatio(num_padded, alignment), alignment);
  const int64_t bits = element_size_in_bits > 0 ? element_size_in_bits : StorageBits(element_type);
  const int64_t bytes = CeilOfRatio(SaturatingMultiply(elements, bits), 8);
  // A dynamic array carries its dimensions, one int32 each, behind the data.
  return bytes + (is_dynamic ? 4 * static_cast<int64_t>(dimensions.size()) : 0);
}

bool ParseShape(std::string_view message, Shape* shape) { return ParseShapeAtDepth(message, 0, shape); }

}  // namespace coopjax::hlo
