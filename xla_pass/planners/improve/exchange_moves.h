// The moves of a plan as items of a knapsack: what each saves, and what it takes at steps near the budget.
//
// Two kinds of move: take out a repeat, with what is made for it alone; drop a value across a gap and make it again
// (DropMoves), at several rates of holding against remaking, with and without taking over later repeats. Bytes are
// watched at the highest steps of the plan, and at steps where a choice turned out to be above the budget.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planners/improve/exchange_knapsack.h"
#include "planners/moves/drop_moves.h"
#include "planners/moves/editable_schedule.h"
#include "planners/moves/effort.h"
#include "planners/moves/excess_curve.h"
#include "program/step_program.h"

namespace coopjax {

class ExchangeMoves {
 public:
  // `program`, `effort` and `counters` must outlive this.
  ExchangeMoves(const StepProgram& program, int64_t budget_bytes, Effort* effort, MoveCounters* counters);

  // Lists the moves of a schedule that is valid and within the budget; each one tried counts as a trial.
  // O(moves * (edits + steps they span)).
  void List(std::span<const OpId> schedule);

  const std::vector<ExchangeItem>& items() const { return items_; }
  const std::vector<double>& room() const { return room_; }   // bytes free at each watched step

  // The schedule that a choice leads to; empty if its moves were in each other's way.
  Schedule CarryOut(const ExchangeChoice& choice);
  // Watches the worst step of every run of steps of that schedule that are above the budget.
  void WatchExcess(const ExchangeChoice& choice);

 private:
  // What can be done to a plan: take out a repeat, or drop a value across a gap.
  struct Move {
    OpId removed = kNoOp;        // the repeat to take out, at `key`; kNoOp for a drop
    Key key = 0;
    Gap gap = {};
    double rate = 0;             // what to pay for holding instead of remaking: potential per second
    bool merges_repeats = false;
    std::vector<OpId> ops = {};  // that it takes out or puts in, ascending
  };

  void Watch();
  double BytesPerSecond() const;
  void ListDrops(ValueId v);
  DropMoves::Outcome Apply(const Move& move);
  double MergeOperands(double rate);
  double MergeOperand(ValueId v, Key key, double rate);
  DropMoves::Outcome Try(Move move);
  bool IsWorthwhile(const ExchangeItem& item);
  void FindConflicts();
  void KeepEdited();
  void WatchKey(Key key, int64_t free_bytes, const ExchangeChoice& choice);

  const StepProgram& program_;
  const int64_t budget_;
  Effort& effort_;
  MoveCounters& counters_;
  EditableSchedule schedule_;
  ExcessCurve curve_;
  ExcessCurve tight_curve_;           // prices the steps near the budget
  DropMoves drops_;
  double rate_ = 0;                   // what holding is worth: potential per second
  double least_rate_ = 0;             // bytes per second
  std::vector<Key> watched_;          // the plan's own steps
  std::vector<double> room_;
  std::vector<Move> list_;
  std::vector<ExchangeItem> items_;   // parallel to list_
  std::vector<std::vector<EditableSchedule::Change>> changes_;   // of live bytes; parallel to list_
  std::vector<Key> edited_keys_;      // of `edited_`, in the keys of `schedule_`
  Schedule edited_;
};

}  // namespace coopjax
