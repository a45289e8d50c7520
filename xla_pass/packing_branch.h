// Branch and bound over canonical packings.
//
// Every packing can be pushed down until each block rests on the floor or on another block, and the blocks can
// then be listed by offset. The search places blocks in that order, each at the lowest offset that those
// before it leave; offsets never fall. (After M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for
// Hardware-Accelerated Machine Learning", ASPLOS 2023.) It cuts a branch when
//  * a step of time can't hold what is live at it: the least offset of its unplaced blocks plus their sizes
//    exceeds the capacity;
//  * another block would fit wholly below the one to be placed (the packing could be pushed down further);
//  * a block that was tried at its least offset without success has nothing left to rest on above it: from then
//    on it is known to lie on an unplaced block.
// Blocks that no unplaced block connects in time are packed one group after the other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing_core.h"

namespace coopjax {

enum class BranchOutcome : uint8_t {
  kFound = 0,
  kNone = 1,                           // there is no packing within the capacity
  kStopped = 2,                        // the effort ran out first
};

// Looks for a packing of `core` within `capacity`. Among blocks at one offset the one of smaller `rank` comes
// first. On success `*offsets`, by member, holds it.
BranchOutcome BranchAndBound(const PackingCore& core, int64_t capacity, std::span<const int32_t> rank,
                             SearchEffort* effort, std::vector<int64_t>* offsets);

}  // namespace coopjax
