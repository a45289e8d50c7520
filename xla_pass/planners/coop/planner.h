// Coop (Zhang et al., "Coop: Memory is not a Commodity", NeurIPS 2023), as a planner over a static order.
//
// The order is simulated in one Arena of the budget's size. When an allocation finds no hole, the
// cheapest contiguous window of values is evicted (planners/coop/window_search.h), cost being recompute seconds over
// staleness (planners/coop/eviction_cost.h). A read of an evicted value runs its op again, evicted ancestors first;
// those that no op of the order still reads go as soon as they have served. Cheap values (by cost density,
// seconds per byte, or by a list of ops) and expensive ones grow from opposite ends of the arena or of its
// regions (planners/coop/arena_groups.h), so that windows of cheap values form. In-place ops keep their address. Small
// requests have an area of their own. What may not run twice (random ops, side effects) is never evicted.
// DTR and DTE are the same simulation with another eviction (planners/coop/eviction.h).
//
// What differs from OneFlow: the faults of its window search are gone (planners/coop/window_search.h); a value whose
// inputs are about to be overwritten is made again in time, where an eager runtime would forbid the
// eviction; what pending recomputes will read is spared, as there, but goes when nothing else can;
// thrashing ends at `max_overhead`; costs of earlier searches serve as bounds.
// Which input leaves its buffer to an output (may_share) depends on evictions still to come; where a simulation
// guessed wrong, it is run again with fewer guesses, at most nine times. Counters are those of the last run.
// `knows_future` (ours): a static order knows when a value is wanted next, itself or to remake what was
// made from it. The distance to that replaces staleness, and a value that is no longer read stays, as
// a source of recomputes, until its bytes are needed.
//
// Weaknesses: greedy and without look-ahead into the backward order; windows are whole values.
// O(steps + failed allocations x pieces), plus the recomputed chains.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planners/coop/options.h"
#include "program/step_program.h"

namespace coopjax {

// Where one production of a temporary value lies in the arena.
struct Placement {
  ValueId value;
  Step step;                           // of the production, in the schedule
  int64_t offset;
};

struct CoopResult {
  Schedule schedule;                   // the given order when infeasible
  std::vector<Placement> placements;
  bool is_feasible = false;
  Step failed_step = -1;               // of the given order: the allocation that could not be met
  int64_t failed_bytes = 0;            // 0: the overhead was too much, or a value was lost
  CoopCounters counters;
};

// `order` is a valid schedule without repeats.
CoopResult PlanCoop(const StepProgram& program, std::span<const OpId> order, int64_t budget_bytes,
                    const CoopOptions& options);

}  // namespace coopjax
