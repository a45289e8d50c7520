#include "packing/core.h"

#include <numeric>

#include "packing/branch.h"
#include "testing/expect.h"

namespace coopjax {
namespace {

std::vector<int32_t> AllOf(const PackingBlocks& blocks) {
  std::vector<int32_t> all(blocks.blocks.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

PackingBlocks BlocksOf(std::vector<PackingBuffer> buffers) { return MakePackingBlocks({std::move(buffers)}); }

// A block of 2 bytes in 10 may begin at 0 .. 8: nine offsets. One of 4 bytes beside it forbids 4 + 2 - 1 = 5, one of 2
// forbids 3: one is left, so it is easy, and without it the others are.
TEST(EasyBlocksFitWhateverTheOthersDo) {
  const PackingBlocks blocks = BlocksOf({{0, 4, 4}, {0, 4, 2}, {1, 2, 2}});
  EXPECT_EQ(std::ssize(PeelBlocks(blocks, AllOf(blocks), 10).easy), 3);
  // In 9 bytes a small one has eight, all forbidden, and the large one six, of which 5 + 5 are.
  EXPECT_EQ(std::ssize(PeelBlocks(blocks, AllOf(blocks), 9).hard), 3);
}

// In units of 8: blocks of 2 and 1 in 4 units (32 bytes). The small one has 4 offsets, the other forbids 2.
TEST(AlignedBlocksAreCountedInUnits) {
  const PackingBlocks blocks = BlocksOf({{0, 4, 16, 8}, {0, 4, 3, 8}});
  EXPECT_TRUE(PeelBlocks(blocks, AllOf(blocks), 32).hard.empty());
}

TEST(ComponentsAreApartInTime) {
  const PackingBlocks blocks = BlocksOf({{5, 7, 1}, {0, 3, 1}, {2, 5, 1}, {6, 9, 1}});
  const auto components = TimeComponents(blocks, AllOf(blocks));
  EXPECT_TRUE((components == std::vector<std::vector<int32_t>>{{1, 2}, {0, 3}}));
  EXPECT_EQ(CountConflicts(blocks, AllOf(blocks)), 2);
}

// Sections: [2, 3) with a and b, [4, 5) with b and c; [0, 2), [3, 4) and [5, 6) are parts of these.
TEST(SectionsAreTheLargestSetsOfLiveBlocks) {
  const PackingBlocks blocks = BlocksOf({{0, 3, 1}, {2, 5, 2}, {4, 6, 3}});
  const PackingCore core = MakePackingCore(blocks, AllOf(blocks));
  EXPECT_EQ(core.num_sections(), 2);
  EXPECT_EQ(std::ssize(core.members_of(0)), 2);
  EXPECT_EQ(std::ssize(core.sections_of(1)), 2);
  EXPECT_EQ(std::ssize(core.conflicts_of(1)), 2);
  EXPECT_EQ(core.conflicts_of(1)[0].height, 2);
  EXPECT_EQ(core.conflicts_of(1)[0].other_height, 1);
}

// A staircase of 8, then 4 bytes beside a block of 3 that lives with the 4 only: above it from 4 on, below it up to 3.
TEST(OnlyTheStepsThatMeetCount) {
  const PackingBlocks blocks = BlocksOf({{0, 2, 8}, {2, 4, 4, 1, kAnyOffset, 0}, {3, 4, 3}});
  const PackingCore core = MakePackingCore(blocks, AllOf(blocks));
  EXPECT_EQ(core.conflicts_of(0)[0].height, 4);
  EXPECT_EQ(core.conflicts_of(0)[0].other_height, 3);
  std::vector<int64_t> offsets;
  SearchEffort effort(1000);
  const std::vector<int32_t> rank = {0, 1};
  EXPECT_TRUE(BranchAndBound(core, {8, rank, {}}, &effort, &offsets) == BranchOutcome::kFound);
  EXPECT_TRUE((offsets == std::vector<int64_t>{0, 4}));
  EXPECT_TRUE(BranchAndBound(core, {7, rank, {}}, &effort, &offsets) == BranchOutcome::kNone);
}

// Two of 1 byte each, one after the other, hang from the ceiling beside 10 bytes: 11 are needed.
TEST(SmallBlocksHangFromTheCeiling) {
  const PackingBlocks blocks = BlocksOf({{0, 4, 10}, {0, 2, 1}, {2, 4, 1}});
  const PackingCore core = MakePackingCore(blocks, AllOf(blocks));
  const HungBlocks hung = HangSmall(core, 1);
  EXPECT_EQ(hung.least_capacity, 11);
  EXPECT_TRUE((hung.below_ceiling == std::vector<int64_t>{0, 1, 1}));
  EXPECT_TRUE(HangSmall(core, 0).below_ceiling.empty());
  EXPECT_TRUE(HangSmall(core, 10).below_ceiling.empty());   // nothing would be left
  std::vector<int64_t> offsets;
  SearchEffort effort(1000);
  const std::vector<int32_t> rank = {0, 1, 2};
  EXPECT_TRUE(BranchAndBound(core, {11, rank, hung.below_ceiling}, &effort, &offsets) == BranchOutcome::kFound);
  EXPECT_TRUE((offsets == std::vector<int64_t>{0, 10, 10}));
}

TEST(EffortIsCountedAndLimited) {
  SearchEffort effort(100);
  EXPECT_TRUE(effort.Spend(40));
  const int64_t limit = effort.limit();
  effort.LimitTo(10);
  EXPECT_TRUE(!effort.Spend(10));
  EXPECT_TRUE(effort.is_over());
  effort.RestoreLimit(limit);
  EXPECT_TRUE(!effort.is_over());
  EXPECT_TRUE(!effort.Spend(50));
  EXPECT_EQ(effort.spent(), 100);
}

}  // namespace
}  // namespace coopjax
