#include "packing/stacks.h"

#include <map>
#include <tuple>

namespace coopjax {

std::vector<int64_t> PackingStacks::Unstack(std::span<const int64_t> stack_offsets) const {
  std::vector<int64_t> offsets(stack_of.size());
  for (size_t m = 0; m < offsets.size(); ++m) offsets[m] = stack_offsets[stack_of[m]] + height_in[m];
  return offsets;
}

PackingStacks StackBlocks(const PackingCore& core) {
  PackingStacks stacks;
  auto& [blocks, segments, block_of] = stacks.blocks;
  std::map<std::tuple<int32_t, int32_t, int64_t>, int32_t> stack_at;
  for (int32_t m = 0; m < core.size(); ++m) {
    const PackingBlock& block = core.block(m);
    const auto outline = core.blocks->of(core.members[m]);
    auto stack = static_cast<int32_t>(blocks.size());
    if (outline.size() == 1 && core.obstacles.empty()) {
      stack = stack_at.try_emplace({block.lower, block.upper, block.alignment}, stack).first->second;
    }
    stacks.stack_of.push_back(stack);
    if (stack < std::ssize(blocks)) {
      const int64_t height = AlignUp(blocks[stack].size, block.alignment);
      stacks.height_in.push_back(height);
      blocks[stack].size = segments[blocks[stack].first_segment].size = height + block.size;
      continue;
    }
    stacks.height_in.push_back(0);
    blocks.push_back(block);
    blocks.back().first_segment = static_cast<int32_t>(segments.size());
    segments.insert(segments.end(), outline.begin(), outline.end());
    blocks.back().end_segment = static_cast<int32_t>(segments.size());
  }
  return stacks;
}

}  // namespace coopjax
