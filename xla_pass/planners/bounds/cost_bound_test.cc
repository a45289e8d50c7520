#include "planners/bounds/cost_bound.h"

#include <cmath>

#include "planners/orders/list_scheduler.h"
#include "planners/peak/planner.h"
#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

TEST(ChainForwardAndBack) {
  // Before b_8 runs f1 .. f8 are there, and b_8 makes another value: 9 of 10 bytes. Each one less is made again, 1 s.
  const StepProgram program = testing::ForwardBackwardChain(8, 10);
  EXPECT_EQ(ComputeCostBound(program, 90).cost_s, 0.0);
  EXPECT_EQ(ComputeCostBound(program, 89).cost_s, 1.0);
  EXPECT_EQ(ComputeCostBound(program, 80).cost_s, 1.0);
  EXPECT_EQ(ComputeCostBound(program, 70).cost_s, 2.0);
  const OpId op = ComputeCostBound(program, 70).op;
  EXPECT_TRUE(op == 8 || op == 9);   // b_8, or b_7 with b_8 in place of f8
  EXPECT_EQ(ComputeCostBound(program, 90).op, kNoOp);
}

TEST(InfiniteBelowTheLargestWorkingSet) {
  const StepProgram program = testing::ForwardBackwardChain(8, 10);
  const LowerBound least = ComputeLowerBound(program);
  EXPECT_TRUE(std::isfinite(ComputeCostBound(program, least.bytes).cost_s));
  EXPECT_TRUE(std::isinf(ComputeCostBound(program, least.bytes - 1).cost_s));
}

TEST(UnitOfCosts) {
  StepProgram program = testing::ForwardBackwardChain(3, 10);
  EXPECT_EQ(CostUnit(program), 1.0);
  program.op_cost_s = {0.5, 1.5, 0, 0.5, 2, 1, 0.7};   // the last may not run twice
  EXPECT_EQ(CostUnit(program), 0.5);
  program.op_cost_s[4] = 0.7;
  EXPECT_EQ(CostUnit(program), 0.0);
  program.op_can_recompute.assign(program.num_ops(), 0);
  EXPECT_EQ(CostUnit(program), 0.0);
}

TEST(NoPlanBeatsIt) {
  int num_positive = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    const StepProgram program = testing::RandomProgram(seed, 30);
    const Schedule order = ScheduleForMemory(program);
    const int64_t peak = ComputeLiveness(program, order).peak_bytes;
    for (int64_t budget : {peak * 9 / 10, peak * 7 / 10, peak / 2}) {
      const PeakResult plan = PlanPeak(program, order, budget, {});
      const double bound_s = ComputeCostBound(program, budget).cost_s;
      if (plan.is_feasible) EXPECT_TRUE(bound_s <= CountRecompute(program, plan.schedule).cost_s + 1e-9);
      num_positive += bound_s > 0 && std::isfinite(bound_s);
    }
  }
  EXPECT_TRUE(num_positive > 50);
}

TEST(NoOps) { EXPECT_EQ(ComputeCostBound(StepProgram(), 0).cost_s, 0.0); }

}  // namespace
}  // namespace coopjax
