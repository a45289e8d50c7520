#include "hlo/wire.h"

namespace coopjax::hlo {
namespace {

constexpr int kMaxVarintBytes = 10;

size_t VarintSize(uint64_t value) {
  size_t size = 1;
  for (; value >= 0x80; value >>= 7) ++size;
  return size;
}

void AppendTag(uint32_t number, WireType type, std::string* out) {
  AppendVarint(uint64_t{number} << 3 | static_cast<uint64_t>(type), out);
}

}  // namespace

bool ReadLongVarint(const char** position, const char* end, uint64_t* value) {
  uint64_t result = 0;
  for (int i = 0; i < kMaxVarintBytes && *position < end; ++i) {
    const auto byte = static_cast<uint8_t>(*(*position)++);
    result |= uint64_t{byte & 0x7fu} << (7 * i);
    if (byte < 0x80) {
      *value = result;
      return true;
    }
  }
  return false;
}

bool WireReader::Fail() {
  ok_ = false;
  position_ = end_;
  return false;
}

// False for groups, too: no HLO message has ever used them.
bool WireReader::ReadFixed(WireField* field) {
  if (field->type != WireType::kFixed64 && field->type != WireType::kFixed32) return false;
  const int num_bytes = field->type == WireType::kFixed64 ? 8 : 4;
  if (end_ - position_ < num_bytes) return false;
  for (int i = 0; i < num_bytes; ++i) {
    field->value |= uint64_t{static_cast<uint8_t>(*position_++)} << (8 * i);
  }
  return true;
}

bool ReadRepeatedInt64(const WireField& field, std::vector<int64_t>* values) {
  if (field.type == WireType::kVarint) {
    values->push_back(field.as_int64());
    return true;
  }
  if (field.type != WireType::kBytes) return false;
  const char* position = field.bytes.data();
  const char* const end = position + field.bytes.size();
  while (position < end) {
    uint64_t value = 0;
    if (!ReadVarint(&position, end, &value)) return false;
    values->push_back(static_cast<int64_t>(value));
  }
  return true;
}

void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

void AppendVarintField(uint32_t number, uint64_t value, std::string* out) {
  AppendTag(number, WireType::kVarint, out);
  AppendVarint(value, out);
}

void AppendBytesField(uint32_t number, std::string_view bytes, std::string* out) {
  AppendTag(number, WireType::kBytes, out);
  AppendVarint(bytes.size(), out);
  out->append(bytes);
}

void AppendPackedField(uint32_t number, std::span<const int64_t> values, std::string* out) {
  if (values.empty()) return;
  size_t size = 0;
  for (const int64_t value : values) size += VarintSize(static_cast<uint64_t>(value));
  AppendTag(number, WireType::kBytes, out);
  AppendVarint(size, out);
  for (const int64_t value : values) AppendVarint(static_cast<uint64_t>(value), out);
}

}  // namespace coopjax::hlo
