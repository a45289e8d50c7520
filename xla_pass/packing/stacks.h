// Blocks of one lifetime, stacked on each other and packed as one.
//
// A search that has failed with such blocks in one order goes on to fail with them in the others. As one block they
// have one order. Some packings are lost, so that there is none of the stacks proves nothing about the blocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/core.h"

namespace coopjax {

// Indices by member are those of the core that was stacked.
struct PackingStacks {
  PackingBlocks blocks;                // the stacks, blocks that are alone among them, by lower
  std::vector<int32_t> stack_of;       // [member]; blocks
  std::vector<int64_t> height_in;      // [member]: how far above its stack's offset it lies

  // By member, for an offset of each stack.
  std::vector<int64_t> Unstack(std::span<const int64_t> stack_offsets) const;
};

// Stacks the rectangles of one lifetime and one alignment; none where something fixed is in the way of the core, which
// may have its place between two of them. O(members log members).
PackingStacks StackBlocks(const PackingCore& core);

}  // namespace coopjax
