#include "fuzz/proto_mutator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "hlo/wire.h"

namespace coopjax::fuzz {
namespace {

constexpr int kMaxDepth = 6;

bool Parse(std::string_view message, std::vector<hlo::WireField>* fields) {
  hlo::WireReader reader(message);
  hlo::WireField field;
  while (reader.Next(&field)) fields->push_back(field);
  return reader.ok() && !fields->empty();
}

size_t Below(size_t bound, std::mt19937_64& random) { return random() % bound; }

// A number near the one that was there, or one at an edge.
uint64_t OtherNumber(uint64_t number, std::mt19937_64& random) {
  static constexpr uint64_t kEdges[] = {
      0, 1, 2, 63, 64, 0x7fffffff, 0xffffffff, uint64_t{1} << 32, uint64_t{1} << 62, ~uint64_t{0}};
  switch (Below(4, random)) {
    case 0:
      return number + 1;
    case 1:
      return number - 1;
    case 2:
      return number ^ (uint64_t{1} << Below(64, random));
    default:
      return kEdges[Below(std::size(kEdges), random)];
  }
}

void AppendNumber(const hlo::WireField& field, uint64_t number, std::string* out) {
  if (field.type == hlo::WireType::kVarint) {
    hlo::AppendVarintField(field.number, number, out);
    return;
  }
  const size_t num_bytes = field.type == hlo::WireType::kFixed64 ? 8 : 4;
  out->append(field.raw.substr(0, field.raw.size() - num_bytes));
  for (size_t i = 0; i < num_bytes; ++i) out->push_back(static_cast<char>(number >> 8 * i));
}

// Packed numbers and text look alike on the wire, so both are edited by the byte.
std::string MutateBytes(std::string_view bytes, std::mt19937_64& random) {
  std::string out(bytes);
  if (out.empty()) return std::string(1, static_cast<char>(random()));
  const size_t at = Below(out.size(), random);
  switch (Below(4, random)) {
    case 0:
      out[at] = static_cast<char>(out[at] + 1);
      break;
    case 1:
      out[at] = static_cast<char>(random());
      break;
    case 2:
      out.erase(at, 1);
      break;
    default:
      std::swap(out[at], out[Below(out.size(), random)]);
      break;
  }
  return out;
}

std::string Mutate(std::string_view message, int depth, std::mt19937_64& random);

// One field with a change inside it.
void AppendMutated(const hlo::WireField& field, int depth, std::mt19937_64& random, std::string* out) {
  if (field.type != hlo::WireType::kBytes) {
    AppendNumber(field, OtherNumber(field.value, random), out);
    return;
  }
  std::vector<hlo::WireField> nested;
  const bool is_message = depth < kMaxDepth && Parse(field.bytes, &nested) && Below(8, random) != 0;
  hlo::AppendBytesField(field.number,
                        is_message ? Mutate(field.bytes, depth + 1, random) : MutateBytes(field.bytes, random), out);
}

std::string Mutate(std::string_view message, int depth, std::mt19937_64& random) {
  std::vector<hlo::WireField> fields;
  if (!Parse(message, &fields)) return std::string(message);
  const size_t chosen = Below(fields.size(), random), other = Below(fields.size(), random);
  // Deep changes are the interesting ones: most often the change is inside the field.
  const size_t kind = Below(12, random);
  if (kind == 0) fields.erase(fields.begin() + chosen);
  if (kind == 1) fields.insert(fields.begin() + other, fields[chosen]);
  if (kind == 2) std::swap(fields[chosen], fields[other]);
  if (kind == 3) fields[chosen] = fields[other];
  std::string out;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (kind > 3 && i == chosen) {
      AppendMutated(fields[i], depth, random, &out);
    } else {
      out.append(fields[i].raw);
    }
  }
  return out;
}

}  // namespace

std::string MutateMessage(std::string_view message, std::mt19937_64& random) { return Mutate(message, 0, random); }

}  // namespace coopjax::fuzz
