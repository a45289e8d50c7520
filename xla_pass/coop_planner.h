// Coop (Zhang et al., "Coop: Memory is not a Commodity", NeurIPS 2023), as a planner over a static order.
//
// The order is simulated in one Arena of the budget's size. When an allocation finds no hole, the
// cheapest contiguous window of values is evicted (CheapestWindow), cost being recompute seconds over
// staleness. A read of an evicted value runs its op again, evicted ancestors first; ancestors that no
// op of the order still reads go as soon as they have served. Cheap values (by cost density, seconds
// per byte) and expensive ones grow from opposite ends of the arena, so that windows of cheap values
// form. In-place ops keep their address. DTR and DTE are the same simulation with another eviction.
//
// What differs from OneFlow: the two faults of its window search are gone (arena.h); cost density
// decides what is cheap instead of a list of ops; a value whose inputs are about to be overwritten is
// made again in time, where an eager runtime would forbid the eviction; thrashing ends at `max_overhead`.
// `knows_future` (ours): a static order knows when a value is wanted next, itself or to remake what was
// made from it. The distance to that replaces staleness, and a value that is no longer read stays, as
// a source of recomputes, until its bytes are needed.
//
// Weaknesses: greedy and without look-ahead into the backward order; windows are whole values.
// O(steps + failed allocations x pieces), times the fan-in for neighbourhood costs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "recompute_cost.h"
#include "step_program.h"

namespace coopjax {

enum class EvictionRule : uint8_t {
  kWindow = 0,   // Coop: a contiguous window, cost / staleness
  kDtr = 1,      // DTR: one value at a time, cost / (staleness x size)
  kDte = 2,      // MegTaiChi's DTE: as DTR, with the holes beside the value counted into its size
};

struct CoopOptions {
  EvictionRule eviction = EvictionRule::kWindow;
  CostRule cost = CostRule::kNeighbours;
  bool partitions_by_density = true;   // off: everything grows from the low end
  double cheap_below_s_per_byte = 0;   // density of cheap values; 0: the program's median, by bytes
  bool recomputes_in_place = true;     // off: a value that is overwritten or overwrites is never evicted
  bool knows_future = true;            // off: as the paper
  int64_t alignment_bytes = 64;        // XLA:CPU's; 512 in OneFlow
  double max_overhead = 4;             // recompute over the program's own cost: beyond it, give up
};

struct CoopCounters {
  int64_t evictions = 0;
  int64_t searches = 0;                // failed allocations (kWindow), evicted values (kDtr, kDte)
  int64_t candidates = 0;              // costs evaluated
  double fragmentation = 0;            // mean over searches of free bytes / arena when a hole was found
};

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
  int64_t failed_bytes = 0;
  CoopCounters counters;
};

// `order` is a valid schedule without repeats.
CoopResult PlanCoop(const StepProgram& program, std::span<const OpId> order, int64_t budget_bytes,
                    const CoopOptions& options);

}  // namespace coopjax
