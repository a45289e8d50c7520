#include "planners/coop/eviction_cost.h"

#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

// x -> a (3 s), b (1 s) -> c (4 s) reads a at step 2.
StepProgram Three() {
  testing::ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {1}, .cost_s = 3});
  builder.Op({.inputs = {x}, .output_bytes = {1}, .cost_s = 1});
  builder.Op({.inputs = {a}, .output_bytes = {1}, .cost_s = 4});
  return builder.program();
}
constexpr ValueId kA = 1;

TEST(CostIsRecomputeOverStaleness) {
  const StepProgram program = Three();
  Residency residency(program);
  EvictionCost cost(program, program.schedule, residency, CostRule::kOwn, /*knows_future=*/false);
  residency.SetResident(kA);
  cost.Touch(kA);                     // before the op's seconds pass
  cost.Advance(3);
  EXPECT_EQ(cost.Of(kA), 1.0);        // 3 s / 3 s
  cost.Advance(3);
  EXPECT_EQ(cost.AtLeast(kA), 0.5);   // 3 s / 6 s, without an evaluation
  EXPECT_EQ(cost.num_evaluations(), 1);
  cost.Touch(kA);
  EXPECT_TRUE(cost.Of(kA) > 1e6);     // dear at this instant, but finite
}

TEST(TheFutureReplacesStaleness) {
  const StepProgram program = Three();
  Residency residency(program);
  EvictionCost cost(program, program.schedule, residency, CostRule::kOwn, /*knows_future=*/true);
  cost.SetStep(0);
  EXPECT_EQ(cost.Of(kA), 0.75);       // read at step 2, 3 + 1 s after the beginning of step 0
  cost.SetStep(1);
  EXPECT_EQ(cost.Of(kA), 3.0);        // 1 s away
  EXPECT_EQ(cost.NextNeedStep(kA), 2);
  cost.SetStep(2);
  EXPECT_EQ(cost.NextNeedStep(kA), NextNeed::kNoStep);
}

}  // namespace
}  // namespace coopjax
