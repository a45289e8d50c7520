#include "planners/segments/planner.h"

#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

TEST(RandomProgramsGetValidPlans) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    const StepProgram program = testing::RandomProgram(seed, 10 + seed % 60);
    const int64_t peak = ComputeLiveness(program, program.schedule).peak_bytes;
    for (double share : {0.9, 0.7, 0.5}) {
      const int64_t budget = static_cast<int64_t>(share * static_cast<double>(peak));
      for (int32_t max_polished_ops : {0, 1000}) {
        const SegmentResult result =
            PlanSegments(program, program.schedule, budget, {.max_polished_ops = max_polished_ops, .max_trials = 2000});
        EXPECT_TRUE(CheckSchedule(program, result.schedule) == "");
        const int64_t reached = ComputeLiveness(program, result.schedule).peak_bytes;
        EXPECT_EQ(result.is_feasible, reached <= budget);
        EXPECT_TRUE(reached <= peak);
      }
    }
  }
}

// n layers in O(n^(1/2)) bytes with one level, in less with more (Chen et al., 2016).
TEST(RemakesArePlannedAnewLevelByLevel) {
  const StepProgram program = testing::ForwardBackwardChain(2000, 10);
  const SegmentOptions one_level = {.max_levels = 1, .max_polished_ops = 0}, more = {.max_polished_ops = 0};
  EXPECT_TRUE(PlanSegments(program, program.schedule, 1500, one_level).is_feasible);
  EXPECT_TRUE(!PlanSegments(program, program.schedule, 600, one_level).is_feasible);
  EXPECT_TRUE(PlanSegments(program, program.schedule, 600, more).is_feasible);
}

TEST(NoRepeatsWhereTheOrderFits) {
  const StepProgram program = testing::ForwardBackwardChain(20, 10);
  const SegmentResult result = PlanSegments(program, program.schedule, 210, {});
  EXPECT_TRUE(result.is_feasible);
  EXPECT_TRUE(result.schedule == program.schedule);
}

}  // namespace
}  // namespace coopjax
