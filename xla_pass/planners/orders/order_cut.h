// Orders by minimum cuts, and bytes that no order without recomputes avoids.
//
// The live bytes after a set of ops that is closed under predecessors (a "down-set") are a submodular function
// of the set. So for any op, the down-set before it with the fewest live bytes is a minimum cut, and the bytes
// at the op's step are then a lower bound on the peak of every order.
//
// The cut is also a plan: first the ops of the set, then the op, then the rest. ReorderByCuts takes some
// order, cuts at the op of its peak, moves the set before the op (what moves keeps its order among itself),
// and goes on with the next peak, within the pieces that earlier cuts left. A descent ends when the peak meets
// the bound, or stands at an op that is a piece of its own; then the next descent cuts at that op first.
// Each cut is a maximum flow over the ops that the op is not ordered with, mostly few.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/allowance.h"
#include "program/step_program.h"

namespace coopjax {

struct OrderCutOptions {
  int32_t max_cuts = 400;            // in one descent
  int32_t max_descents = 12;
  double relative_gap = 0;           // a peak this close above the bound is good enough
  int64_t bound_bytes = 0;           // a bound that is known already
  int64_t max_steps = kDefaultSteps;
};

struct OrderCutResult {
  Schedule schedule;                 // never worse than the one given
  int64_t peak_bytes = 0;
  // No order without repeats has a smaller peak. Of an op's outputs the first may share one input, as the best case
  // has it; what the others may share is credited in full.
  int64_t bound_bytes = 0;
  // The ops at which descents ended, the last one first: lowering the bytes at one raises them at another.
  std::vector<OpId> stuck_at;
  int32_t num_cuts = 0;
  bool is_cut_short = false;
};

// `order` is a valid one without repeats.
OrderCutResult ReorderByCuts(const StepProgram& program, std::span<const OpId> order, const OrderCutOptions& options);

}  // namespace coopjax
