#include "bridge/placement.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

namespace coopjax {
namespace {

// Places one computation. Instructions are named by their position in its list ("local"), productions by theirs in the
// sequence.
class Placer {
 public:
  Placer(const hlo::Module& module, int32_t computation, Placement* placement)
      : module_(module), index_(computation), computation_(module.computations[computation]), placed_(*placement) {}

  std::string Run(const std::vector<int64_t>& op_instruction_ids, const Schedule& schedule);

 private:
  std::string MapOps(const std::vector<int64_t>& op_instruction_ids, const Schedule& schedule);
  void FindEager();
  void PlaceSources();
  std::string PlaceOp(int32_t local);
  std::string PlaceEager();
  std::string Resolve(int32_t local);
  void Place(int32_t local);
  std::vector<int32_t> CurrentOperands(int32_t local) const;

  const hlo::Instruction& at(int32_t local) const { return module_.instructions[computation_.instructions[local]]; }
  int32_t num_instructions() const { return static_cast<int32_t>(computation_.instructions.size()); }
  // Does work, and is in no schedule: XLA will remove it. It is placed once, and read in whatever state it was then.
  bool IsDeadWork(int32_t local) const { return !is_op_[local] && !hlo::IsGlue(at(local).info.op); }
  // Whether `current_` is the most recent production, glue over recomputed operands included.
  bool IsCurrent(int32_t local) const {
    return is_placed_[local] &&
           (is_op_[local] || IsDeadWork(local) || at(local).operands.empty() || resolved_at_[local] == round_);
  }
  // Of an instruction of this computation.
  int32_t LocalOf(int32_t i) const { return i - computation_.instructions.front(); }
  int32_t LocalOfRoot() const { return LocalOf(module_.instruction_index.Find(computation_.root_id)); }

  const hlo::Module& module_;
  const int32_t index_;
  const hlo::Computation& computation_;
  Placement& placed_;

  // Per local.
  std::vector<uint8_t> is_op_, is_placed_;
  std::vector<int32_t> current_;            // the most recent production
  std::vector<int32_t> resolved_at_;        // glue: the round in which `current_` was last brought up to date
  std::vector<int32_t> num_missing_;        // eager: operands and control predecessors not placed yet
  std::vector<std::vector<int32_t>> eager_users_;

  std::vector<int32_t> op_locals_;          // per op
  std::vector<int32_t> ready_eager_;
  int32_t round_ = 0;                       // counts the ops placed; productions change only between rounds
  // The glue that exists for each combination of operands.
  std::map<std::pair<int32_t, std::vector<int32_t>>, int32_t> glue_versions_;
};

std::string Placer::Run(const std::vector<int64_t>& op_instruction_ids, const Schedule& schedule) {
  if (std::string fault = MapOps(op_instruction_ids, schedule); !fault.empty()) return fault;
  FindEager();
  PlaceSources();
  for (const OpId op : schedule) {
    if (std::string fault = PlaceOp(op_locals_[op]); !fault.empty()) return fault;
  }
  if (std::string fault = PlaceEager(); !fault.empty()) return fault;
  if (std::string fault = Resolve(LocalOfRoot()); !fault.empty()) return fault;
  if (std::string fault = PlaceEager(); !fault.empty()) return fault;
  // Nothing can be left over: ops occur at least once, live glue was resolved, all that is eager was ready.
  for (int32_t local = 0; local < num_instructions(); ++local) {
    if (!is_placed_[local]) return hlo::Quoted(at(local).name) + " was never placed";
  }
  placed_.root = current_[LocalOfRoot()];
  return "";
}

std::string Placer::MapOps(const std::vector<int64_t>& op_instruction_ids, const Schedule& schedule) {
  const int32_t n = num_instructions();
  is_op_.assign(n, 0);
  is_placed_.assign(n, 0);
  current_.assign(n, -1);
  resolved_at_.assign(n, -1);
  for (const int64_t id : op_instruction_ids) {
    const int32_t i = module_.instruction_index.Find(id);
    if (i < 0 || module_.instructions[i].computation != index_) {
      return "op " + std::to_string(op_locals_.size()) + " is not an instruction of " + hlo::Quoted(computation_.name);
    }
    const int32_t local = LocalOf(i);
    if (is_op_[local]) return hlo::Quoted(at(local).name) + " is two ops";
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

// What is placed as soon as it can be: glue from which neither an op nor the root can be reached; and dead work with
// the glue that it reads, while its operands' buffers hold what they should.
void Placer::FindEager() {
  const int32_t n = num_instructions();
  std::vector<uint8_t> is_reached = is_op_, feeds_dead_work(n, 0);
  is_reached[LocalOfRoot()] = 1;
  num_missing_.assign(n, 0);
  eager_users_.resize(n);
  for (int32_t local = n - 1; local >= 0; --local) {
    const bool is_with_dead_work = !is_op_[local] && (feeds_dead_work[local] || IsDeadWork(local));
    const bool is_eager = !is_reached[local] || is_with_dead_work;
    for (const auto list : {at(local).operands, at(local).control_predecessors}) {
      for (const int32_t i : list) {
        is_reached[LocalOf(i)] |= is_reached[local];
        feeds_dead_work[LocalOf(i)] |= is_with_dead_work;
        if (!is_eager) continue;
        eager_users_[LocalOf(i)].push_back(local);
        ++num_missing_[local];
      }
    }
  }
}

// Glue without operands (parameters, constants), in the order it had.
void Placer::PlaceSources() {
  for (const int64_t id : computation_.sequence) {
    const int32_t local = LocalOf(module_.instruction_index.Find(id));
    if (is_op_[local] || !at(local).operands.empty() || !at(local).control_predecessors.empty()) continue;
    Place(local);
  }
}

std::string Placer::PlaceOp(int32_t local) {
  const hlo::Instruction& original = at(local);
  for (const int32_t operand : original.operands) {
    const std::string fault = Resolve(LocalOf(operand));
    if (!fault.empty()) return fault + ", which " + hlo::Quoted(original.name) + " reads";
  }
  if (!is_placed_[local]) {
    for (const int32_t predecessor : original.control_predecessors) {
      if (is_placed_[LocalOf(predecessor)]) continue;
      const std::string fault = Resolve(LocalOf(predecessor));
      if (!fault.empty()) return fault + ", which must precede " + hlo::Quoted(original.name);
    }
  }
  if (std::string fault = PlaceEager(); !fault.empty()) return fault;  // it may overwrite what that reads
  placed_.num_clones += is_placed_[local];
  Place(local);
  ++round_;
  return "";
}

std::string Placer::PlaceEager() {
  while (!ready_eager_.empty()) {
    const int32_t local = ready_eager_.back();
    ready_eager_.pop_back();
    if (std::string fault = Resolve(local); !fault.empty()) return fault;
  }
  return "";
}

// Brings `current_[local]` up to date, placing the glue on the way that does not exist yet. (A walk
// with a stack of its own, because chains of glue may be long.)
std::string Placer::Resolve(int32_t local) {
  if (IsCurrent(local)) return "";
  std::vector<int32_t> stack = {local};
  while (!stack.empty()) {
    const int32_t top = stack.back();
    if (IsCurrent(top)) {
      stack.pop_back();
      continue;
    }
    if (is_op_[top]) return "the schedule has nothing before that produces " + hlo::Quoted(at(top).name);
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
void Placer::Place(int32_t local) {
  placed_.operands.AddRow(CurrentOperands(local));
  current_[local] = static_cast<int32_t>(placed_.instructions.size());
  placed_.instructions.push_back(computation_.instructions[local]);
  placed_.is_clone.push_back(is_placed_[local]);
  if (std::exchange(is_placed_[local], 1)) return;
  for (const int32_t user : eager_users_[local]) {
    if (--num_missing_[user] == 0) ready_eager_.push_back(user);
  }
}

std::vector<int32_t> Placer::CurrentOperands(int32_t local) const {
  std::vector<int32_t> operands;
  operands.reserve(at(local).operands.size());
  for (const int32_t operand : at(local).operands) operands.push_back(current_[LocalOf(operand)]);
  return operands;
}

}  // namespace

std::string PlaceSchedule(const hlo::Module& module, int32_t computation,
                          const std::vector<int64_t>& op_instruction_ids, const Schedule& schedule,
                          Placement* placement) {
  *placement = {};
  return Placer(module, computation, placement).Run(op_instruction_ids, schedule);
}

}  // namespace coopjax
