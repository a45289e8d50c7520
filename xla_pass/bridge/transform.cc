#include "bridge/transform.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/allowance.h"
#include "bridge/placement.h"
#include "hlo/emit.h"

namespace coopjax {
namespace {

constexpr int kComputationIdShift = 32;
constexpr int64_t kStepsPerInstruction = 50;
constexpr std::string_view kCloneSuffix = ".coop_remat";

// Ids and names that the module does not use yet. Instruction ids follow the module's own habit:
// computation id << 32 | number within the computation, or plain numbers.
class FreshIdentifiers {
 public:
  explicit FreshIdentifiers(const hlo::Module& module) {
    for (const hlo::Computation& computation : module.computations) {
      int64_t next = 0;
      for (const int32_t i : computation.instructions) {
        const hlo::Instruction& instruction = module.instructions[i];
        Take(instruction.name);
        has_split_ids_ = has_split_ids_ && instruction.id >> kComputationIdShift == computation.id;
        next = std::max(next, instruction.id + 1);
      }
      next_in_computation_[computation.id] = next;
      next_instruction_id_ = std::max(next_instruction_id_, next);
      Take(computation.name);
      next_computation_id_ = std::max(next_computation_id_, computation.id + 1);
    }
  }

  int64_t ComputationId() { return next_computation_id_++; }
  int64_t InstructionId(int64_t computation_id) {
    if (!has_split_ids_) return next_instruction_id_++;
    const int64_t first = computation_id << kComputationIdShift;
    return next_in_computation_.try_emplace(computation_id, first).first->second++;
  }
  std::string Name(std::string_view original) {
    int& number = num_clones_[original];
    for (;;) {
      std::string name = std::string(original).append(kCloneSuffix).append(std::to_string(++number));
      if (names_.insert(name).second) return name;
    }
  }

 private:
  // Only names that look like a clone's can be in the way.
  void Take(std::string_view name) {
    if (name.find(kCloneSuffix) != std::string_view::npos) names_.emplace(name);
  }

  std::unordered_set<std::string> names_;
  std::unordered_map<std::string_view, int> num_clones_;
  std::unordered_map<int64_t, int64_t> next_in_computation_;
  bool has_split_ids_ = true;
  int64_t next_instruction_id_ = 0;
  int64_t next_computation_id_ = 0;
};

// Writes one computation that was placed, and what its clones call.
class Emitter {
 public:
  // `fresh` is made for the first clone, as it reads the whole module, and serves all that rewrite one module.
  Emitter(const hlo::Module& module, int32_t computation, std::optional<FreshIdentifiers>* fresh)
      : module_(module), computation_(computation), fresh_(*fresh) {}

  // Adds what becomes of the computation, after what was cloned with it.
  void AddEdits(const Placement& placement, std::vector<hlo::ComputationEdit>* edits);

 private:
  std::string Emitted(const Placement& placement, int32_t production);
  std::vector<int64_t> CloneCalled(const hlo::Instruction& original);
  int64_t CloneComputation(int32_t index);

  FreshIdentifiers& Fresh() {
    if (!fresh_) fresh_.emplace(module_);
    return *fresh_;
  }

  const hlo::Module& module_;
  const int32_t computation_;
  std::optional<FreshIdentifiers>& fresh_;
  std::vector<int64_t> ids_;               // of the productions written so far
  std::vector<hlo::ComputationEdit> cloned_computations_;
};

void Emitter::AddEdits(const Placement& placement, std::vector<hlo::ComputationEdit>* edits) {
  hlo::ComputationEdit edit;
  edit.computation = computation_;
  for (int32_t k = 0; k < std::ssize(placement.instructions); ++k) edit.instructions.push_back(Emitted(placement, k));
  edit.new_root_id = ids_[placement.root];
  edit.sequence = std::move(ids_);
  std::ranges::move(cloned_computations_, std::back_inserter(*edits));
  edits->push_back(std::move(edit));
}

// The bytes of a production; its id is the next of `ids_`.
std::string Emitter::Emitted(const Placement& placement, int32_t production) {
  const hlo::Instruction& original = module_.instructions[placement.instructions[production]];
  const std::span<const int32_t> operands = placement.operands[production];
  std::vector<int64_t> operand_ids;
  operand_ids.reserve(operands.size());
  for (const int32_t operand : operands) operand_ids.push_back(ids_[operand]);
  if (placement.is_clone[production]) {
    ids_.push_back(Fresh().InstructionId(module_.computations[computation_].id));
    return hlo::EmitInstruction(original, {.id = ids_.back(),
                                           .name = Fresh().Name(original.name),
                                           .operand_ids = std::move(operand_ids),
                                           .control_predecessor_ids = {},
                                           .called_computation_ids = CloneCalled(original)});
  }
  ids_.push_back(original.id);
  const bool reads_clones = std::ranges::any_of(operands, [&](int32_t k) { return placement.is_clone[k] != 0; });
  if (!reads_clones) return std::string(original.raw);
  hlo::InstructionEdit edit = hlo::AsItIs(module_, original);
  edit.operand_ids = std::move(operand_ids);
  return hlo::EmitInstruction(original, edit);
}

std::vector<int64_t> Emitter::CloneCalled(const hlo::Instruction& original) {
  std::vector<int64_t> ids;
  for (const int32_t callee : original.called) ids.push_back(CloneComputation(callee));
  return ids;
}

// Clones a computation with all that it calls, and returns the clone's id. (Callees stand before
// their callers in every module that was parsed, so this ends.)
int64_t Emitter::CloneComputation(int32_t index) {
  const hlo::Computation& original = module_.computations[index];
  hlo::ComputationEdit clone;
  clone.computation = index;
  clone.is_clone = true;
  clone.new_id = Fresh().ComputationId();
  clone.new_name = Fresh().Name(original.name);
  clone.insert_before = computation_;
  std::vector<int64_t> new_ids;
  const auto new_id = [&](int32_t i) { return new_ids[i - original.instructions.front()]; };
  const auto renamed = [&](std::span<const int32_t> instructions) {
    std::vector<int64_t> result;
    for (const int32_t i : instructions) result.push_back(new_id(i));
    return result;
  };
  for (const int32_t i : original.instructions) {
    const hlo::Instruction& instruction = module_.instructions[i];
    new_ids.push_back(Fresh().InstructionId(clone.new_id));
    clone.instructions.push_back(
        hlo::EmitInstruction(instruction, {.id = new_ids.back(),
                                           .name = Fresh().Name(instruction.name),
                                           .operand_ids = renamed(instruction.operands),
                                           .control_predecessor_ids = renamed(instruction.control_predecessors),
                                           .called_computation_ids = CloneCalled(instruction)}));
  }
  clone.new_root_id = new_id(module_.instruction_index.Find(original.root_id));
  for (const int64_t id : original.sequence) clone.sequence.push_back(new_id(module_.instruction_index.Find(id)));
  const int64_t id = clone.new_id;
  // After its callees, which the loop above has added.
  cloned_computations_.push_back(std::move(clone));
  return id;
}

}  // namespace

TransformResult ApplySchedules(const hlo::Module& module, std::span<const ComputationSchedule> schedules) {
  CountSteps(kStepsPerInstruction * std::ssize(module.instructions));
  TransformResult result;
  std::optional<FreshIdentifiers> fresh;
  std::vector<hlo::ComputationEdit> edits;
  for (const ComputationSchedule& each : schedules) {
    const int32_t computation = each.computation == hlo::kEntryComputation ? module.entry : each.computation;
    if (computation < 0 || computation >= std::ssize(module.computations)) {
      result.error = "there is no such computation";
      return result;
    }
    Placement placement;
    result.error = PlaceSchedule(module, computation, each.op_instruction_ids, each.schedule, &placement);
    if (!result.error.empty()) return result;
    Emitter(module, computation, &fresh).AddEdits(placement, &edits);
    result.num_clones += placement.num_clones;
  }
  result.bytes = hlo::EmitModule(module, edits);
  return result;
}

TransformResult ApplySchedule(const hlo::Module& module, const std::vector<int64_t>& op_instruction_ids,
                              const Schedule& schedule, int32_t computation) {
  const ComputationSchedule alone = {computation, op_instruction_ids, schedule};
  return ApplySchedules(module, {&alone, 1});
}

std::vector<int32_t> SequenceOf(const hlo::Module& module, const std::vector<int64_t>& op_instruction_ids,
                                const Schedule& order, int32_t computation) {
  Placement placement;
  if (computation == hlo::kEntryComputation) computation = module.entry;
  if (!PlaceSchedule(module, computation, op_instruction_ids, order, &placement).empty()) return {};
  return std::move(placement.instructions);
}

}  // namespace coopjax
