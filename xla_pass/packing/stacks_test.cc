#include "packing/stacks.h"

#include <numeric>

#include "testing/expect.h"

namespace coopjax {
namespace {

PackingStacks Stack(const PackingBlocks& blocks) {
  std::vector<int32_t> all(blocks.blocks.size());
  std::iota(all.begin(), all.end(), 0);
  return StackBlocks(MakePackingCore(blocks, all));
}

TEST(BlocksOfOneLifetimeBecomeOne) {
  const PackingStacks stacks = Stack(MakePackingBlocks({{{0, 2, 3}, {0, 3, 5}, {0, 2, 4}, {0, 2, 1}}}));
  EXPECT_EQ(std::ssize(stacks.blocks.blocks), 2);
  EXPECT_EQ(stacks.blocks.blocks[0].size, 3 + 4 + 1);
  EXPECT_EQ(stacks.blocks.of(0)[0].size, 3 + 4 + 1);
  EXPECT_EQ(stacks.blocks.blocks[1].size, 5);
  EXPECT_TRUE((stacks.Unstack(std::vector<int64_t>{10, 0}) == std::vector<int64_t>{10, 0, 10 + 3, 10 + 3 + 4}));
}

// 3 bytes at multiples of 4, twice: the upper one begins at 4. What is at multiples of 2 stays apart.
TEST(StackedBlocksKeepTheirAlignment) {
  const PackingStacks stacks = Stack(MakePackingBlocks({{{0, 2, 3, 4}, {0, 2, 3, 4}, {0, 2, 3, 2}}}));
  EXPECT_EQ(std::ssize(stacks.blocks.blocks), 2);
  EXPECT_EQ(stacks.blocks.blocks[0].size, 4 + 3);
  EXPECT_TRUE((stacks.Unstack(std::vector<int64_t>{8, 16}) == std::vector<int64_t>{8, 12, 16}));
}

// Of 2 bytes, then 5: not a rectangle.
TEST(OutlinesAreNotStacked) {
  const PackingBuffer tied = {.lower = 2, .upper = 4, .size = 5, .same_offset_as = 0};
  const PackingStacks stacks = Stack(MakePackingBlocks({{{0, 2, 2}, tied, {0, 4, 3}, {0, 4, 3}}}));
  EXPECT_EQ(std::ssize(stacks.blocks.blocks), 2);
  EXPECT_EQ(std::ssize(stacks.blocks.of(0)), 2);
  EXPECT_EQ(stacks.blocks.of(0)[1].size, 5);
  EXPECT_EQ(stacks.blocks.blocks[1].size, 3 + 3);
}

// 2 bytes at 2 are taken: one block of 2 lies below them and one above.
TEST(NothingIsStackedAroundWhatIsFixed) {
  const PackingStacks stacks = Stack(MakePackingBlocks({{{0, 2, 2, 1, 2}, {0, 2, 2}, {0, 2, 2}}}));
  EXPECT_EQ(std::ssize(stacks.blocks.blocks), 2);
  EXPECT_TRUE((stacks.Unstack(std::vector<int64_t>{0, 4}) == std::vector<int64_t>{0, 4}));
}

}  // namespace
}  // namespace coopjax
