// Improves a plan by tearing parts of it out and lowering what is left anew, with some luck.
//
// Large-neighbourhood search (Shaw, "Using constraint programming and local search methods to solve vehicle routing
// problems", CP 1998) over repeats: a round takes out a few repeats that stand together in the schedule or depend on
// each other, lowers the rest to the budget by moves whose scores are disturbed at random (Lowering), cleans up, and
// keeps the outcome if it is not worse. A round costs O(steps + uses) per move taken.
#pragma once

#include <cstdint>
#include <span>

#include "planners/improve/search.h"
#include "program/step_program.h"

namespace coopjax {

// Work is steps and moves looked at, about.
using NeighbourhoodOptions = ImproveOptions</*kMaxWork=*/2'000'000, /*kPatience=*/400>;

// `start` is a valid schedule; the result is one that is not worse: fewer bytes above the budget, then fewer
// modelled seconds, then a lower peak.
ImproveResult SearchNeighbourhood(const StepProgram& program, std::span<const OpId> start, int64_t budget_bytes,
                                  const NeighbourhoodOptions& options);

}  // namespace coopjax
