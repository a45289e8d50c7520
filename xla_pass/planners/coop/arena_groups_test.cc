#include "planners/coop/arena_groups.h"

#include "testing/expect.h"

namespace coopjax {
namespace {

TEST(TwoGroupsGrowFromOppositeEnds) {
  const ArenaGroups groups(2, 100, 1);
  EXPECT_EQ(*groups.of(CostClass::kExpensive)[0].Place(20, 60, 10), 20);
  EXPECT_EQ(*groups.of(CostClass::kCheap)[0].Place(20, 60, 10), 50);   // 60 - 10
}

TEST(HalfOfARequestMustLieInTheRegion) {
  const Group upper = {50, 100, Side::kLow};
  EXPECT_EQ(*upper.Place(45, 55, 10), 45);            // 5 of 10 bytes lie in [50, 100)
  EXPECT_TRUE(!upper.Place(44, 54, 10).has_value());  // 4 of 10
  EXPECT_EQ(*upper.Place(44, 60, 10), 50);            // the hole reaches far enough to begin at the border
  const Group lower = {0, 50, Side::kHigh};
  EXPECT_EQ(*lower.Place(45, 55, 10), 45);
  EXPECT_TRUE(!lower.Place(46, 56, 10).has_value());
  EXPECT_EQ(*lower.Place(40, 56, 10), 40);
}

TEST(ClassesFallThroughTheirGroupsAndStay) {
  // Four groups: regions [0, 50) and [50, 100); expensive are 0 (left of the lower) and 3 (right of the upper).
  ArenaGroups groups(4, 100, 1);
  const auto expensive = groups.of(CostClass::kExpensive);
  EXPECT_EQ(expensive.size(), size_t{2});
  EXPECT_EQ(expensive[0].begin, 0);
  EXPECT_TRUE(expensive[0].side == Side::kLow);
  EXPECT_EQ(expensive[1].begin, 50);
  EXPECT_TRUE(expensive[1].side == Side::kHigh);
  groups.Use(CostClass::kExpensive, 1);
  EXPECT_EQ(groups.of(CostClass::kExpensive)[0].begin, 50);
  for (int num_groups : {1, 2, 3, 4, 6}) {
    const ArenaGroups made(num_groups, 1000, 64);
    EXPECT_TRUE(!made.of(CostClass::kCheap).empty() && !made.of(CostClass::kExpensive).empty());
    for (const Group& group : made.of(CostClass::kCheap)) EXPECT_EQ(group.begin % 64, 0);
  }
  EXPECT_TRUE(!IsNumGroups(5) && !IsNumGroups(0) && IsNumGroups(6));
}

}  // namespace
}  // namespace coopjax
