#include "packing/anneal.h"

#include <random>
#include <vector>

#include "testing/expect.h"

namespace coopjax {
namespace {

using Offsets = std::vector<int64_t>;

// 4 bytes early, 2 bytes all the time, 4 bytes late: 6 are live at most. Dropped in this order each lies on the one
// before it and the last one tops out at 10; with the long one first or last, at 6.
const PackingBlocks kBlocks = MakePackingBlocks({{{0, 1, 4}, {0, 3, 2}, {2, 3, 4}}});
const std::vector<int32_t> kMembers = {0, 1, 2};

struct Annealed {
  int64_t height;
  Offsets offsets;
};

Annealed Anneal(int64_t capacity, int64_t steps) {
  const PackingCore core = MakePackingCore(kBlocks, kMembers);
  std::mt19937_64 random(1);
  SearchEffort effort(steps);
  Annealed result = {0, {0, 4, 6}};
  result.height = AnnealPacking(core, capacity, &random, &effort, &result.offsets);
  return result;
}

TEST(TheHeightIsTheHighestAddress) {
  const PackingCore core = MakePackingCore(kBlocks, kMembers);
  EXPECT_EQ(HeightOf(core, Offsets{0, 4, 6}), 6 + 4);
  EXPECT_EQ(HeightOf(core, Offsets{5, 0, 2}), 5 + 4);
}

TEST(ABetterOrderIsFound) {
  const Annealed result = Anneal(6, 10'000);
  EXPECT_EQ(result.height, 6);
  EXPECT_TRUE((result.offsets == Offsets{2, 0, 2} || result.offsets == Offsets{0, 4, 0}));
  EXPECT_TRUE(Anneal(6, 10'000).offsets == result.offsets);
}

// 9 bytes take a move, 10 do not; 5 are out of reach, and the best that was seen stays.
TEST(TheCapacityEndsTheSearch) {
  EXPECT_EQ(Anneal(9, 10'000).height, 6);
  EXPECT_TRUE((Anneal(10, 10'000).offsets == Offsets{0, 4, 6}));
  EXPECT_EQ(Anneal(5, 10'000).height, 6);
}

TEST(WithoutEffortTheStartStays) {
  const Annealed result = Anneal(6, 1);
  EXPECT_EQ(result.height, 10);
  EXPECT_TRUE((result.offsets == Offsets{0, 4, 6}));
}

}  // namespace
}  // namespace coopjax
