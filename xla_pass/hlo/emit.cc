#include "hlo/emit.h"

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "hlo/wire.h"

namespace coopjax::hlo {
namespace {

// What is to stand for a field of some number, tag included; empty drops the field.
struct Replacement {
  uint32_t number = 0;
  std::string encoded;
};

// The fields of a message in their order, with some numbers replaced (ascending).
std::string Splice(std::string_view message, std::span<const Replacement> replacements) {
  std::string out;
  size_t size = message.size();
  for (const Replacement& replacement : replacements) size += replacement.encoded.size();
  out.reserve(size);
  auto next = replacements.begin();
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    for (; next != replacements.end() && next->number <= field.number; ++next) out += next->encoded;
    if (std::ranges::find(replacements, field.number, &Replacement::number) == replacements.end()) out += field.raw;
  }
  for (; next != replacements.end(); ++next) out += next->encoded;
  return out;
}

// proto3 leaves out zeros and empty strings.
std::string IntField(uint32_t number, int64_t value) {
  std::string out;
  if (value != 0) AppendVarintField(number, static_cast<uint64_t>(value), &out);
  return out;
}
std::string StringField(uint32_t number, std::string_view value) {
  std::string out;
  if (!value.empty()) AppendBytesField(number, value, &out);
  return out;
}
std::string PackedField(uint32_t number, const std::vector<int64_t>& values) {
  std::string out;
  AppendPackedField(number, values, &out);
  return out;
}

std::string EmitComputation(const Module& module, const ComputationEdit& edit) {
  std::string instructions;
  size_t size = 0;
  for (const std::string& instruction : edit.instructions) size += instruction.size() + 8;
  instructions.reserve(size);
  for (const std::string& instruction : edit.instructions) AppendBytesField(2, instruction, &instructions);
  std::vector<Replacement> replacements;
  if (edit.is_clone) replacements.push_back({1, StringField(1, edit.new_name)});
  replacements.push_back({2, std::move(instructions)});
  if (edit.is_clone) replacements.push_back({5, IntField(5, edit.new_id)});
  if (edit.new_root_id != -1) replacements.push_back({6, IntField(6, edit.new_root_id)});
  return Splice(module.computations[edit.computation].raw, replacements);
}

std::string ScheduleEntry(int64_t computation_id, const std::vector<int64_t>& sequence) {
  const std::string entry = IntField(1, computation_id) + [&] {
    std::string value;
    AppendBytesField(2, PackedField(1, sequence), &value);
    return value;
  }();
  std::string out;
  AppendBytesField(1, entry, &out);
  return out;
}

// The schedule with the sequences of edited computations replaced, and those of clones at the end.
std::string EmitSchedule(std::string_view schedule, const Module& module, const std::vector<ComputationEdit>& edits) {
  std::map<int64_t, const ComputationEdit*> rewritten;
  for (const ComputationEdit& edit : edits) {
    if (!edit.is_clone) rewritten[module.computations[edit.computation].id] = &edit;
  }
  std::string out;
  WireReader reader(schedule);
  for (WireField field; reader.Next(&field);) {
    int64_t computation_id = 0;
    WireReader entry(field.bytes);
    for (WireField part; entry.Next(&part);) {
      if (part.number == 1) computation_id = part.as_int64();
    }
    const auto found = rewritten.find(computation_id);
    if (found == rewritten.end()) {
      out += field.raw;
    } else if (!found->second->sequence.empty()) {
      out += ScheduleEntry(computation_id, found->second->sequence);
    }
  }
  for (const ComputationEdit& edit : edits) {
    if (edit.is_clone && !edit.sequence.empty()) out += ScheduleEntry(edit.new_id, edit.sequence);
  }
  return out;
}

}  // namespace

InstructionEdit AsItIs(const Module& module, const Instruction& instruction) {
  return {.id = instruction.id,
          .name = std::string(instruction.name),
          .operand_ids = module.InstructionIds(instruction.operands),
          .control_predecessor_ids = module.InstructionIds(instruction.control_predecessors),
          .called_computation_ids = module.ComputationIds(instruction.called)};
}

std::string EmitInstruction(const Instruction& original, const InstructionEdit& edit) {
  const Replacement replacements[] = {{1, StringField(1, edit.name)},
                                      {35, IntField(35, edit.id)},
                                      {36, PackedField(36, edit.operand_ids)},
                                      {37, PackedField(37, edit.control_predecessor_ids)},
                                      {38, PackedField(38, edit.called_computation_ids)}};
  return Splice(original.raw, replacements);
}

std::string EmitModule(const Module& module, const std::vector<ComputationEdit>& edits) {
  if (edits.empty()) return module.bytes;
  // What is written where a computation stands: clones to go before it, then itself where it is rewritten.
  std::vector<std::vector<const ComputationEdit*>> edits_at(module.computations.size());
  for (const bool is_clone : {true, false}) {
    for (const ComputationEdit& edit : edits) {
      if (edit.is_clone == is_clone) edits_at[is_clone ? edit.insert_before : edit.computation].push_back(&edit);
    }
  }
  std::string out;
  out.reserve(module.bytes.size() * 5 / 4);
  int32_t computation = 0;
  WireReader reader(module.bytes);
  for (WireField field; reader.Next(&field);) {
    if (field.number == 7) {
      AppendBytesField(7, EmitSchedule(field.bytes, module, edits), &out);
      continue;
    }
    if (field.number != 3) {
      out += field.raw;
      continue;
    }
    for (const ComputationEdit* edit : edits_at[computation]) {
      AppendBytesField(3, EmitComputation(module, *edit), &out);
    }
    const bool is_rewritten = !edits_at[computation].empty() && !edits_at[computation].back()->is_clone;
    if (!is_rewritten) out += field.raw;
    ++computation;
  }
  return out;
}

}  // namespace coopjax::hlo
