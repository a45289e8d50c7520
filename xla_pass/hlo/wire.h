// The protobuf wire format: a bounds-checked reader and a writer, with no protobuf in the process.
//
// A message is a sequence of fields, each a tag (field number << 3 | wire type) and a payload. The
// reader hands out views into the bytes it was given, `raw` included, so that a field which nobody
// understands can be copied as it came. Garbage ends the iteration with `ok()` false; nothing is ever
// read outside the given bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace coopjax::hlo {

enum class WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct WireField {
  uint32_t number = 0;
  WireType type = WireType::kVarint;
  uint64_t value = 0;         // kVarint, kFixed64, kFixed32
  std::string_view bytes;     // kBytes: the payload
  std::string_view raw;       // tag and payload

  int64_t as_int64() const { return static_cast<int64_t>(value); }
};

// Reads at `*position` and moves it on; false when the varint runs past `end` or past ten bytes.
bool ReadLongVarint(const char** position, const char* end, uint64_t* value);
inline bool ReadVarint(const char** position, const char* end, uint64_t* value) {
  if (*position == end || static_cast<uint8_t>(**position) >= 0x80) return ReadLongVarint(position, end, value);
  *value = static_cast<uint8_t>(*(*position)++);  // most have one byte
  return true;
}

class WireReader {
 public:
  explicit WireReader(std::string_view message) : position_(message.data()), end_(message.data() + message.size()) {}

  // Reads one field; false at the end of the message and at the first malformed field.
  bool Next(WireField* field) {
    if (position_ == end_) return false;
    const char* const begin = position_;
    uint64_t tag = 0;
    if (!ReadVarint(&position_, end_, &tag) || tag >> 3 == 0 || tag >> 32 != 0) return Fail();
    field->number = static_cast<uint32_t>(tag >> 3);
    field->type = static_cast<WireType>(tag & 7);
    field->value = 0;
    field->bytes = {};
    if (!ReadPayload(field)) return Fail();
    field->raw = {begin, static_cast<size_t>(position_ - begin)};
    return true;
  }
  // False once a malformed field was met.
  bool ok() const { return ok_; }

 private:
  bool ReadPayload(WireField* field) {
    if (field->type == WireType::kVarint) return ReadVarint(&position_, end_, &field->value);
    if (field->type != WireType::kBytes) return ReadFixed(field);
    uint64_t size = 0;
    if (!ReadVarint(&position_, end_, &size) || size > static_cast<uint64_t>(end_ - position_)) return false;
    field->bytes = {position_, static_cast<size_t>(size)};
    position_ += size;
    return true;
  }
  bool ReadFixed(WireField* field);
  bool Fail();

  const char* position_;
  const char* end_;
  bool ok_ = true;
};

// Appends the elements of a repeated integer field, packed or not; false when it is malformed.
bool ReadRepeatedInt64(const WireField& field, std::vector<int64_t>* values);

// A field number of 1 to 2^29 - 1 is the caller's duty in all of these.
void AppendVarint(uint64_t value, std::string* out);
void AppendVarintField(uint32_t number, uint64_t value, std::string* out);
void AppendBytesField(uint32_t number, std::string_view bytes, std::string* out);
// Nothing for an empty list, as proto3 has it.
void AppendPackedField(uint32_t number, std::span<const int64_t> values, std::string* out);

}  // namespace coopjax::hlo
