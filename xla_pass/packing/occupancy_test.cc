#include "packing/occupancy.h"

#include <vector>

#include "testing/expect.h"

namespace coopjax {
namespace {

using Ranges = std::vector<AddressSet::Range>;

Ranges RangesOf(const AddressSet& set) { return {set.ranges().begin(), set.ranges().end()}; }

TEST(RangesThatTouchAreJoined) {
  AddressSet set;
  set.Add(8, 12, 1);
  set.Add(0, 4, 1);
  EXPECT_TRUE((RangesOf(set) == Ranges{{0, 4}, {8, 12}}));
  set.Add(4, 7, 1);
  EXPECT_TRUE((RangesOf(set) == Ranges{{0, 7}, {8, 12}}));
  set.Add(2, 20, 1);
  EXPECT_TRUE((RangesOf(set) == Ranges{{0, 20}}));
}

// Nothing fits into a gap of 3 where 4 bytes are the least.
TEST(GapsThatAreTooSmallAreNotKept) {
  AddressSet apart, joined;
  apart.Add(0, 4, 4);
  apart.Add(8, 10, 4);
  EXPECT_TRUE((RangesOf(apart) == Ranges{{0, 4}, {8, 10}}));
  joined.Add(0, 4, 4);
  joined.Add(7, 10, 4);
  EXPECT_TRUE((RangesOf(joined) == Ranges{{0, 10}}));
}

// 4, 3 and 2 bytes lie at 0, 7 and 12: gaps of 3 and 2. Blocks 3 to 5 want 2, 3 and 4 bytes; 6 wants 2 at a multiple of
// 4; 7 lives later.
TEST(GapsAreFoundByRule) {
  const PackingBlocks blocks =
      MakePackingBlocks({{{0, 4, 4}, {0, 4, 3}, {0, 4, 2}, {1, 3, 2}, {1, 3, 3}, {1, 3, 4}, {1, 3, 2, 4}, {4, 5, 4}}});
  Occupancy occupancy(blocks);
  EXPECT_EQ(occupancy.Find(0, FitRule::kBest), 0);
  occupancy.Place(0, 0);
  occupancy.Place(1, 7);
  occupancy.Place(2, 12);
  EXPECT_EQ(occupancy.Find(3, FitRule::kFirst), 4);
  EXPECT_EQ(occupancy.Find(3, FitRule::kBest), 10);
  EXPECT_EQ(occupancy.Find(4, FitRule::kBest), 4);
  EXPECT_EQ(occupancy.Find(5, FitRule::kFirst), 14);   // on top
  EXPECT_EQ(occupancy.Find(5, FitRule::kBest), 14);
  EXPECT_EQ(occupancy.Find(6, FitRule::kBest), 4);     // 10 is no multiple of 4
  EXPECT_EQ(occupancy.Find(7, FitRule::kBest), 0);
}

// A staircase of 8 bytes, then 2, leaves the bytes above the 2 to what comes later.
TEST(OnlyTheTimesThatMeetCount) {
  const PackingBlocks blocks = MakePackingBlocks({{{0, 2, 8}, {2, 4, 2, 1, kAnyOffset, 0}, {1, 3, 1}, {2, 3, 1}}});
  Occupancy occupancy(blocks);
  occupancy.Place(0, 0);
  EXPECT_EQ(occupancy.Find(1, FitRule::kFirst), 8);
  EXPECT_EQ(occupancy.Find(2, FitRule::kFirst), 2);
}

}  // namespace
}  // namespace coopjax
