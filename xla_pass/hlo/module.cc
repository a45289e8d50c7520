#include "hlo/module.h"

#include <algorithm>
#include <unordered_map>

#include "hlo/shape.h"
#include "hlo/wire.h"

namespace coopjax::hlo {
namespace {

// Computations that call each other deeper than this are garbage. (XLA's go a handful deep; consumers
// may recurse into callees.)
constexpr int32_t kMaxCallDepth = 64;
constexpr size_t kKeptAtOnce = 16'384;

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

size_t CountFields(std::string_view message, uint32_t number) {
  size_t count = 0;
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) count += field.number == number;
  return count;
}

class ModuleParser {
 public:
  explicit ModuleParser(Module* module) : module_(*module), no_shape_(&module_.shapes.emplace_back()) {}

  // Empty, or what is wrong.
  std::string Parse();

 private:
  std::string ParseTopLevel();
  std::string ParseComputation(std::string_view message);
  bool ParseFields(std::string_view message, Instruction* instruction);
  std::string Resolve(Instruction* instruction);
  void StartWhereOperandsCome(Instruction* instruction);
  std::string ParseSchedule(std::string_view message);
  std::string CheckSequence(const Computation& computation) const;
  const Shape* SharedShape(std::string_view message);

  Module& module_;
  int64_t entry_id_ = 0;
  std::string_view schedule_;
  std::vector<int32_t> call_depth_;  // [computation]
  const Shape* const no_shape_;
  std::unordered_map<std::string_view, const Shape*> shapes_;  // by their bytes
  // Of the instruction at hand.
  std::vector<int64_t> operand_ids_, control_predecessor_ids_, called_ids_;
  std::vector<int32_t> indices_;
};

std::string ModuleParser::Parse() {
  if (std::string fault = ParseTopLevel(); !fault.empty()) return fault;
  module_.entry = module_.computation_index.Find(entry_id_);
  if (module_.entry < 0) return "the module has no entry computation";
  return ParseSchedule(schedule_);
}

std::string ModuleParser::ParseTopLevel() {
  std::vector<std::string_view> computations;
  WireReader reader(module_.bytes);
  for (WireField field; reader.Next(&field);) {
    switch (field.number) {
      case 1:
        module_.name = field.bytes;
        break;
      case 3:
        computations.push_back(field.bytes);
        break;
      case 5:
        module_.id = field.as_int64();
        break;
      case 6:
        entry_id_ = field.as_int64();
        break;
      case 7:
        module_.is_scheduled = true;
        schedule_ = field.bytes;
        break;
      case 8:
        if (!ParseInputOutputAliases(field.bytes, &module_.input_output_aliases)) return "malformed aliases";
        break;
      case 17:
        module_.stack_frames = field.bytes;
        break;
      case 19:
        module_.attributes = field.bytes;
        break;
    }
  }
  if (!reader.ok()) return "the bytes are not a protobuf message";
  if (!module_.is_scheduled) return "the module has no schedule";
  size_t num_instructions = 0;
  for (const std::string_view message : computations) num_instructions += CountFields(message, 2);
  module_.instructions.reserve(num_instructions);
  module_.computations.reserve(computations.size());
  for (const std::string_view message : computations) {
    if (std::string fault = ParseComputation(message); !fault.empty()) return fault;
  }
  return "";
}

std::string ModuleParser::ParseComputation(std::string_view message) {
  const int32_t index = static_cast<int32_t>(module_.computations.size());
  const int32_t first = static_cast<int32_t>(module_.instructions.size());
  Computation& computation = module_.computations.emplace_back();
  computation.raw = message;
  computation.instructions = {first, first};
  call_depth_.push_back(0);
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    if (field.number == 1) computation.name = field.bytes;
    if (field.number == 5) computation.id = field.as_int64();
    if (field.number == 6) computation.root_id = field.as_int64();
    if (field.number != 2) continue;
    Instruction& instruction = module_.instructions.emplace_back();
    instruction.computation = index;
    if (!ParseFields(field.bytes, &instruction)) {
      return "malformed instruction " + Quoted(instruction.name) + " in computation " + std::to_string(index);
    }
    const auto i = static_cast<int32_t>(module_.instructions.size()) - 1;
    computation.instructions = {first, i + 1};
    if (std::string fault = Resolve(&instruction); !fault.empty()) return fault;
    StartWhereOperandsCome(&instruction);
    if (!module_.instruction_index.Add(instruction.id, i)) {
      return "instruction id " + std::to_string(instruction.id) + " occurs twice";
    }
  }
  if (!reader.ok()) return "malformed computation " + Quoted(computation.name);
  if (module_.instruction_index.Find(computation.root_id) < first) {
    return "computation " + Quoted(computation.name) + " has no root";
  }
  if (!module_.computation_index.Add(computation.id, index)) {
    return "computation id " + std::to_string(computation.id) + " occurs twice";
  }
  return "";
}

bool ModuleParser::ParseFields(std::string_view message, Instruction* result) {
  result->raw = message;
  operand_ids_.clear();
  control_predecessor_ids_.clear();
  called_ids_.clear();
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    bool is_valid = true;
    switch (field.number) {
      case 1:
        result->name = field.bytes;
        break;
      case 2:
        result->opcode = field.bytes;
        break;
      case 3:
        is_valid = result->shape == nullptr;  // protobuf would merge a second one into the first
        result->shape = SharedShape(field.bytes);
        is_valid = is_valid && result->shape != nullptr;
        break;
      case 9:
        result->parameter_number = field.as_int64();
        break;
      case 11:
        result->fusion_kind = field.bytes;
        break;
      case 13:
        result->tuple_index = field.as_int64();
        break;
      case 28:
        result->custom_call_target = field.bytes;
        break;
      case 35:
        result->id = field.as_int64();
        break;
      case 36:
        is_valid = ReadRepeatedInt64(field, &operand_ids_);
        break;
      case 37:
        is_valid = ReadRepeatedInt64(field, &control_predecessor_ids_);
        break;
      case 38:
        is_valid = ReadRepeatedInt64(field, &called_ids_);
        break;
      case 65:
        result->custom_call_has_side_effect = field.value != 0;
        break;
      case 74:
        is_valid = ParseOutputOperandAlias(field.bytes, &result->output_operand_aliasing.emplace_back());
        break;
    }
    if (!is_valid) return false;
  }
  if (result->shape == nullptr) result->shape = no_shape_;
  result->info = LookUpOpcode(result->opcode);
  result->info.is_pure |= result->info.op == Op::kCustomCall && IsLibraryFunction(result->custom_call_target);
  // proto3 leaves zeros out.
  if (result->info.op == Op::kParameter && result->parameter_number < 0) result->parameter_number = 0;
  if (result->info.op == Op::kGetTupleElement && result->tuple_index < 0) result->tuple_index = 0;
  return reader.ok();
}

// Modules have few shapes. nullptr when the message is malformed.
const Shape* ModuleParser::SharedShape(std::string_view message) {
  const auto [entry, is_new] = shapes_.try_emplace(message, nullptr);
  if (is_new) {
    Shape& shape = module_.shapes.emplace_back();
    if (ParseShape(message, &shape)) entry->second = &shape;
  }
  return entry->second;
}

// Turns ids into indices. (The instruction is not in the index yet, nor is its computation.)
std::string ModuleParser::Resolve(Instruction* instruction) {
  const int32_t first = module_.computations.back().instructions.front();
  const auto resolve = [&](const std::vector<int64_t>& ids, std::span<const int32_t>* list) -> std::string {
    indices_.clear();
    for (const int64_t id : ids) {
      indices_.push_back(module_.instruction_index.Find(id));
      if (indices_.back() >= first) continue;
      return Quoted(instruction->name) + " refers to instruction " + std::to_string(id) +
             ", which does not stand before it in its computation";
    }
    *list = module_.Keep(indices_);
    return "";
  };
  std::string fault = resolve(operand_ids_, &instruction->operands);
  if (fault.empty()) fault = resolve(control_predecessor_ids_, &instruction->control_predecessors);
  if (!fault.empty()) return fault;
  indices_.clear();
  for (const int64_t id : called_ids_) {
    indices_.push_back(module_.computation_index.Find(id));
    if (indices_.back() < 0) {
      return Quoted(instruction->name) + " calls computation " + std::to_string(id) +
             ", which does not stand before its own";
    }
    int32_t& depth = call_depth_.back();
    depth = std::max(depth, call_depth_[indices_.back()] + 1);
    if (depth > kMaxCallDepth) return Quoted(instruction->name) + " calls too deeply";
  }
  instruction->called = module_.Keep(indices_);
  return "";
}

// An async-start without the operands of what it calls sets that up (on a TPU's SparseCore), and an async-update brings
// them, which is the start.
void ModuleParser::StartWhereOperandsCome(Instruction* update) {
  if (update->info.op != Op::kAsyncUpdate || update->operands.size() < 2) return;
  Instruction& set_up = module_.instructions[update->operands[0]];
  if (set_up.info.op != Op::kAsyncStart || !set_up.operands.empty()) return;
  update->info = set_up.info, update->opcode = set_up.opcode, update->called = set_up.called;
  indices_.assign(update->control_predecessors.begin(), update->control_predecessors.end());
  indices_.push_back(update->operands[0]);
  update->control_predecessors = module_.Keep(indices_);
  update->operands = update->operands.subspan(1);
  set_up.opcode = "async-set-up", set_up.info = LookUpOpcode(set_up.opcode), set_up.called = {};
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
    const int32_t index = module_.computation_index.Find(computation_id);
    if (index < 0) return "the schedule names an unknown computation";
    if (sequence.empty()) continue;  // XLA:TPU lists fused computations, too, without their instructions
    Computation& computation = module_.computations[index];
    computation.sequence = std::move(sequence);
    if (std::string fault = CheckSequence(computation); !fault.empty()) return fault;
  }
  if (!reader.ok()) return "malformed schedule";
  return module_.entry_computation().sequence.empty() ? "the entry computation is not in the schedule" : "";
}

// Each instruction of the computation once, behind its operands and control predecessors.
std::string ModuleParser::CheckSequence(const Computation& computation) const {
  const int32_t first = computation.instructions.front();  // there is one: the root
  std::vector<uint8_t> is_placed(computation.instructions.size(), 0);
  const auto where = [&] { return "the schedule of " + Quoted(computation.name) + " "; };
  for (const int64_t id : computation.sequence) {
    const int32_t i = module_.instruction_index.Find(id);
    if (i < first || i > computation.instructions.back()) {
      return where() + "names instruction " + std::to_string(id) + ", which is not in it";
    }
    const Instruction& instruction = module_.instructions[i];
    if (is_placed[i - first]) return where() + "names " + Quoted(instruction.name) + " twice";
    for (const auto list : {instruction.operands, instruction.control_predecessors}) {
      for (const int32_t before : list) {
        if (is_placed[before - first]) continue;
        return where() + "has " + Quoted(instruction.name) + " before " + Quoted(module_.instructions[before].name);
      }
    }
    is_placed[i - first] = 1;
  }
  for (const int32_t i : computation.instructions) {
    if (!is_placed[i - first]) return where() + "lacks " + Quoted(module_.instructions[i].name);
  }
  return "";
}

}  // namespace

std::span<const int32_t> Module::Keep(std::span<const int32_t> list) {
  if (list.empty()) return {};
  if (lists.empty() || lists.back().capacity() - lists.back().size() < list.size()) {
    lists.emplace_back().reserve(std::max(kKeptAtOnce, list.size()));
  }
  std::vector<int32_t>& last = lists.back();
  last.insert(last.end(), list.begin(), list.end());
  return std::span<const int32_t>(last).last(list.size());
}

std::vector<int64_t> Module::InstructionIds(std::span<const int32_t> indices) const {
  std::vector<int64_t> ids;
  for (const int32_t i : indices) ids.push_back(instructions[i].id);
  return ids;
}

std::vector<int64_t> Module::ComputationIds(std::span<const int32_t> indices) const {
  std::vector<int64_t> ids;
  for (const int32_t c : indices) ids.push_back(computations[c].id);
  return ids;
}

std::string Quoted(std::string_view name) { return std::string("'").append(name).append("'"); }

std::unique_ptr<Module> ParseModule(std::string bytes, std::string* error) {
  auto module = std::make_unique<Module>();
  module->bytes = std::move(bytes);
  *error = ModuleParser(module.get()).Parse();
  if (!error->empty()) return nullptr;
  return module;
}

}  // namespace coopjax::hlo
