// The writing half of hlo_module.h: fields that are edited are written anew at the place where their
// number belongs, all others are copied as they came.
#include <algorithm>
#include <map>

#include "hlo_module.h"
#include "wire.h"

namespace coopjax {
namespace {

// A sequence of fields copied in order, in which some field numbers are replaced.
class FieldSplicer {
 public:
  // Everything that is to stand for field `number`, tags included; empty drops the field.
  void Replace(uint32_t number, std::string encoded) { replacements_[number] = std::move(encoded); }

  std::string Splice(std::string_view message) const {
    std::string out;
    size_t size = message.size();
    for (const auto& [number, encoded] : replacements_) size += encoded.size();
    out.reserve(size);
    auto next = replacements_.begin();
    WireReader reader(message);
    for (WireField field; reader.Next(&field);) {
      for (; next != replacements_.end() && next->first <= field.number; ++next) out += next->second;
      if (!replacements_.contains(field.number)) out += field.raw;
    }
    for (; next != replacements_.end(); ++next) out += next->second;
    return out;
  }

 private:
  std::map<uint32_t, std::string> replacements_;
};

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

std::string EmitComputation(const HloModule& module, const ComputationEdit& edit) {
  FieldSplicer splicer;
  std::string instructions;
  size_t size = 0;
  for (const std::string& instruction : edit.instructions) size += instruction.size() + 8;
  instructions.reserve(size);
  for (const std::string& instruction : edit.instructions) AppendBytesField(2, instruction, &instructions);
  splicer.Replace(2, std::move(instructions));
  if (edit.is_clone) {
    splicer.Replace(1, StringField(1, edit.new_name));
    splicer.Replace(5, IntField(5, edit.new_id));
  }
  if (edit.new_root_id != -1) splicer.Replace(6, IntField(6, edit.new_root_id));
  return splicer.Splice(module.computations[edit.computation].raw);
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
std::string EmitSchedule(std::string_view schedule, const HloModule& module,
                         const std::vector<ComputationEdit>& edits) {
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

std::string EmitInstruction(const Instruction& original, const InstructionEdit& edit) {
  FieldSplicer splicer;
  splicer.Replace(1, StringField(1, edit.name));
  splicer.Replace(35, IntField(35, edit.id));
  splicer.Replace(36, PackedField(36, edit.operand_ids));
  splicer.Replace(37, PackedField(37, edit.control_predecessor_ids));
  splicer.Replace(38, PackedField(38, edit.called_computation_ids));
  return splicer.Splice(original.raw);
}

std::string EmitHloModule(const HloModule& module, const std::vector<ComputationEdit>& edits) {
  if (edits.empty()) return module.bytes;
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
    const ComputationEdit* rewrite = nullptr;
    for (const ComputationEdit& edit : edits) {
      if (!edit.is_clone && edit.computation == computation) rewrite = &edit;
      if (!edit.is_clone || edit.insert_before != computation) continue;
      AppendBytesField(3, EmitComputation(module, edit), &out);
    }
    if (rewrite != nullptr) {
      AppendBytesField(3, EmitComputation(module, *rewrite), &out);
    } else {
      out += field.raw;
    }
    ++computation;
  }
  return out;
}

}  // namespace coopjax
