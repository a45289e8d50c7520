#include "packing/blocks.h"

#include <vector>

#include "testing/expect.h"

namespace coopjax {
namespace {

// A buffer of 8 bytes, what overwrites it at its end (of `bytes`), and one beside them.
PackingProblem Tied(int64_t bytes) { return {{{0, 2, 8, 4}, {2, 4, bytes, 6, kAnyOffset, 0}, {1, 3, 2}}}; }

TEST(TiedBuffersOfOneSizeAreOneRectangle) {
  const PackingBlocks blocks = MakePackingBlocks(Tied(8));
  EXPECT_TRUE((blocks.block_of == std::vector<int32_t>{0, 0, 1}));
  EXPECT_EQ(blocks.of(0).size(), 1u);
  EXPECT_EQ(blocks.of(0)[0].upper, 4);
  EXPECT_EQ(blocks.blocks[0].duration(), 4);
  EXPECT_EQ(blocks.blocks[0].alignment, 12);   // of 4 and 6
}

TEST(TiedBuffersOfTwoSizesAreAStaircase) {
  const PackingBlocks blocks = MakePackingBlocks(Tied(7));
  EXPECT_EQ(blocks.of(0).size(), 2u);
  EXPECT_EQ(blocks.of(0)[0].size, 8);
  EXPECT_EQ(blocks.of(0)[1].lower, 2);
  EXPECT_EQ(blocks.of(0)[1].size, 7);
  EXPECT_EQ(blocks.blocks[0].size, 8);
}

TEST(EmptyBuffersHaveNoBlock) {
  const PackingProblem problem = {{{0, 2, 0}, {0, 2, 3}, {0, 2, 0, 1, 16}}};
  const PackingBlocks blocks = MakePackingBlocks(problem);
  EXPECT_TRUE((blocks.block_of == std::vector<int32_t>{-1, 0, -1}));
  const Packing packing = PackingOfBlocks(problem, blocks, std::vector<int64_t>{5});
  EXPECT_TRUE((packing.offsets == std::vector<int64_t>{0, 5, 16}));
  EXPECT_EQ(packing.heap_bytes, 5 + 3);        // an empty buffer at 16 uses no address
}

// Blocks of 5 and 6 bytes at multiples of 4 live together: 8 + 5 with the 5 on top, 8 + 6 with the 6.
TEST(WhatIsNotOnTopIsRoundedUp) {
  EXPECT_EQ(PackingLowerBound(MakePackingBlocks({{{0, 2, 5, 4}, {1, 3, 6, 4}}})), 8 + 5);
  EXPECT_EQ(PackingLowerBound(MakePackingBlocks({{{0, 2, 5, 4}, {1, 3, 6, 1}}})), 5 + 6);   // they share 1 only
  EXPECT_EQ(PackingLowerBound(MakePackingBlocks({{{0, 2, 5, 4}, {2, 3, 6, 4}}})), 6);  // one ends where one begins
}

TEST(AFixedOffsetBoundsTheHeap) {
  EXPECT_EQ(PackingLowerBound(MakePackingBlocks({{{0, 2, 5}, {0, 2, 6, 1, 9}}})), 9 + 6);
  EXPECT_EQ(PackingLowerBound(MakePackingBlocks({{{0, 2, 5}, {0, 2, 6, 1, 4}}})), 5 + 6);
  EXPECT_EQ(PackingLowerBound(PackingBlocks()), 0);
}

// Live from time 0 on: 3, 3 + 4, 4, 4 + 1, 1.
TEST(PressureIsTheMostThatABlockSees) {
  const PackingBlocks blocks = MakePackingBlocks({{{0, 2, 3}, {1, 4, 4}, {3, 5, 1}}});
  EXPECT_TRUE((PressureOfBlocks(blocks) == std::vector<int64_t>{7, 7, 5}));
  const PackingBlocks at_the_end = MakePackingBlocks({{{0, 3, 1}, {2, 3, 9}}});
  EXPECT_TRUE((PressureOfBlocks(at_the_end) == std::vector<int64_t>{10, 10}));
  EXPECT_TRUE(PressureOfBlocks(PackingBlocks()).empty());
}

TEST(OffsetsAreRoundedUp) {
  EXPECT_EQ(AlignUp(64, 64), 64);
  EXPECT_EQ(AlignUp(65, 64), 128);
}

}  // namespace
}  // namespace coopjax
