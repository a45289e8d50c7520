// What every buffer costs to make again, and the order of buffers by it.
//
// A value is wanted again at the latest where the order reads it last. What is live there, the value itself and its
// siblings apart, comes for free; the rest of what its op reads has to come back first, ancestor by ancestor, each
// once. Its recompute cost is the modelled time of all those ops: the rule kChain of planners/coop/recompute_cost.h,
// for a value that was not held until its last read, while all others were.
//
// O(ops) for the live ranges, then O(chain) per value; chains of more than `kLongestChain` ops count as endless.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "program/step_program.h"

namespace coopjax {

inline constexpr double kNeverRemade = std::numeric_limits<double>::infinity();
inline constexpr int32_t kLongestChain = 1000;

struct RemakeCosts {
  // Per value. kNeverRemade: it takes no budget, its op or an ancestor's may not run twice, or the chain is endless.
  std::vector<double> seconds;
  // Per value: its place in the order by seconds per byte, 0 for the cheapest byte; -1 where it is never remade.
  std::vector<int32_t> rank;
};

// `order` is a valid schedule without repeats.
RemakeCosts ComputeRemakeCosts(const StepProgram& program, std::span<const OpId> order);

// The two ends of the arena (planners/coop/arena_groups.h): cheap are the ops whose outputs' bytes rank in the lower
// half of the budgeted bytes. 1 is expensive, as CoopOptions::op_is_expensive has it.
std::vector<uint8_t> ExpensiveOps(const StepProgram& program, const RemakeCosts& costs);

}  // namespace coopjax
