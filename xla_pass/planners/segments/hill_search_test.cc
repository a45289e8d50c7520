#include "planners/segments/hill_search.h"

#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

TEST(HillsReachDownToTheLowestStepBetweenThem) {
  const std::vector<int64_t> live = {1, 5, 9, 5, 2, 1, 4, 8, 8, 3};
  const std::vector<Hill> hills = FindHills(live, 6);
  EXPECT_EQ(hills.size(), size_t{2});
  EXPECT_EQ(hills[0].begin, 0);
  EXPECT_EQ(hills[0].peak, 2);
  EXPECT_EQ(hills[0].end, 5);
  EXPECT_EQ(hills[1].begin, 5);
  EXPECT_EQ(hills[1].peak, 7);
  EXPECT_EQ(hills[1].end, 10);
  EXPECT_TRUE(FindHills(live, 9).empty());
  EXPECT_EQ(FindHills(live, 7).size(), size_t{2});   // 8 stands half as far above 7 as 9
  EXPECT_EQ(FindHills(live, 4).size(), size_t{2});
  EXPECT_EQ(FindHills(std::vector<int64_t>{9, 1, 3, 1}, 2).size(), size_t{1});   // 3 is left for later
}

// 64 layers of 10 bytes: 650 at the peak. Split into segments of 8 steps, half of 16, as any cut is alike: 8
// checkpoints and one segment.
TEST(OneLevelOfCheckpoints) {
  const StepProgram program = testing::ForwardBackwardChain(64, 10);
  EXPECT_EQ(ComputeLiveness(program, program.schedule).peak_bytes, int64_t{650});
  const SegmentContext context(program);
  SegmentCuts cuts;
  HillSearch search(context, program.schedule, {.budget_bytes = 200, .segment_steps = 16, .num_rounds = 10}, &cuts);
  const Schedule schedule = search.Run([] { return false; });
  EXPECT_EQ(CheckSchedule(program, schedule), "");
  EXPECT_TRUE(ComputeLiveness(program, schedule).peak_bytes <= 200);
  EXPECT_TRUE(CountRecompute(program, schedule).num_ops <= 64);   // each at most once
  EXPECT_TRUE(cuts.num_kinds() < search.num_segments());          // the chain repeats itself
}

}  // namespace
}  // namespace coopjax
