#include "bridge/transform.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "hlo/emit.h"

namespace coopjax {
namespace {

constexpr int kComputationIdShift = 32;
constexpr std::string_view kCloneSuffix = ".coop_remat";

// Ids and names that the module does not use yet. Instruction ids follow the module's own habit:
// computation id << 32 | number within the computation, or plain numbers.
class FreshIdentifiers {
 public:
  explicit FreshIdentifiers(const HloModule& module) {
    for (const Computation& computation : module.computations) {
      int64_t next = 0;
      for (const int32_t i : computation.instructions) {
        const Instruction& instruction = module.instructions[i];
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

// Rewrites one computation. Instructions are named by their position in its list ("local").
class Rewriter {
 public:
  // `fresh` is made for the first clone, as it reads the whole module, and serves all that rewrite one module.
  Rewriter(const HloModule& module, int32_t computation, std::optional<FreshIdentifiers>* fresh)
      : module_(module), index_(computation), computation_(module.computations[computation]), fresh_(*fresh) {}

  // Empty, or why the schedule cannot be carried out.
  std::string Run(const std::vector<int64_t>& op_instruction_ids, const Schedule& schedule);
  // Adds what becomes of the computation and of what was cloned with it.
  void AddEdits(std::vector<ComputationEdit>* edits);
  int32_t num_clones() const { return num_clones_; }
  const std::vector<int64_t>& sequence() const { return sequence_; }

 private:
  std::string MapOps(const std::vector<int64_t>& op_instruction_ids, const Schedule& schedule);
  void FindDeadGlue();
  void PlaceSources();
  std::string PlaceOp(int32_t local);
  std::string PlaceDeadGlue();
  std::string Resolve(int32_t local);
  void Place(int32_t local);
  std::vector<int64_t> CurrentOperands(int32_t local) const;
  std::vector<int64_t> CloneCalled(const Instruction& original);
  int64_t CloneComputation(int32_t index);

  FreshIdentifiers& Fresh() {
    if (!fresh_) fresh_.emplace(module_);
    return *fresh_;
  }
  const Instruction& at(int32_t local) const { return module_.instructions[computation_.instructions[local]]; }
  int32_t num_instructions() const { return static_cast<int32_t>(computation_.instructions.size()); }
  // Whether `current_` is the most recent production, glue over recomputed operands included.
  bool IsCurrent(int32_t local) const {
    return is_placed_[local] && (is_op_[local] || at(local).operands.empty() || resolved_at_[local] == round_);
  }
  // Of an instruction of this computation.
  int32_t LocalOf(int32_t i) const { return i - computation_.instructions.front(); }
  int32_t LocalOfRoot() const { return LocalOf(module_.instruction_index.Find(computation_.root_id)); }

  const HloModule& module_;
  const int32_t index_;
  const Computation& computation_;
  std::optional<FreshIdentifiers>& fresh_;

  // Per local.
  std::vector<uint8_t> is_op_, is_placed_;
  std::vector<int64_t> current_;            // id of the most recent production
  std::vector<int32_t> resolved_at_;        // glue: the round in which `current_` was last brought up to date
  std::vector<int32_t> num_missing_;        // dead glue: operands and control predecessors not placed yet
  std::vector<std::vector<int32_t>> dead_users_;

  std::vector<int32_t> op_locals_;          // per op
  std::vector<int32_t> ready_dead_glue_;
  int32_t round_ = 0;                       // counts the ops placed; productions change only between rounds
  int32_t num_clones_ = 0;
  // The glue that exists for each combination of operands.
  std::map<std::pair<int32_t, std::vector<int64_t>>, int64_t> glue_versions_;

  std::vector<std::string> instructions_;
  std::vector<int64_t> sequence_;
  std::vector<ComputationEdit> cloned_computations_;
};

std::string Rewriter::Run(const std::vector<int64_t>& op_instruction_ids, const Schedule& schedule) {
  if (std::string fault = MapOps(op_instruction_ids, schedule); !fault.empty()) return fault;
  FindDeadGlue();
  PlaceSources();
  for (const OpId op : schedule) {
    if (std::string fault = PlaceDeadGlue(); !fault.empty()) return fault;
    if (std::string fault = PlaceOp(op_locals_[op]); !fault.empty()) return fault;
  }
  if (std::string fault = PlaceDeadGlue(); !fault.empty()) return fault;
  if (std::string fault = Resolve(LocalOfRoot()); !fault.empty()) return fault;
  // Nothing can be left over: ops occur at least once, live glue was resolved, dead glue was ready.
  for (int32_t local = 0; local < num_instructions(); ++local) {
    if (!is_placed_[local]) return Quoted(at(local).name) + " was never placed";
  }
  return "";
}

std::string Rewriter::MapOps(const std::vector<int64_t>& op_instruction_ids, const Schedule& schedule) {
  const int32_t n = num_instructions();
  is_op_.assign(n, 0);
  is_placed_.assign(n, 0);
  current_.assign(n, -1);
  resolved_at_.assign(n, -1);
  for (const int64_t id : op_instruction_ids) {
    const int32_t i = module_.instruction_index.Find(id);
    if (i < 0 || module_.instructions[i].computation != index_) {
      return "op " + std::to_string(op_locals_.size()) + " is not an instruction of " + Quoted(computation_.name);
    }
    const int32_t local = LocalOf(i);
    if (is_op_[local]) return Quoted(at(local).name) + " is two ops";
    is_op_[local] = 1;
    op_locals_.push_back(local);
  }
  std::vector<uint8_t> occurs(op_locals_.size(), 0);
  for (const OpId op : schedule) {
    if (op < 0 || op >= std::ssize(op_locals_)) {
      return "the schedule names op " + std::to_string(op) + ", which does not exist";
    }
    occurs[op] = 1;
  }
  const auto missing = std::ranges::find(occurs, 0);
  return missing == occurs.end() ? "" : "the schedule lacks op " + std::to_string(missing - occurs.begin());
}

// Glue from which neither an op nor the root can be reached.
void Rewriter::FindDeadGlue() {
  const int32_t n = num_instructions();
  std::vector<uint8_t> is_live = is_op_;
  is_live[LocalOfRoot()] = 1;
  num_missing_.assign(n, 0);
  dead_users_.resize(n);
  for (int32_t local = n - 1; local >= 0; --local) {
    for (const auto list : {at(local).operands, at(local).control_predecessors}) {
      for (const int32_t i : list) {
        if (is_live[local]) {
          is_live[LocalOf(i)] = 1;
        } else {
          dead_users_[LocalOf(i)].push_back(local);
          ++num_missing_[local];
        }
      }
    }
  }
}

// Glue without operands (parameters, constants), in the order it had.
void Rewriter::PlaceSources() {
  for (const int64_t id : computation_.sequence) {
    const int32_t local = LocalOf(module_.instruction_index.Find(id));
    if (is_op_[local] || !at(local).operands.empty() || !at(local).control_predecessors.empty()) continue;
    Place(local);
  }
}

std::string Rewriter::PlaceOp(int32_t local) {
  const Instruction& original = at(local);
  for (const int32_t operand : original.operands) {
    const std::string fault = Resolve(LocalOf(operand));
    if (!fault.empty()) return fault + ", which " + Quoted(original.name) + " reads";
  }
  if (!is_placed_[local]) {
    for (const int32_t predecessor : original.control_predecessors) {
      if (is_placed_[LocalOf(predecessor)]) continue;
      const std::string fault = Resolve(LocalOf(predecessor));
      if (!fault.empty()) return fault + ", which must precede " + Quoted(original.name);
    }
  }
  num_clones_ += is_placed_[local];
  Place(local);
  ++round_;
  return "";
}

std::string Rewriter::PlaceDeadGlue() {
  while (!ready_dead_glue_.empty()) {
    const int32_t local = ready_dead_glue_.back();
    ready_dead_glue_.pop_back();
    if (std::string fault = Resolve(local); !fault.empty()) return fault;
  }
  return "";
}

// Brings `current_[local]` up to date, placing the glue on the way that does not exist yet. (A walk
// with a stack of its own, because chains of glue may be long.)
std::string Rewriter::Resolve(int32_t local) {
  std::vector<int32_t> stack = {local};
  while (!stack.empty()) {
    const int32_t top = stack.back();
    if (IsCurrent(top)) {
      stack.pop_back();
      continue;
    }
    if (is_op_[top]) return "the schedule has nothing before that produces " + Quoted(at(top).name);
    const size_t depth = stack.size();
    for (const int32_t operand : at(top).operands) {
      if (!IsCurrent(LocalOf(operand))) stack.push_back(LocalOf(operand));
    }
    if (!is_placed_[top]) {
      for (const int32_t predecessor : at(top).control_predecessors) {
        if (!is_placed_[LocalOf(predecessor)]) stack.push_back(LocalOf(predecessor));
      }
    }
    if (stack.size() > depth) continue;
    stack.pop_back();
    const auto [version, is_new] = glue_versions_.try_emplace({top, CurrentOperands(top)}, -1);
    if (is_new) {
      Place(top);
      version->second = current_[top];
    }
    current_[top] = version->second;
    resolved_at_[top] = round_;
  }
  return "";
}

// Places one more production of `local`, whose operands are current: the original, then clones.
void Rewriter::Place(int32_t local) {
  const Instruction& original = at(local);
  std::vector<int64_t> operand_ids = CurrentOperands(local);
  if (is_placed_[local]) {
    const int64_t id = Fresh().InstructionId(computation_.id);
    instructions_.push_back(EmitInstruction(original, {.id = id,
                                                       .name = Fresh().Name(original.name),
                                                       .operand_ids = std::move(operand_ids),
                                                       .control_predecessor_ids = {},
                                                       .called_computation_ids = CloneCalled(original)}));
    current_[local] = id;
  } else if (operand_ids == module_.InstructionIds(original.operands)) {
    instructions_.emplace_back(original.raw);
    current_[local] = original.id;
  } else {
    InstructionEdit edit = AsItIs(module_, original);
    edit.operand_ids = std::move(operand_ids);
    instructions_.push_back(EmitInstruction(original, edit));
    current_[local] = original.id;
  }
  sequence_.push_back(current_[local]);
  if (std::exchange(is_placed_[local], 1)) return;
  for (const int32_t user : dead_users_[local]) {
    if (--num_missing_[user] == 0) ready_dead_glue_.push_back(user);
  }
}

std::vector<int64_t> Rewriter::CurrentOperands(int32_t local) const {
  std::vector<int64_t> operand_ids;
  operand_ids.reserve(at(local).operands.size());
  for (const int32_t operand : at(local).operands) operand_ids.push_back(current_[LocalOf(operand)]);
  return operand_ids;
}

std::vector<int64_t> Rewriter::CloneCalled(const Instruction& original) {
  std::vector<int64_t> ids;
  for (const int32_t callee : original.called) ids.push_back(CloneComputation(callee));
  return ids;
}

// Clones a computation with all that it calls, and returns the clone's id. (Callees stand before
// their callers in every module that was parsed, so this ends.)
int64_t Rewriter::CloneComputation(int32_t index) {
  const Computation& original = module_.computations[index];
  ComputationEdit clone;
  clone.computation = index;
  clone.is_clone = true;
  clone.new_id = Fresh().ComputationId();
  clone.new_name = Fresh().Name(original.name);
  clone.insert_before = index_;
  std::vector<int64_t> new_ids;
  const auto new_id = [&](int32_t i) { return new_ids[i - original.instructions.front()]; };
  const auto renamed = [&](std::span<const int32_t> instructions) {
    std::vector<int64_t> result;
    for (const int32_t i : instructions) result.push_back(new_id(i));
    return result;
  };
  for (const int32_t i : original.instructions) {
    const Instruction& instruction = module_.instructions[i];
    new_ids.push_back(Fresh().InstructionId(clone.new_id));
    clone.instructions.push_back(
        EmitInstruction(instruction, {.id = new_ids.back(),
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

void Rewriter::AddEdits(std::vector<ComputationEdit>* edits) {
  std::ranges::move(cloned_computations_, std::back_inserter(*edits));
  ComputationEdit& edit = edits->emplace_back();
  edit.computation = index_;
  edit.new_root_id = current_[LocalOfRoot()];
  edit.instructions = std::move(instructions_);
  edit.sequence = std::move(sequence_);
}

}  // namespace

TransformResult ApplySchedules(const HloModule& module, std::span<const ComputationSchedule> schedules) {
  TransformResult result;
  std::optional<FreshIdentifiers> fresh;
  std::vector<ComputationEdit> edits;
  for (const ComputationSchedule& each : schedules) {
    const int32_t computation = each.computation == kEntryComputation ? module.entry : each.computation;
    if (computation < 0 || computation >= std::ssize(module.computations)) {
      result.error = "there is no such computation";
      return result;
    }
    Rewriter rewriter(module, computation, &fresh);
    result.error = rewriter.Run(each.op_instruction_ids, each.schedule);
    if (!result.error.empty()) return result;
    rewriter.AddEdits(&edits);
    result.num_clones += rewriter.num_clones();
  }
  result.bytes = EmitHloModule(module, edits);
  return result;
}

TransformResult ApplySchedule(const HloModule& module, const std::vector<int64_t>& op_instruction_ids,
                              const Schedule& schedule, int32_t computation) {
  const ComputationSchedule alone = {computation, op_instruction_ids, schedule};
  return ApplySchedules(module, {&alone, 1});
}

std::vector<int64_t> SequenceOf(const HloModule& module, const std::vector<int64_t>& op_instruction_ids,
                                const Schedule& order, int32_t computation) {
  std::optional<FreshIdentifiers> fresh;
  Rewriter rewriter(module, computation == kEntryComputation ? module.entry : computation, &fresh);
  if (!rewriter.Run(op_instruction_ids, order).empty()) return {};
  return rewriter.sequence();
}

}  // namespace coopjax
