// Orders that pack well: local search over the order of ops with XLA's own heap as the judge.
//
// Two orders of the same live peak may pack into heaps of different sizes: XLA places buffers one by one, large or
// long-lived ones first, and where that leaves a hole of the wrong size nothing is moved again. One op a little earlier
// or later often closes it. So ops are moved at random within what their dependences allow, a few at a time, and an
// outcome is kept if no more bytes lie above the target than before, or as many and the buffers no higher together: the
// heap's size alone would not say how near a trial came. Acceptance of worse outcomes (annealing, late acceptance) only
// slowed this down.
//
// What the judge takes is what a trial costs, so effort is bounded by the number of trials.
#pragma once

#include <cstdint>
#include <functional>

#include "base/allowance.h"
#include "program/step_program.h"

namespace coopjax {

struct OrderHeap {
  int64_t temp_bytes = 0;
  int64_t least_bytes = 0;  // no packing of this order's buffers takes less
  int64_t over_bytes = 0;  // of buffers, or parts of them, that lie above the target; summed up
  double height = 0;  // bytes times offset, summed up over the buffers
};

using HeapJudge = std::function<OrderHeap(const Schedule& order, int64_t target_bytes)>;

struct PackedOrderOptions {
  int64_t target_bytes = 0;  // temporary bytes that are good enough
  int32_t max_trials = 2000;
  uint64_t seed = 1;
  int64_t max_steps = kDefaultSteps / 2;
};

struct PackedOrder {
  Schedule order;
  OrderHeap heap;
  int32_t num_trials = 0;
};

// `start` is a valid order of the program without repeats; the result is one that takes no more temporary bytes.
PackedOrder SearchPackedOrder(const StepProgram& program, const Schedule& start, const HeapJudge& judge,
                              const PackedOrderOptions& options);

}  // namespace coopjax
