// Rematerialization under a budget of live bytes: the planner that the others are measured against.
//
// Two ideas, in turn:
//  1. Where to hold and where to remake, globally: HoldCut (a minimum cut per round, prices of steps as
//     Lagrange multipliers) proposes schedules from cheap and too large to small and expensive.
//  2. Locally and exactly: from a proposal, or from the bare order, moves on an EditableSchedule lower
//     the bytes above the budget, the one that saves most potential (ExcessCurve) per modelled second
//     first, with the recompute chain's own bytes and cost counted. Then repeats that the budget does
//     not need are taken out, the most expensive first, and repeats are swapped for cheaper ones.
// The cheapest feasible outcome wins. Ours; not from a paper. O(steps) per move taken.
#pragma once

#include <cstdint>
#include <span>

#include "base/allowance.h"
#include "planners/moves/effort.h"
#include "program/step_program.h"

namespace coopjax {

struct PeakOptions {
  double exponent = 2;          // of the excess in the potential; 1 or 2
  int32_t num_price_rounds = 24;   // proposals by HoldCut; 0: greedy from the bare order only
  bool merge_repeats = true;    // a chain may take over the work of later repeats of its ops
  bool clean_up = true;         // take out repeats that the budget does not need
  bool swap = true;             // try to replace each repeat by cheaper ones
  int64_t max_trials = 1000000; // moves tried; half as many again to find the smallest peak
  int64_t max_steps = kDefaultSteps;
};

struct PeakResult {
  Schedule schedule;
  bool is_feasible = false;
  bool is_cut_short = false;
  MoveCounters counters;
};

// `order` is a valid schedule. When the budget is not reached the schedule is the one nearest to it.
PeakResult PlanPeak(const StepProgram& program, std::span<const OpId> order, int64_t budget_bytes,
                    const PeakOptions& options);

}  // namespace coopjax
