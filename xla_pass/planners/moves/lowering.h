// Lowers one schedule to a budget by greedy moves on an exact model, and cleans it up.
//
// Lower() takes the move (DropMoves) that saves most potential (ExcessCurve) per modelled second until
// nothing is above the budget. CleanUp() takes out repeats that the budget does not need, the most
// expensive first. Swap() takes out repeats that it does need and keeps what cheaper moves make of it.
// A trial costs O(edits log edits + steps they span), a move taken O(steps + uses).
#pragma once

#include <cstdint>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "planners/moves/drop_moves.h"
#include "planners/moves/editable_schedule.h"
#include "planners/moves/effort.h"
#include "planners/moves/excess_curve.h"
#include "program/step_program.h"

namespace coopjax {

class Lowering {
 public:
  // `program`, `effort` and `counters` must outlive this; `start` is a valid schedule.
  Lowering(const StepProgram& program, std::span<const OpId> start, int64_t budget_bytes, bool is_squared,
           bool merges_repeats, Effort* effort, MoveCounters* counters);
  Lowering(const Lowering&) = delete;

  const Schedule& schedule() const { return schedule_.schedule(); }
  bool is_feasible() const { return curve_.total() <= 0; }

  // Starts over from another valid schedule.
  void Reset(std::span<const OpId> start);
  // Takes moves until nothing is above the budget, no move helps, or they have cost `cost_limit_s`.
  void Lower(double cost_limit_s);
  void CleanUp();
  void Swap();
  // Takes out the repeats at `steps`, with what is made for them alone, whatever that does to the budget. Returns the
  // seconds saved.
  double TakeOut(std::span<const Step> steps);
  // From now on moves are scored with luck: each value's score is multiplied by up to e^spread, or divided.
  void SetLuck(uint64_t seed, double spread);

 private:
  struct Move {
    Gap gap;
    DeadOperands dead = DeadOperands::kRemake;
    bool merges_repeats = false;
    double delta = 0;        // of the potential
    double per_second = 0;   // potential lowered per modelled second; 0: no gain
    double cost_s = 0;
    double later = 0;        // what moves may score that were not tried as long as others score more
  };
  struct Candidate {
    double per_second;
    ValueId value;
    int32_t version;
    bool operator<(const Candidate& other) const {
      return per_second != other.per_second ? per_second < other.per_second : value > other.value;
    }
  };

  int64_t Unit(int64_t budget_bytes) const;
  double Luck(ValueId v) const;
  void Commit();
  // Ops that run more than once, the most expensive first.
  std::vector<OpId> RepeatedOps() const;
  // Calls `visit` with the key of each occurrence of `op` but the first, from the last; `visit` may remove.
  template <typename Visitor>
  void ForEachRepeat(OpId op, const Visitor& visit);
  bool TryTakeOut(OpId op, Key key);
  bool TrySwap(OpId op, Key key);
  template <typename Visitor>
  void ForEachGap(ValueId v, const Visitor& visit) const;
  Move BestMove(ValueId v, double rival, double most_s);
  bool TryGap(const Gap& gap, double slope, double rival, Move* best);
  bool TryMove(Move move, const DropMoves::Chain& chain, Move* best);
  void Push(ValueId v);
  void Take(const Move& move);

  const StepProgram& program_;
  const bool merges_repeats_;
  EditableSchedule schedule_;
  ExcessCurve curve_;
  DropMoves moves_;
  Effort& effort_;
  MoveCounters& counters_;
  double kept_delta_ = 0;                // of the moves taken since the last commit, about
  double least_cost_s_ = 0;              // a free move is not infinitely good
  OpId shunned_ = kNoOp;                 // the op that a swap is trying to do without
  uint64_t luck_seed_ = 0;
  double luck_spread_ = 0;
  std::vector<std::pair<Gap, double>> gaps_;   // scratch of BestMove: with the slope of what dropping gains
  std::priority_queue<Candidate> queue_;
  std::vector<int32_t> version_;
};

}  // namespace coopjax
