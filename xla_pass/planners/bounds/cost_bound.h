// What no schedule under a budget avoids paying: a lower bound on recompute cost, for any order and any repeats.
//
// Take an op o. When it runs for the first time, every op that it depends on has run and none that depends on it has.
// A value that a dependent of o reads later was then either made before and is live across o, so that its bytes
// stand in the budget next to o's own working set, or it is made after o. In that case its producer runs after o: a
// repeat, and paid, if o depends on it; free if not (that may be its first run). Either way the producer's inputs
// are in turn live across o or made after o. What must be so for the cheapest choice is a knapsack over a closure;
// with a price per byte in place of the budget it is a minimum cut, and
//   max over prices of  cut(price) - price * (budget - working set of o)
// is a Lagrangian bound, valid for every schedule by the rules of program/step_program.h. Values that can't be made
// again are held at any price; a value that o overwrites can't be held. The bound is the largest over a sample of ops
// (those that all others come before or after are among them), rounded up where every cost is a multiple of one unit.
//
// Not counted, so that the bound may be low: what the repeats themselves need while they run, and memory at more than
// one step at once. Near-linear: a fixed amount of work is spread over as many ops as it allows, at least a few.
#pragma once

#include <cstdint>
#include <limits>

#include "program/step_program.h"

namespace coopjax {

struct CostBoundOptions {
  int64_t max_work = 40'000'000;   // edges looked at, about; bounds the effort the same on every machine
  bool rounds_up = true;           // to a multiple of the costs' common unit, if there is one
};

struct CostBound {
  double cost_s = 0;               // infinite when no schedule holds the budget
  OpId op = kNoOp;                 // whose first run forces it; kNoOp for a bound of 0
};

CostBound ComputeCostBound(const StepProgram& program, int64_t budget_bytes, const CostBoundOptions& options = {});

// The largest unit of which the cost of every op that may run twice is a multiple, if it is the cost of one of them;
// otherwise 0. Recompute costs are multiples of it.
double CostUnit(const StepProgram& program);

}  // namespace coopjax
