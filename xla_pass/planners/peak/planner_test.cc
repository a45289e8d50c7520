#include "planners/peak/planner.h"

#include "planners/orders/list_scheduler.h"
#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

TEST(LeavesWhatFitsAlone) {
  const StepProgram program = testing::ForwardBackwardChain(6, 10);
  const int64_t peak = ComputeLiveness(program, program.schedule).peak_bytes;
  const PeakResult result = PlanPeak(program, program.schedule, peak, {});
  EXPECT_TRUE(result.is_feasible);
  EXPECT_TRUE(result.schedule == program.schedule);
}

TEST(OneByteLessCostsOneOp) {
  // Six layers of 10 bytes: f1..f6 and b6 are live together, 70. For 60, one forward value is made again.
  const StepProgram program = testing::ForwardBackwardChain(6, 10);
  EXPECT_EQ(ComputeLiveness(program, program.schedule).peak_bytes, 70);
  const PeakResult result = PlanPeak(program, program.schedule, 69, {});
  EXPECT_TRUE(result.is_feasible);
  EXPECT_EQ(CountRecompute(program, result.schedule).num_ops, 1);
  EXPECT_EQ(ComputeLiveness(program, result.schedule).peak_bytes, 60);
}

TEST(ReachesTheBoundOfAChain) {
  // b_i needs f_(i-1), f_i, b_(i+1) and itself: 40 bytes. A chain can be walked in that by making f_i from x.
  const StepProgram program = testing::ForwardBackwardChain(12, 10);
  EXPECT_EQ(ComputeLowerBound(program).bytes, 40);
  for (int64_t budget : {100, 80, 60, 50}) {
    const PeakResult result = PlanPeak(program, program.schedule, budget, {});
    EXPECT_TRUE(result.is_feasible);
    EXPECT_EQ(CheckSchedule(program, result.schedule), "");
    EXPECT_TRUE(ComputeLiveness(program, result.schedule).peak_bytes <= budget);
  }
  EXPECT_TRUE(!PlanPeak(program, program.schedule, 39, {}).is_feasible);
}

TEST(DropsTwoForOneHeldSource) {
  // Each layer's x_i(10) is made into u_i and v_i (10 each, 1 s); only those are read on the way back, and x_(i+1) is
  // dear (100 s). Holding x_i and making u_i and v_i again saves 10 a layer; neither drop alone saves anything.
  testing::ProgramBuilder builder;
  ValueId x = builder.Given(10);
  std::vector<ValueId> us, vs;
  for (int i = 0; i < 6; ++i) {
    x = builder.Op({.inputs = {x}, .output_bytes = {10}, .cost_s = 100});
    us.push_back(builder.Op({.inputs = {x}, .output_bytes = {10}}));
    vs.push_back(builder.Op({.inputs = {x}, .output_bytes = {10}}));
  }
  ValueId back = builder.Op({.inputs = {x}, .output_bytes = {10}});
  for (int i = 5; i >= 0; --i) back = builder.Op({.inputs = {back, us[i], vs[i]}, .output_bytes = {10}});
  const StepProgram& program = builder.program();
  const int64_t peak = ComputeLiveness(program, program.schedule).peak_bytes;
  const PeakResult result = PlanPeak(program, program.schedule, peak - 40, {});
  EXPECT_TRUE(result.is_feasible);
  EXPECT_TRUE(CountRecompute(program, result.schedule).cost_s < 100);
}

TEST(EveryOptionIsValidOnRandomPrograms) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const StepProgram program = testing::RandomProgram(seed, 40);
    const Schedule order = seed % 2 ? program.schedule : ScheduleForMemory(program);
    const int64_t peak = ComputeLiveness(program, order).peak_bytes;
    for (int bits = 0; bits < 32; ++bits) {
      PeakOptions options;
      options.exponent = bits & 1 ? 2 : 1;
      options.num_price_rounds = bits & 2 ? 6 : 0;
      options.merge_repeats = bits & 4;
      options.clean_up = bits & 8;
      options.swap = bits & 16;
      options.max_trials = 3000;
      const int64_t budget = peak * (9 - seed % 7) / 10;
      const PeakResult result = PlanPeak(program, order, budget, options);
      EXPECT_EQ(CheckSchedule(program, result.schedule), "");
      EXPECT_EQ(result.is_feasible, ComputeLiveness(program, result.schedule).peak_bytes <= budget);
      EXPECT_TRUE(PlanPeak(program, order, budget, options).schedule == result.schedule);
      EXPECT_TRUE(ComputeLiveness(program, result.schedule).peak_bytes <= peak);
    }
  }
}

}  // namespace
}  // namespace coopjax
