// Branch and bound over canonical packings.
//
// Every packing can be pushed down until each block rests on the floor or on another block. (After M. D. Moffitt,
// "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning", ASPLOS 2023.) The search
// keeps the least offset that is left to each block. It takes an unplaced block that no unplaced neighbour in time is
// below, and places it at its least offset; its neighbours then lie above it. Where that leads nowhere, the block is
// known to lie on an unplaced one. A branch is cut when
//  * the unplaced blocks of a step of time can't be stacked below the capacity, none below its least offset;
//  * a block that was tried in vain has nothing to rest on, or nothing is left to fill the place where it was tried
//    (the packing could be pushed down).
// A block that can't be the lowest unplaced one of a step of time, for want of room above it, lies on one that can.
//
// The block taken is the lowest of all; once steps of time have failed, it is one at the step that failed most often:
// what is wrong is there, not where the search happens to be. (After F. Boussemart et al., "Boosting Systematic Search
// by Weighting Constraints", ECAI 2004.) Blocks that no unplaced block connects in time are packed one group after the
// other.
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

// About as many steps as a walk down the tree takes. O(sections).
int64_t StepsOfWalk(const PackingCore& core);

// The small blocks of a core, packed by themselves to hang from the ceiling.
struct HungBlocks {
  std::vector<int64_t> below_ceiling;  // by member: how far below the capacity its offset is, 0: not hung; or empty
  int64_t least_capacity = 0;          // below it some step of time can't hold what is hung and the others
};

// Hangs the rectangles of at most `most_bytes` by the greedy packer that leaves most room below; none when all blocks
// are that small or the core has obstacles. O(greedy packers of packing/packing.h + entries of sections).
HungBlocks HangSmall(const PackingCore& core, int64_t most_bytes);

}  // namespace coopjax
