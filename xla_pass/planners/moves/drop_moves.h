// The moves of the greedy planner: drop a value across a gap between two reads and make it again just
// before the later one; take out a repeat that need not be there.
//
// A move is applied to an EditableSchedule as uncommitted edits; the caller looks at what it does to the
// ExcessCurve and either commits or undoes.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "planners/moves/editable_schedule.h"
#include "planners/moves/excess_curve.h"

namespace coopjax {

// `value`, made at `made`, is touched at `last`, then not until the read at `next`.
struct Gap {
  ValueId value = kNoValue;
  Key made = 0;
  Key last = 0;
  Key next = 0;
};

// What to do with an operand of a recompute that died before the gap ends.
enum class DeadOperands : uint8_t {
  kRemake,      // make it again too
  kAtRate,      // hold it when that is cheaper than its op, at the going rate
  kHold,        // hold it
};

class DropMoves {
 public:
  // Both must outlive this.
  DropMoves(EditableSchedule* schedule, const ExcessCurve* curve);

  // What a second is worth in potential: the score of the last move taken.
  void set_going_rate(double potential_per_second) { going_rate_ = potential_per_second; }

  // What must run to bring a value back at the end of its gap, before anything is edited.
  struct Chain {
    bool is_possible = false;
    bool met_dead_operand = false;   // another DeadOperands could have led elsewhere
    bool holds_at_rate = false;  // of kRemake and kAtRate: some dead operand is cheaper to hold, at the going rate
    bool remakes_at_rate = false;   // of kAtRate: and some other is not
    bool is_too_dear = false;    // it would cost more than the `most_s` last set
    bool may_delay = false;      // the first run may go, so that the move costs less
    bool may_merge = false;      // later repeats may go, too
    double cost_s = 0;
    double merged_s = 0;         // of these repeats
    double merged_price = 0;     // of holding what they make until then, about
    double held_price = 0;       // of the dead operands that are held: at most what that adds to the potential
  };
  Chain Follow(const Gap& gap, DeadOperands dead, bool merges_repeats);

  struct Outcome {
    bool is_possible = false;    // if not, there may be edits that the caller must undo
    double cost_s = 0;           // added; below 0 when repeats that it replaces cost more
    bool met_dead_operand = false;   // another DeadOperands could have led elsewhere
    bool has_merged = false;     // and so could not merging
    bool is_too_dear = false;    // the chain would cost more than allowed
  };
  // Drops across the gap. With `merges_repeats`, what comes back may serve later reads too, in place of their own
  // repeats.
  Outcome Drop(const Gap& gap, DeadOperands dead, bool merges_repeats);
  // As far as it was followed already: `chain` is the last one, of the same gap.
  Outcome Drop(const Gap& gap, const Chain& chain, bool merges_repeats);
  void set_most_cost(double most_s) { most_s_ = most_s; }

  // Takes out the repeat of `op` at `key` and what is made for it alone. False, without edits, when a
  // read would find nothing.
  bool TakeOut(OpId op, Key key, double* saved_s);

 private:
  bool NeedOp(OpId op, Key key);
  bool NeedValue(ValueId v, Key key);
  double HoldPrice(ValueId v, int32_t made, Key key) const;
  bool Hold(ValueId v, double price);
  void ForeseeMerges(const Gap& gap, Chain* chain) const;
  double RemoveIfDead(OpId op, Key key);
  double RemoveDeadInputs(OpId op, Key key);
  double MergeLater(OpId op, Key key);

  EditableSchedule& schedule_;
  const StepProgram& program_;
  const ExcessCurve& curve_;
  double going_rate_ = 0;
  double most_s_ = std::numeric_limits<double>::infinity();
  double chain_s_ = 0;                  // cost of the ops in `chain_` and on the way into it
  double held_price_ = 0;
  DeadOperands dead_ = DeadOperands::kRemake;
  bool has_dead_operand_ = false, holds_at_rate_ = false, remakes_at_rate_ = false;
  std::vector<uint8_t> guards_order_;   // per op: is somebody's control predecessor
  std::vector<uint8_t> in_chain_;       // per op
  std::vector<OpId> marked_;            // the ops in `in_chain_`
  std::vector<uint8_t> is_held_;        // per value: a dead operand of the chain
  std::vector<ValueId> held_;           // the values in `is_held_`
  std::vector<uint8_t> is_hopeless_;  // per op: can't be made again at this key; not to be tried on every path to it
  std::vector<OpId> hopeless_;  // the ops in `is_hopeless_`
  std::vector<OpId> chain_;  // what must run, operands first
};

}  // namespace coopjax
