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
//
// Thousands of tiny blocks among large ones make the floor uneven, and the search hopeless. They can be hung from the
// ceiling first, packed by themselves; the search then fills what is below them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/core.h"

namespace coopjax {

enum class BranchOutcome : uint8_t {
  kFound = 0,
  kNone = 1,                           // there is no packing within the capacity
  kStopped = 2,                        // the effort ran out first
};

struct BranchOptions {
  int64_t capacity = 0;
  std::span<const int32_t> rank;       // by member: among blocks at one offset the one of smaller rank comes first
  std::span<const int64_t> hung;       // by member: how far below the capacity it is hung, 0: not hung; or empty
};

// Looks for a packing of `core` within the capacity. On success `*offsets`, by member, holds it. kNone is a proof only
// where nothing is hung.
BranchOutcome BranchAndBound(const PackingCore& core, const BranchOptions& options, SearchEffort* effort,
                             std::vector<int64_t>* offsets);

// The small blocks of a core, packed by themselves to hang from the ceiling.
struct HungBlocks {
  std::vector<int64_t> below_ceiling;  // by member: how far below the capacity its offset is, 0: not hung; or empty
  int64_t least_capacity = 0;          // below it some step of time can't hold what is hung and the others
};

// Hangs the rectangles of at most `most_bytes` by the greedy packer that leaves most room below; none when all blocks
// are that small or the core has obstacles. O(greedy packers of packing/packing.h + entries of sections).
HungBlocks HangSmall(const PackingCore& core, int64_t most_bytes);

}  // namespace coopjax
