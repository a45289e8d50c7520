// Improves a plan by tearing parts of it out and lowering what is left anew, with some luck.
//
// Large-neighbourhood search (Shaw, "Using constraint programming and local search methods to solve vehicle routing
// problems", CP 1998) over repeats: a round takes out a few repeats that stand together in the schedule or depend on
// each other, lowers the rest to the budget by moves whose scores are disturbed at random (Lowering), cleans up, and
// keeps the outcome if it is not worse. A round costs O(steps + uses) per move taken.
#pragma once

#include <cstdint>
#include <span>

#include "planners/peak/planner.h"
#include "program/step_program.h"

namespace coopjax {

struct NeighbourhoodOptions {
  int64_t max_work = 2'000'000;   // steps and moves looked at, about: bounds the effort the same on every machine
  int32_t patience = 400;         // rounds without a better plan before it is given up
  double stop_at_cost_s = 0;      // a bound: at this cost nothing is left to gain
  uint64_t seed = 1;
  double time_limit_s = 10;
};

struct NeighbourhoodResult {
  Schedule schedule;
  int64_t rounds = 0;
  int64_t improvements = 0;
  bool timed_out = false;
};

// `start` is a valid schedule; the result is one that is not worse: fewer bytes above the budget, then fewer
// modelled seconds, then a lower peak. Deterministic unless the time limit strikes.
NeighbourhoodResult SearchNeighbourhood(const StepProgram& program, std::span<const OpId> start, int64_t budget_bytes,
                                        const NeighbourhoodOptions& options);

}  // namespace coopjax
