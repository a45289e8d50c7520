#include "packing/branch.h"

#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "testing/expect.h"

namespace coopjax {
namespace {

struct Branched {
  BranchOutcome outcome;
  std::vector<int64_t> offsets;        // by member; empty if there is no packing
};

std::vector<int32_t> AllOf(const PackingBlocks& blocks) {
  std::vector<int32_t> all(blocks.blocks.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Branched Branch(const PackingCore& core, int64_t capacity, std::vector<int32_t> rank = {},
                std::vector<int64_t> hung = {}, int64_t steps = 100'000) {
  if (rank.empty()) {
    rank.resize(core.size());
    std::iota(rank.begin(), rank.end(), 0);
  }
  SearchEffort effort(steps);
  Branched result;
  const BranchOptions options = {.capacity = capacity, .rank = rank, .hung = hung};
  result.outcome = BranchAndBound(core, options, &effort, &result.offsets);
  return result;
}

Branched Branch(std::vector<PackingBuffer> buffers, int64_t capacity) {
  const PackingBlocks blocks = MakePackingBlocks({std::move(buffers)});
  return Branch(MakePackingCore(blocks, AllOf(blocks)), capacity);
}

// 3 and 4 bytes meet: 7.
TEST(TheLiveBytesAreEnoughWhereNothingIsInTheWay) {
  EXPECT_TRUE(Branch({{0, 2, 3}, {1, 3, 4}}, 7).outcome == BranchOutcome::kFound);
  EXPECT_TRUE(Branch({{0, 2, 3}, {1, 3, 4}}, 6).outcome == BranchOutcome::kNone);
}

// The upper one of two blocks of 3 bytes at multiples of 4 begins at 4 and ends at 7; 6 bytes are live.
TEST(AlignmentIsKept) {
  EXPECT_TRUE(Branch({{0, 2, 3, 4}, {0, 2, 3, 4}}, 7).outcome == BranchOutcome::kFound);
  EXPECT_TRUE(Branch({{0, 2, 3, 4}, {0, 2, 3, 4}}, 6).outcome == BranchOutcome::kNone);
}

// 2 bytes at 2 are taken: 3 bytes go above them, 2 bytes below.
TEST(ObstaclesAreAvoided) {
  const Branched above = Branch({{0, 2, 2, 1, 2}, {0, 2, 3}}, 7);
  EXPECT_TRUE(above.offsets == std::vector<int64_t>{4});
  EXPECT_TRUE(Branch({{0, 2, 2, 1, 2}, {0, 2, 3}}, 6).outcome == BranchOutcome::kNone);
  EXPECT_TRUE(Branch({{0, 2, 2, 1, 2}, {0, 2, 2}}, 4).offsets == std::vector<int64_t>{0});
}

TEST(AmongBlocksAtOneOffsetTheSmallerRankComesFirst) {
  const PackingBlocks blocks = MakePackingBlocks({{{0, 2, 3}, {0, 2, 4}}});
  const PackingCore core = MakePackingCore(blocks, AllOf(blocks));
  EXPECT_TRUE((Branch(core, 7, {0, 1}).offsets == std::vector<int64_t>{0, 3}));
  EXPECT_TRUE((Branch(core, 7, {1, 0}).offsets == std::vector<int64_t>{4, 0}));
}

TEST(WithoutEffortNothingIsProven) {
  const PackingBlocks blocks = MakePackingBlocks({{{0, 2, 3}, {0, 2, 4}}});
  const PackingCore core = MakePackingCore(blocks, AllOf(blocks));
  EXPECT_TRUE(Branch(core, 7, {}, {}, /*steps=*/1).outcome == BranchOutcome::kStopped);
}

// Three blocks of 3 bytes at multiples of 4 do not fit into 10 bytes, whatever is done to those that came before.
TEST(TheSearchStaysWhereItFails) {
  PackingProblem problem{{{0, 110, 1}}};
  for (int32_t k = 0; k < 8; ++k) problem.buffers.push_back({2 * k, 2 * k + 4, 1 + k % 2});
  for (int32_t k = 0; k < 3; ++k) problem.buffers.push_back({100, 110, 3, 4});
  const PackingBlocks blocks = MakePackingBlocks(problem);
  const PackingCore core = MakePackingCore(blocks, AllOf(blocks));
  EXPECT_TRUE(Branch(core, 10, {}, {}, /*steps=*/50'000).outcome == BranchOutcome::kNone);
  const Branched found = Branch(core, 11, {}, {}, StepsOfWalk(core));
  EXPECT_TRUE(found.outcome == BranchOutcome::kFound);
}

TEST(StepsWithManyBlocksAreBoundedByTheirBytes) {
  const std::vector<PackingBuffer> buffers(100, {0, 2, 3});
  EXPECT_TRUE(Branch(buffers, 300).outcome == BranchOutcome::kFound);
  EXPECT_TRUE(Branch(buffers, 299).outcome == BranchOutcome::kNone);
}

// Beside 10 bytes live 1, then 1 + 2, then 2 + 1, then 1 byte: 3 bytes hang from the ceiling at the worst time.
TEST(SmallBlocksHangAndTheOthersFillWhatIsBelow) {
  const PackingBlocks blocks = MakePackingBlocks({{{0, 4, 10}, {0, 2, 1}, {1, 3, 2}, {2, 4, 1}}});
  const PackingCore core = MakePackingCore(blocks, AllOf(blocks));
  const HungBlocks hung = HangSmall(core, 2);
  EXPECT_EQ(hung.least_capacity, 10 + 3);
  EXPECT_EQ(hung.below_ceiling[0], 0);
  const Branched found = Branch(core, 13, {}, hung.below_ceiling);
  EXPECT_TRUE(found.outcome == BranchOutcome::kFound);
  EXPECT_EQ(found.offsets[0], 0);
  for (int32_t m = 1; m < 4; ++m) EXPECT_EQ(found.offsets[m], 13 - hung.below_ceiling[m]);
  EXPECT_TRUE(Branch(core, 12, {}, hung.below_ceiling).outcome == BranchOutcome::kNone);
  EXPECT_TRUE(HangSmall(core, 0).below_ceiling.empty());    // none is small
  EXPECT_TRUE(HangSmall(core, 9).below_ceiling == HangSmall(core, 2).below_ceiling);
  EXPECT_TRUE(HangSmall(core, 10).below_ceiling.empty());   // all are
}

}  // namespace
}  // namespace coopjax
