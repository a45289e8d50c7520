#include "hlo_module.h"

#include <algorithm>
#include <iterator>

#include "hlo_shape.h"
#include "wire.h"

namespace coopjax {
namespace {

// Computations that call each other deeper than this are garbage. (XLA's go a handful deep; consumers
// may recurse into callees.)
constexpr int32_t kMaxCallDepth = 64;

// The module's stack frames: where an instruction's `stack_frame_id` points in the user's sources.
class StackFrames {
 public:
  bool Parse(std::string_view message);
  // File and line of a frame (all ids count from 1); an empty name when there is none.
  std::pair<std::string_view, int32_t> Location(int64_t frame_id) const;

 private:
  struct FileLocation {
    int64_t file_name_id = 0;
    int32_t line = 0;
  };
  std::vector<std::string_view> file_names_;
  std::vector<FileLocation> locations_;
  std::vector<int64_t> frames_;  // location ids
};

bool StackFrames::Parse(std::string_view message) {
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    if (field.number == 1) file_names_.push_back(field.bytes);
    if (field.number != 3 && field.number != 4) continue;
    int64_t first = 0;  // file_name_id of a location, file_location_id of a frame
    int32_t line = 0;
    WireReader entry(field.bytes);
    for (WireField part; entry.Next(&part);) {
      if (part.number == 1) first = part.as_int64();
      if (part.number == 3) line = static_cast<int32_t>(part.value);
    }
    if (!entry.ok()) return false;
    if (field.number == 3) locations_.push_back({first, line});
    if (field.number == 4) frames_.push_back(first);
  }
  return reader.ok();
}

std::pair<std::string_view, int32_t> StackFrames::Location(int64_t frame_id) const {
  if (frame_id < 1 || frame_id > std::ssize(frames_)) return {};
  const int64_t location_id = frames_[frame_id - 1];
  if (location_id < 1 || location_id > std::ssize(locations_)) return {};
  const FileLocation& location = locations_[location_id - 1];
  if (location.file_name_id < 1 || location.file_name_id > std::ssize(file_names_)) return {};
  return {file_names_[location.file_name_id - 1], location.line};
}

bool ParseOutputOperandAlias(std::string_view message, Instruction::OutputOperandAlias* alias) {
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    if (field.number == 1 && !ReadRepeatedInt64(field, &alias->output_index)) return false;
    if (field.number == 2) alias->operand_number = field.as_int64();
    if (field.number == 3 && !ReadRepeatedInt64(field, &alias->operand_index)) return false;
  }
  return reader.ok();
}

bool ParseInputOutputAliases(std::string_view message, std::vector<InputOutputAlias>* aliases) {
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    if (field.number != 1) continue;
    InputOutputAlias& alias = aliases->emplace_back();
    WireReader entry(field.bytes);
    for (WireField part; entry.Next(&part);) {
      if (part.number == 1 && !ReadRepeatedInt64(part, &alias.output_index)) return false;
      if (part.number == 2) alias.parameter_number = part.as_int64();
      if (part.number == 3 && !ReadRepeatedInt64(part, &alias.parameter_index)) return false;
      if (part.number == 4) alias.kind = static_cast<int32_t>(part.value);
    }
    if (!entry.ok()) return false;
  }
  return reader.ok();
}

bool ParseMetadata(std::string_view message, const StackFrames& frames, Instruction* instruction) {
  int64_t frame_id = 0;
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    if (field.number == 2) instruction->op_name = field.bytes;
    if (field.number == 3) instruction->source_file = field.bytes;
    if (field.number == 4) instruction->source_line = static_cast<int32_t>(field.value);
    if (field.number == 15) frame_id = field.as_int64();
  }
  if (instruction->source_file.empty()) {
    const auto [file, line] = frames.Location(frame_id);
    instruction->source_file = file;
    instruction->source_line = line;
  }
  return reader.ok();
}

size_t CountFields(std::string_view message, uint32_t number) {
  size_t count = 0;
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) count += field.number == number;
  return count;
}

bool ParseInstruction(std::string_view message, const StackFrames& frames, Instruction* result) {
  result->raw = message;
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    bool is_valid = true;
    switch (field.number) {
      case 1: result->name = field.bytes; break;
      case 2: result->opcode = field.bytes; break;
      case 3: is_valid = ParseShape(field.bytes, &result->shape); break;
      case 7: is_valid = ParseMetadata(field.bytes, frames, result); break;
      case 9: result->parameter_number = field.as_int64(); break;
      case 11: result->fusion_kind = field.bytes; break;
      case 13: result->tuple_index = field.as_int64(); break;
      case 28: result->custom_call_target = field.bytes; break;
      case 35: result->id = field.as_int64(); break;
      case 36: is_valid = ReadRepeatedInt64(field, &result->operand_ids); break;
      case 37: is_valid = ReadRepeatedInt64(field, &result->control_predecessor_ids); break;
      case 38: is_valid = ReadRepeatedInt64(field, &result->called_computation_ids); break;
      case 65: result->custom_call_has_side_effect = field.value != 0; break;
      case 74:
        is_valid = ParseOutputOperandAlias(field.bytes, &result->output_operand_aliasing.emplace_back());
        break;
    }
    if (!is_valid) return false;
  }
  // proto3 leaves zeros out.
  if (result->opcode == "parameter" && result->parameter_number < 0) result->parameter_number = 0;
  if (result->opcode == "get-tuple-element" && result->tuple_index < 0) result->tuple_index = 0;
  return reader.ok();
}

class ModuleParser {
 public:
  explicit ModuleParser(HloModule* module) : module_(*module) {}

  // Empty, or what is wrong.
  std::string Parse();

 private:
  std::string ParseTopLevel();
  std::string ParseComputation(std::string_view message);
  std::string ParseSchedule(std::string_view message);
  std::string IndexAndCheckReferences();
  std::string CheckReferences(int32_t instruction_index);
  std::string CheckSequence(const Computation& computation) const;

  HloModule& module_;
  StackFrames frames_;
  int64_t entry_id_ = 0;
  std::string_view schedule_;
  std::vector<int32_t> call_depth_;  // [computation]
};

std::string ModuleParser::Parse() {
  if (std::string fault = ParseTopLevel(); !fault.empty()) return fault;
  if (std::string fault = IndexAndCheckReferences(); !fault.empty()) return fault;
  return ParseSchedule(schedule_);
}

std::string ModuleParser::ParseTopLevel() {
  std::vector<std::string_view> computations;
  WireReader reader(module_.bytes);
  for (WireField field; reader.Next(&field);) {
    switch (field.number) {
      case 1: module_.name = field.bytes; break;
      case 3: computations.push_back(field.bytes); break;
      case 5: module_.id = field.as_int64(); break;
      case 6: entry_id_ = field.as_int64(); break;
      case 7:
        module_.is_scheduled = true;
        schedule_ = field.bytes;
        break;
      case 8:
        if (!ParseInputOutputAliases(field.bytes, &module_.input_output_aliases)) return "malformed aliases";
        break;
      case 17:
        if (!frames_.Parse(field.bytes)) return "malformed stack frames";
        break;
    }
  }
  if (!reader.ok()) return "the bytes are not a protobuf message";
  if (!module_.is_scheduled) return "the module has no schedule";
  size_t num_instructions = 0;
  for (const std::string_view message : computations) num_instructions += CountFields(message, 2);
  module_.instructions.reserve(num_instructions);
  module_.computations.reserve(computations.size());
  // Last, because the stack frames stand behind the computations that point to them.
  for (const std::string_view message : computations) {
    if (std::string fault = ParseComputation(message); !fault.empty()) return fault;
  }
  return "";
}

std::string ModuleParser::ParseComputation(std::string_view message) {
  const int32_t index = static_cast<int32_t>(module_.computations.size());
  Computation& computation = module_.computations.emplace_back();
  computation.raw = message;
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    if (field.number == 1) computation.name = field.bytes;
    if (field.number == 5) computation.id = field.as_int64();
    if (field.number == 6) computation.root_id = field.as_int64();
    if (field.number != 2) continue;
    computation.instructions.push_back(static_cast<int32_t>(module_.instructions.size()));
    Instruction& instruction = module_.instructions.emplace_back();
    instruction.computation = index;
    if (!ParseInstruction(field.bytes, frames_, &instruction)) {
      return "malformed instruction '" + instruction.name + "' in computation " + std::to_string(index);
    }
  }
  return reader.ok() ? "" : "malformed computation '" + computation.name + "'";
}

std::string ModuleParser::IndexAndCheckReferences() {
  module_.instruction_index.reserve(module_.instructions.size());
  module_.computation_index.reserve(module_.computations.size());
  call_depth_.assign(module_.computations.size(), 0);
  for (int32_t c = 0; c < std::ssize(module_.computations); ++c) {
    const Computation& computation = module_.computations[c];
    // Not yet indexed itself: a computation may call only those before it.
    for (const int32_t i : computation.instructions) {
      if (std::string fault = CheckReferences(i); !fault.empty()) return fault;
      if (!module_.instruction_index.emplace(module_.instructions[i].id, i).second) {
        return "instruction id " + std::to_string(module_.instructions[i].id) + " occurs twice";
      }
    }
    const auto root = module_.instruction_index.find(computation.root_id);
    if (root == module_.instruction_index.end() || module_.instructions[root->second].computation != c) {
      return "computation '" + computation.name + "' has no root";
    }
    if (!module_.computation_index.emplace(computation.id, c).second) {
      return "computation id " + std::to_string(computation.id) + " occurs twice";
    }
  }
  const auto entry = module_.computation_index.find(entry_id_);
  if (entry == module_.computation_index.end()) return "the module has no entry computation";
  module_.entry = entry->second;
  return "";
}

std::string ModuleParser::CheckReferences(int32_t instruction_index) {
  const Instruction& instruction = module_.instructions[instruction_index];
  for (const auto* ids : {&instruction.operand_ids, &instruction.control_predecessor_ids}) {
    for (const int64_t id : *ids) {
      const auto found = module_.instruction_index.find(id);
      if (found == module_.instruction_index.end() ||
          module_.instructions[found->second].computation != instruction.computation) {
        return "'" + instruction.name + "' refers to instruction " + std::to_string(id) +
               ", which does not stand before it in its computation";
      }
    }
  }
  for (const int64_t id : instruction.called_computation_ids) {
    const auto found = module_.computation_index.find(id);
    if (found == module_.computation_index.end()) {
      return "'" + instruction.name + "' calls computation " + std::to_string(id) +
             ", which does not stand before its own";
    }
    int32_t& depth = call_depth_[instruction.computation];
    depth = std::max(depth, call_depth_[found->second] + 1);
    if (depth > kMaxCallDepth) return "'" + instruction.name + "' calls too deeply";
  }
  return "";
}

std::string ModuleParser::ParseSchedule(std::string_view message) {
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    if (field.number != 1) continue;
    int64_t computation_id = 0;
    std::vector<int64_t> sequence;
    WireReader entry(field.bytes);
    for (WireField part; entry.Next(&part);) {
      if (part.number == 1) computation_id = part.as_int64();
      if (part.number != 2) continue;
      WireReader ids(part.bytes);
      for (WireField id; ids.Next(&id);) {
        if (id.number == 1 && !ReadRepeatedInt64(id, &sequence)) return "malformed instruction sequence";
      }
      if (!ids.ok()) return "malformed instruction sequence";
    }
    if (!entry.ok()) return "malformed schedule";
    const auto found = module_.computation_index.find(computation_id);
    if (found == module_.computation_index.end()) return "the schedule names an unknown computation";
    if (sequence.empty()) continue;  // XLA:TPU lists fused computations, too, without their instructions
    Computation& computation = module_.computations[found->second];
    computation.sequence = std::move(sequence);
    if (std::string fault = CheckSequence(computation); !fault.empty()) return fault;
  }
  if (!reader.ok()) return "malformed schedule";
  return module_.entry_computation().sequence.empty() ? "the entry computation is not in the schedule" : "";
}

// Each instruction of the computation once, behind its operands and control predecessors.
std::string ModuleParser::CheckSequence(const Computation& computation) const {
  const int32_t first = computation.instructions.empty() ? 0 : computation.instructions.front();
  std::vector<uint8_t> is_placed(computation.instructions.size(), 0);
  const auto placed = [&](int64_t id) -> uint8_t& { return is_placed[module_.instruction_index.at(id) - first]; };
  const std::string where = "the schedule of '" + computation.name + "' ";
  for (const int64_t id : computation.sequence) {
    const auto found = module_.instruction_index.find(id);
    if (found == module_.instruction_index.end() || found->second < first ||
        found->second - first >= std::ssize(is_placed)) {
      return where + "names instruction " + std::to_string(id) + ", which is not in it";
    }
    const Instruction& instruction = module_.instructions[found->second];
    if (placed(id)) return where + "names '" + instruction.name + "' twice";
    for (const auto* ids : {&instruction.operand_ids, &instruction.control_predecessor_ids}) {
      for (const int64_t before : *ids) {
        if (placed(before)) continue;
        return where + "has '" + instruction.name + "' before '" + module_.by_id(before).name + "'";
      }
    }
    placed(id) = 1;
  }
  for (const int32_t i : computation.instructions) {
    if (!is_placed[i - first]) return where + "lacks '" + module_.instructions[i].name + "'";
  }
  return "";
}

}  // namespace

std::unique_ptr<HloModule> ParseHloModule(std::string bytes, std::string* error) {
  auto module = std::make_unique<HloModule>();
  module->bytes = std::move(bytes);
  *error = ModuleParser(module.get()).Parse();
  if (!error->empty()) return nullptr;
  return module;
}

}  // namespace coopjax
