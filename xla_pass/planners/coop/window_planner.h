// Coop's rule (Zhang et al., "Coop: Memory is not a Commodity", NeurIPS 2023, algorithm 1) over a buffer assignment
// that is given, XLA's own say, instead of a simulated allocator.
//
// While live bytes pass the budget: at the step of the peak, the cheapest window of values that lie contiguously
// (planners/coop/window_search.h) is evicted together, cost being the seconds of the recompute chain, evicted ancestors
// included, over staleness: the modelled seconds since the value was last read. Each comes back right before its next
// read. The room asked for is the largest single value that could go, or what is missing if that is less, so a window
// is one large value or a run of cheaper ones beside each other.
//
// What differs from the paper: holes of the assignment count for nothing (XLA packs anew what is left); no request
// fails, it is the peak that asks; what was made again counts as back in its place; when the budget holds, repeats
// that it does not need are taken out again.
//
// Weaknesses: greedy; offsets are those of the program without recompute, and the packer need not keep neighbours
// together. O(steps) per value evicted, plus the chains.
#pragma once

#include <cstdint>
#include <span>

#include "program/step_program.h"

namespace coopjax {

struct WindowResult {
  Schedule schedule;  // the nearest to the budget that was reached
  bool is_feasible = false;
  int32_t num_windows = 0;
  int32_t num_evicted = 0;  // values, one that goes twice twice
};

// `order` is a valid schedule without repeats. `offsets` has one entry per value: where it lies in the memory of the
// temporaries, or -1 for a value that must stay.
WindowResult PlanWindows(const StepProgram& program, std::span<const OpId> order, std::span<const int64_t> offsets,
                         int64_t budget_bytes);

}  // namespace coopjax
