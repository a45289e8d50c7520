#include "base/allowance.h"

#include "testing/expect.h"

namespace coopjax {
namespace {

TEST(ItIsOverWhenItsStepsAreTaken) {
  const Allowance allowance(10);
  CountSteps(4);
  EXPECT_EQ(allowance.Spent(), 4);
  EXPECT_EQ(allowance.Left(), 6);
  EXPECT_TRUE(!allowance.Part(0.5).IsOver());   // from the same start: one of its five steps is left
  EXPECT_TRUE(allowance.Part(0.4).IsOver());
  const int64_t cuts_before = thread_work.num_cuts;
  CountSteps(6);
  EXPECT_TRUE(allowance.IsOver());
  EXPECT_EQ(thread_work.num_cuts, cuts_before + 1);
}

TEST(UnlimitedIsNeverOver) {
  const Allowance allowance(kUnlimitedSteps);
  CountSteps(int64_t{1} << 40);
  EXPECT_TRUE(!allowance.IsOver() && !allowance.Part(1).IsOver());
}

TEST(ABlownFuseEndsAll) {
  const Allowance allowance(kUnlimitedSteps);
  thread_work.fuse = Fuse(1e6);
  EXPECT_TRUE(!allowance.IsOver());
  thread_work.fuse = Fuse(0);
  EXPECT_TRUE(allowance.IsOver() && thread_work.fuse.IsBlown());
  thread_work.fuse = Fuse();
  EXPECT_TRUE(!allowance.IsOver());
}

}  // namespace
}  // namespace coopjax
