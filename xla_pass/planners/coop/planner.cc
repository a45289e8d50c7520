#include "planners/coop/planner.h"

#include <algorithm>
#include <utility>

#include "planners/coop/arena.h"
#include "planners/coop/cost_density.h"
#include "planners/coop/eviction.h"
#include "planners/coop/eviction_cost.h"
#include "planners/coop/memory.h"
#include "planners/coop/residency.h"
#include "program/dependences.h"

namespace coopjax {
namespace {

std::vector<CostClass> ClassesOf(const StepProgram& program, const CoopOptions& options) {
  if (options.op_is_expensive.empty()) return ClassesByDensity(program, options.cheap_below_s_per_byte);
  std::vector<CostClass> classes;
  for (uint8_t is_expensive : options.op_is_expensive) {
    classes.push_back(is_expensive ? CostClass::kExpensive : CostClass::kCheap);
  }
  return classes;
}

constexpr int kMaxRuns = 8;   // then kFirstIfDead for all: nothing is left to guess

// Which of the pairs listed for an output may act.
enum class Sharing : uint8_t {
  kFirstDead,      // the first whose input is not read again by the order: a guess about later evictions
  kFirstGivesUp,   // the first listed, its input evicted if it is read again
  kFirstIfDead,    // the first listed, if its input is not read again
};

// `input` was listed before the pair that shared at this step, and passed over: it looked as if it would be read again.
struct PassedOver {
  Step step;
  ValueId input;
};

// Whether a share acts is known only at the end: an input that was to be read again may have been evicted first, and by
// the rules it is then the one that left its buffer. The ops where that happened.
std::vector<OpId> WronglyShared(const StepProgram& program, std::span<const OpId> schedule,
                                std::span<const PassedOver> passed) {
  std::vector<OpId> wrong;
  std::vector<uint8_t> is_read_next(program.num_values(), 0);   // going backwards: read before it is made anew
  auto next = passed.rbegin();                                  // by step
  for (Step step = static_cast<Step>(schedule.size()) - 1; step >= 0 && next != passed.rend(); --step) {
    const OpId op = schedule[step];
    for (; next != passed.rend() && next->step == step; ++next) {
      if (!is_read_next[next->input]) wrong.push_back(op);
    }
    for (ValueId w : program.op_outputs[op]) is_read_next[w] = 0;
    for (ValueId v : program.op_inputs[op]) is_read_next[v] = 1;
  }
  return wrong;
}

class Simulation {
 public:
  Simulation(const StepProgram& program, std::span<const OpId> order, int64_t budget_bytes, const CoopOptions& options,
             std::span<const Sharing> sharing)
      : program_(program),
        order_(order),
        options_(options),
        shares_(program),
        sharing_(sharing),
        class_of_(ClassesOf(program, options)),
        residency_(program),
        cost_(program, order, residency_, options.cost, options.knows_future),
        memory_(program,
                Arena(budget_bytes, options.alignment_bytes, options.num_small_pieces * options.small_piece_bytes),
                &residency_, &cost_.recompute()),
        eviction_(options_, &memory_, &cost_),
        most_s_((1 + options.max_overhead) * cost_.total_s()),
        is_pending_(program.num_ops(), 0),
        held_(order.size()) {
    for (ValueId v = 0; v < program.num_values() && !options.recomputes_in_place; ++v) {
      const ValueId overwritten = program.value_in_place_of[v];
      if (overwritten == kNoValue) continue;
      memory_.Bind(v);
      memory_.Bind(overwritten);
    }
  }

  std::span<const PassedOver> passed_over() const { return passed_over_; }

  CoopResult Run() {
    result_.is_feasible = true;
    for (Step step = 0; step < static_cast<Step>(order_.size()); ++step) {
      cost_.SetStep(step);
      if (!RunStep(order_[step])) {
        Fail(step);
        break;
      }
    }
    result_.counters = eviction_.counters();
    return std::move(result_);
  }

 private:
  struct Frame {
    OpId op;
    size_t next_input = 0;   // inputs before it are resident and pinned
  };

  void Fail(Step step) {
    result_.is_feasible = false;
    result_.failed_step = step;
    result_.schedule.assign(order_.begin(), order_.end());
    result_.placements.clear();
  }

  // One op of the order, and what it takes.
  bool RunStep(OpId op) {
    std::vector<ValueId> saved;
    if (!SaveWhatIsOverwritten(op, &saved) || !Execute(op, /*is_repeat=*/false)) return false;
    for (ValueId v : saved) memory_.Unpin(v);
    for (ValueId v : program_.op_inputs[op]) ReleaseIfDead(v);
    for (ValueId w : program_.op_outputs[op]) ReleaseIfDead(w);
    for (ValueId v : std::exchange(held_[cost_.step()], {})) ReleaseIfDead(v);
    ReleaseFormerSources();
    return true;
  }

  // ---- running ops ----------------------------------------------------------------------------

  // Runs `target`, first what must come back for it. Depth first, without recursion: chains are long.
  bool Execute(OpId target, bool is_repeat) {
    ReserveForRecompute(target);
    std::vector<Frame> stack = {{target}};
    while (!stack.empty()) {
      Frame& frame = stack.back();
      const OpId op = frame.op;
      const auto inputs = program_.op_inputs[op];
      if (frame.next_input < inputs.size()) {
        const ValueId v = inputs[frame.next_input];
        if (residency_.is_resident(v)) {
          memory_.Pin(v);
          ++frame.next_input;
        } else if (residency_.CanRemake(v)) {
          stack.push_back({program_.value_producer[v]});
        } else {
          return false;
        }
        continue;
      }
      stack.pop_back();
      if (!RunOp(op, is_repeat || !stack.empty())) return false;
      if (stack.empty()) continue;
      const ValueId wanted = program_.op_inputs[stack.back().op][stack.back().next_input];
      for (ValueId w : program_.op_outputs[op]) {
        if (w != wanted) ReleaseRegenerated(w);
      }
    }
    return true;
  }

  // Everything that `target` and the evicted ancestors it needs will read.
  void ReserveForRecompute(OpId target) {
    std::vector<OpId> pending;
    auto add_makers = [&](OpId op) {
      for (ValueId v : program_.op_inputs[op]) {
        const OpId maker = program_.value_producer[v];
        if (residency_.is_resident(v) || maker == kNoOp || is_pending_[maker]) continue;
        is_pending_[maker] = 1;
        pending.push_back(maker);
      }
    };
    add_makers(target);
    if (pending.empty()) return;
    is_pending_[target] = 1;
    pending.push_back(target);
    for (size_t i = 0; i < pending.size(); ++i) {
      if (pending[i] != target) add_makers(pending[i]);
      for (ValueId v : program_.op_inputs[pending[i]]) memory_.Reserve(v);
    }
  }

  // Everything `op` reads is resident and pinned.
  bool RunOp(OpId op, bool is_repeat) {
    for (ValueId v : program_.op_inputs[op]) {
      if (!is_repeat) residency_.CountRead(v);
      if (is_pending_[op]) memory_.Unreserve(v);
    }
    is_pending_[op] = 0;
    for (ValueId w : program_.op_outputs[op]) {
      if (!PlaceOutput(op, w)) return false;
      memory_.Pin(w);   // or the next output might evict it
    }
    if (program_.op_workspace_bytes[op] > 0) {
      Arena::PieceId workspace;
      if (!Allocate(program_.op_workspace_bytes[op], op, CoopMemory::kWorkspace, &workspace)) return false;
      memory_.arena().Free(workspace);
    }
    for (ValueId v : program_.op_inputs[op]) cost_.Touch(v);
    for (ValueId w : program_.op_outputs[op]) {
      cost_.Touch(w);
      memory_.Unpin(w);
    }
    cost_.Advance(program_.op_cost_s[op]);
    if (cost_.now_s() > most_s_) return false;
    result_.schedule.push_back(op);
    for (ValueId v : program_.op_inputs[op]) {
      memory_.Unpin(v);
      if (is_repeat) ReleaseRegenerated(v);
    }
    return true;
  }

  // Gives `w` its bytes: those of what it overwrites, those of an input that dies here, or a new piece.
  bool PlaceOutput(OpId op, ValueId w) {
    Arena::PieceId piece = Arena::kNoPiece;
    const ValueId overwritten = program_.value_in_place_of[w];
    const bool keeps = overwritten == kNoValue && residency_.is_resident(w);   // made again for a sibling's sake
    if (overwritten != kNoValue) {
      if (residency_.is_resident(w)) memory_.Release(w);
      piece = memory_.TakeOver(overwritten, w, IsLostWhenOverwritten(overwritten));
    } else if (!keeps) {
      const ValueId giver = SharedInput(op, w);
      if (giver != kNoValue) piece = memory_.TakeOver(giver, w, /*is_lost=*/false);
    }
    const bool takes_bytes = program_.takes_budget(w) && program_.value_bytes[w] > 0;
    if (takes_bytes && !keeps) {
      if (piece == Arena::kNoPiece && !Allocate(program_.value_bytes[w], op, w, &piece)) return false;
      memory_.Hold(w, piece);
    } else if (!keeps) {
      memory_.Hold(w, Arena::kNoPiece);
    }
    if (program_.takes_budget(w)) {
      const int64_t offset = memory_.has_piece(w) ? memory_.offset(w) : 0;
      result_.placements.push_back({w, static_cast<Step>(result_.schedule.size()), offset});
    }
    return true;
  }

  bool Allocate(int64_t bytes, OpId op, Arena::Owner owner, Arena::PieceId* piece) {
    *piece = eviction_.Allocate(bytes, class_of_[op], owner);
    if (*piece == Arena::kNoPiece) result_.failed_bytes = bytes;
    return *piece != Arena::kNoPiece;
  }

  bool IsLostWhenOverwritten(ValueId v) const { return !program_.takes_budget(v) || !options_.recomputes_in_place; }

  // An input that nobody needs after `op` and whose piece is large enough for `w`.
  ValueId SharedInput(OpId op, ValueId w) {
    std::vector<PassedOver> passed;
    for (const MayShare& share : shares_[op]) {
      const ValueId v = share.input;
      if (share.output != w) continue;
      const bool may_go = residency_.reads_left(v) == 0 ||
                          (sharing_[op] == Sharing::kFirstGivesUp && residency_.CanRemake(v) && !memory_.is_bound(v));
      if (residency_.is_resident(v) && may_go && memory_.num_pins(v) == 1 && !memory_.is_reserved(v) &&
          program_.takes_budget(w) && program_.value_bytes[w] <= program_.value_bytes[v] &&
          options_.IsSmall(program_.value_bytes[w]) == options_.IsSmall(program_.value_bytes[v])) {
        passed_over_.insert(passed_over_.end(), passed.begin(), passed.end());
        return v;
      }
      if (sharing_[op] != Sharing::kFirstDead) break;
      passed.push_back({static_cast<Step>(result_.schedule.size()), v});
    }
    return kNoValue;
  }

  // ---- dead values ----------------------------------------------------------------------------

  // After a use by a recompute. Without eager eviction what was remade stays until its bytes are needed.
  void ReleaseRegenerated(ValueId v) {
    if (options_.evicts_eagerly) ReleaseIfDead(v);
  }

  void ReleaseIfDead(ValueId v) {
    if (residency_.reads_left(v) > 0 || memory_.is_pinned(v) || memory_.is_reserved(v) || !residency_.is_resident(v) ||
        !program_.takes_budget(v)) {
      return;
    }
    const Step need = cost_.NextNeedStep(v);
    if (need != NextNeed::kNoStep) {
      held_[need].push_back(v);
    } else if (residency_.CanRemake(v) || !residency_.IsSource(v)) {
      memory_.Release(v);
    }
  }

  // What can't be made again stays, dead, while something evicted would have to be made from it.
  void ReleaseFormerSources() {
    for (ValueId v : residency_.TakeFormerSources()) {
      if (!residency_.CanRemake(v)) ReleaseIfDead(v);
    }
  }

  // Before `op` overwrites a value that can't be made anew: whoever was made from it and is evicted, but
  // still needed, comes back now, and stays until it is done.
  bool SaveWhatIsOverwritten(OpId op, std::vector<ValueId>* saved) {
    for (ValueId w : program_.op_outputs[op]) {
      const ValueId overwritten = program_.value_in_place_of[w];
      if (overwritten == kNoValue) continue;
      if (residency_.MayRemake(overwritten) && !IsLostWhenOverwritten(overwritten)) continue;
      for (auto needed = residency_.NeededFrom(overwritten); !needed.empty();
           needed = residency_.NeededFrom(overwritten)) {
        const ValueId v = needed.front();
        if (!residency_.CanRemake(v) || !Execute(program_.value_producer[v], /*is_repeat=*/true)) return false;
        memory_.Pin(v);
        saved->push_back(v);
      }
    }
    return true;
  }

  const StepProgram& program_;
  const std::span<const OpId> order_;
  const CoopOptions options_;
  const ShareIndex shares_;
  const std::span<const Sharing> sharing_;     // per op
  std::vector<PassedOver> passed_over_;        // by step
  const std::vector<CostClass> class_of_;      // per op
  Residency residency_;
  EvictionCost cost_;
  CoopMemory memory_;
  CoopEviction eviction_;
  const double most_s_;                        // what all ops may cost together
  std::vector<uint8_t> is_pending_;            // per op: what it reads is reserved
  std::vector<std::vector<ValueId>> held_;     // per step: dead values to let go after it, if possible
  CoopResult result_;
};

}  // namespace

CoopResult PlanCoop(const StepProgram& program, std::span<const OpId> order, int64_t budget_bytes,
                    const CoopOptions& options) {
  std::vector<Sharing> sharing(program.num_ops(), Sharing::kFirstDead);
  for (int run = 1;; ++run) {
    Simulation simulation(program, order, budget_bytes, options, sharing);
    CoopResult result = simulation.Run();
    if (!result.is_feasible) return result;
    const std::vector<OpId> wrong = WronglyShared(program, result.schedule, simulation.passed_over());
    if (wrong.empty()) return result;
    for (OpId op : wrong) sharing[op] = Sharing::kFirstGivesUp;
    if (run == kMaxRuns) sharing.assign(sharing.size(), Sharing::kFirstIfDead);
  }
}

}  // namespace coopjax
