// A search for the smallest heap, or for one within a capacity.
//
// The greedy packers of packing/packing.h come first, in all their orders. What is above the bytes that no packing
// avoids is then searched, one time component after the other, the highest first: what is easy is put aside
// (packing/core.h), the rest goes to branch and bound (packing/branch.h) in many short rounds and few long ones, under
// several orders of preference, with and without blocks of one lifetime stacked (packing/stacks.h), with and without
// the tiny blocks hung from the ceiling, at the bound and at capacities bisected above it, and now and then to
// annealing over the order of placement (packing/anneal.h). The search is anytime: it starts from a valid packing and
// keeps the best. It ends at fragmentation 0, with a proof, or when its effort is spent. Same problem, same options,
// same packing.
#pragma once

#include <cstdint>

#include "packing/packing.h"

namespace coopjax {

struct PackingSearchOptions {
  int64_t effort = 2'000'000'000;      // elementary steps (a conflicting buffer looked at)
  bool peels = true;                   // puts easy blocks aside
  bool branches = true;                // branch and bound
  bool anneals = true;                 // annealing
  uint64_t seed = 0;                   // of the orders drawn at random
};

enum class PackingStatus : uint8_t {
  kOptimal = 0,                        // no smaller heap exists
  kFeasible = 1,                       // valid, and within the capacity where there is one; nothing is proven
  kInfeasible = 2,                     // no packing within the capacity exists; the one returned exceeds it
  kEffortSpent = 3,                    // valid but not proven smallest, or above the capacity
};

struct PackingSearchResult {
  Packing packing;                     // valid in every case
  PackingStatus status = PackingStatus::kOptimal;
  int64_t lower_bound = 0;             // bytes below which no packing exists
  int64_t effort = 0;                  // steps taken
};

// Without a capacity, the smallest heap; with one, the first packing within it. The problem must be well formed.
PackingSearchResult SearchPacking(const PackingProblem& problem, const PackingSearchOptions& options);

}  // namespace coopjax
