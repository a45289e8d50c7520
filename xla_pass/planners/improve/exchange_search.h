// Improves a plan by exchanging many moves at once: a knapsack over all that could be changed.
//
// Where layers repeat, a plan is a choice per layer of what to hold, and all choices meet at the few steps where the
// budget binds. A search that takes moves one by one stops at a plan that only several moves together improve: three
// repeats taken out for one long chain put in. So a round lists the moves of the plan (take out a repeat; drop a value
// across a gap), each with the seconds that it saves and the bytes that it adds at watched steps, and looks for the set
// of independent moves that saves most and fits, by annealing on the list alone: millions of flips a second, because
// nothing is scheduled. The set is then carried out, judged by exact liveness, repaired (Lowering) where moves were
// not as independent as they looked, and kept if the plan is not worse. Rounds go on from plans that are as good.
//
// A round costs O(moves tried * (edits + steps they span) + flips * watched steps that differ).
#pragma once

#include <cstdint>
#include <span>

#include "planners/improve/search.h"
#include "program/step_program.h"

namespace coopjax {

// Work is flips and trials.
using ExchangeOptions = ImproveOptions</*kMaxWork=*/3'000'000, /*kPatience=*/8>;

// `start` is a valid schedule; the result is one that is not worse: fewer modelled seconds within the budget. A start
// above the budget comes back as it is.
ImproveResult SearchExchanges(const StepProgram& program, std::span<const OpId> start, int64_t budget_bytes,
                              const ExchangeOptions& options);

}  // namespace coopjax
