#include "hlo/wire.h"

#include <cstdint>
#include <string>
#include <vector>

#include "testing/expect.h"

namespace coopjax::hlo {
namespace {

bool Parses(const std::string& message) {
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
  }
  return reader.ok();
}

TEST(VarintsRoundTripAtEveryLength) {
  const std::vector<uint64_t> values = {0, 1, 127, 128, 16383, 16384, uint64_t{1} << 32, uint64_t{1} << 63, UINT64_MAX};
  for (const uint64_t value : values) {
    std::string message;
    AppendVarintField(35, value, &message);
    WireReader reader(message);
    WireField field;
    EXPECT_TRUE(reader.Next(&field));
    EXPECT_EQ(field.number, 35u);
    EXPECT_EQ(field.value, value);
    EXPECT_TRUE(field.raw == message);
    EXPECT_TRUE(!reader.Next(&field) && reader.ok());
  }
}

TEST(FieldsOfEveryTypeAreReadInOrder) {
  // 1: fixed64 = 2, 2: fixed32 = 3, 3: bytes "ab".
  const std::string message(
      "\x09\x02\0\0\0\0\0\0\0\x15\x03\0\0\0\x1a\x02"
      "ab",
      18);
  WireReader reader(message);
  WireField field;
  EXPECT_TRUE(reader.Next(&field) && field.type == WireType::kFixed64 && field.value == 2);
  EXPECT_TRUE(reader.Next(&field) && field.type == WireType::kFixed32 && field.value == 3);
  EXPECT_TRUE(reader.Next(&field) && field.bytes == "ab" && field.raw.size() == 4);
  EXPECT_TRUE(!reader.Next(&field) && reader.ok());
}

TEST(GarbageEndsTheIteration) {
  EXPECT_TRUE(Parses(""));
  EXPECT_TRUE(!Parses("\x08"));                                                   // a tag and nothing behind it
  EXPECT_TRUE(!Parses("\x08\x80"));                                               // half a varint
  EXPECT_TRUE(
      !Parses("\x0a\x05"
              "abcd"));                                        // 5 bytes promised, 4 there
  EXPECT_TRUE(
      Parses("\x0a\x04"
             "abcd"));
  EXPECT_TRUE(!Parses("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"));           // 2^64 - 1 bytes promised
  EXPECT_TRUE(!Parses("\x09\x01\x02\x03"));                                       // half a fixed64
  EXPECT_TRUE(!Parses("\x0b\x0c"));                                               // a group
  EXPECT_TRUE(!Parses(std::string("\x00\x01", 2)));                               // field number 0
  EXPECT_TRUE(!Parses("\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"));       // a varint of eleven bytes
}

TEST(RepeatedIntegersPackedOrNot) {
  const std::vector<int64_t> values = {0, 1, -1, 300, INT64_MIN};
  std::string packed, unpacked;
  AppendPackedField(36, values, &packed);
  for (const int64_t value : values) AppendVarintField(36, static_cast<uint64_t>(value), &unpacked);
  for (const std::string& message : {packed, unpacked}) {
    std::vector<int64_t> read;
    WireReader reader(message);
    for (WireField field; reader.Next(&field);) EXPECT_TRUE(ReadRepeatedInt64(field, &read));
    EXPECT_TRUE(read == values);
  }
  std::string empty;
  AppendPackedField(36, {}, &empty);
  EXPECT_TRUE(empty.empty());
  WireField truncated;
  truncated.type = WireType::kBytes;
  truncated.bytes = "\x01\x80";
  std::vector<int64_t> read;
  EXPECT_TRUE(!ReadRepeatedInt64(truncated, &read));
}

}  // namespace
}  // namespace coopjax::hlo
