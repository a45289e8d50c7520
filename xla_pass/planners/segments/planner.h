// Rematerialization of large programs (10^4 to 10^6 ops) under a budget of live bytes, in near-linear time.
//
//  1. HillSearch lowers the hills of the order, then, where remakes stand above the budget themselves, the
//     hills of what came out, level by level: recursive checkpointing. That for several lengths of segments; the
//     cheapest outcome wins.
//  2. Repeats that the budget has room to do without are taken out (RemoveUnneededRepeats).
//  3. Polishing: proposals for more than the budget are lowered to it by exact single moves (Lowering). What a remake
//     adds near the top of a hill then costs a few moves there, and not a higher price everywhere. The bare order is
//     one of these proposals: where values are read far from where they are made, segments have little to offer.
//
// Ours; not from a paper. O((steps + reads) x prices tried), and the cuts, each kind of segment solved once a price;
// polishing takes a few thousand of the allowance's steps per op.
#pragma once

#include <cstdint>
#include <span>

#include "base/allowance.h"
#include "program/step_program.h"

namespace coopjax {

struct SegmentOptions {
  int32_t num_rounds = 14;        // of bisection per hill and level
  int32_t max_levels = 6;
  bool clean_up = true;           // take out repeats that the budget has room for
  int32_t max_polished_ops = 2'000'000;   // longer programs are not polished
  int64_t max_trials = 100'000'000;   // moves tried in polishing
  int64_t max_steps = 6 * kDefaultSteps;
  double stop_at_cost_s = 0;      // of repeats: a plan that costs no more is good enough
};

struct SegmentResult {
  Schedule schedule;
  bool is_feasible = false;
  bool is_cut_short = false;
  int64_t first_plan_steps = 0;   // after which the first schedule under the budget was there; 0: there is none
  int64_t evaluations = 0;        // schedules built and measured
  int64_t segments = 0;           // of all levels
  int64_t kinds = 0;              // different ones
  int64_t cuts = 0;               // minimum cuts solved
  int64_t removals = 0;           // repeats taken out by the clean-up
  int64_t moves = 0;              // taken by polishing
};

// `order` is a valid schedule without repeats. When the steps are up, the best so far. When the budget is not reached
// the schedule is the one nearest to it.
SegmentResult PlanSegments(const StepProgram& program, std::span<const OpId> order, int64_t budget_bytes,
                           const SegmentOptions& options);

}  // namespace coopjax
