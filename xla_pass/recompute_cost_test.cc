#include "recompute_cost.h"

#include <cmath>

#include "program_test_builder.h"
#include "testing.h"

namespace coopjax {
namespace {

using testing::ProgramBuilder;

// x -> a (1 s) -> b (2 s) -> c (4 s), and d (8 s) from a and b.
StepProgram Diamond() {
  ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {1}, .cost_s = 1});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {1}, .cost_s = 2});
  builder.Op({.inputs = {b}, .output_bytes = {1}, .cost_s = 4});
  builder.Op({.inputs = {a, b}, .output_bytes = {1}, .cost_s = 8});
  return builder.program();
}
constexpr ValueId kX = 0, kA = 1, kB = 2, kC = 3, kD = 4;

TEST(ChainCountsEachAncestorOnce) {
  const StepProgram program = Diamond();
  RecomputeCost cost(program, CostRule::kChain);
  for (ValueId v : {kA, kB, kC, kD}) cost.SetResident(v);
  EXPECT_EQ(cost.Seconds(kD), 8.0);
  cost.SetEvicted(kB);
  EXPECT_EQ(cost.Seconds(kD), 10.0);
  cost.SetEvicted(kA);
  EXPECT_EQ(cost.Seconds(kD), 11.0);   // a once, though d and b both read it
  EXPECT_EQ(cost.Seconds(kC), 7.0);
  cost.SetResident(kB);
  EXPECT_EQ(cost.Seconds(kC), 4.0);
}

TEST(NeighboursCountEvictedComponents) {
  const StepProgram program = Diamond();
  RecomputeCost cost(program, CostRule::kNeighbours);
  for (ValueId v : {kA, kB, kC, kD}) cost.SetResident(v);
  EXPECT_EQ(cost.Seconds(kC), 4.0);
  cost.SetEvicted(kA);
  cost.SetEvicted(kB);                 // one component of 1 + 2 s
  EXPECT_EQ(cost.Seconds(kC), 7.0);
  EXPECT_EQ(cost.Seconds(kD), 14.0);   // through a and through b: counted twice, as in OneFlow
  cost.SetResident(kB);                // approximate deletion: 1 s stays
  EXPECT_EQ(cost.Seconds(kC), 4.0);
  EXPECT_EQ(cost.Seconds(kD), 9.0);
}

TEST(OwnIgnoresTheRest) {
  const StepProgram program = Diamond();
  RecomputeCost cost(program, CostRule::kOwn);
  EXPECT_EQ(cost.Seconds(kD), 8.0);
}

TEST(ImpossibleWithoutItsLeaves) {
  StepProgram program = Diamond();
  for (CostRule rule : {CostRule::kOwn, CostRule::kNeighbours, CostRule::kChain}) {
    RecomputeCost cost(program, rule);
    EXPECT_TRUE(cost.IsPossible(kD));
    cost.SetLost(kX);                  // a's input is overwritten
    EXPECT_TRUE(!cost.IsPossible(kD));
    EXPECT_TRUE(std::isinf(cost.Seconds(kD)));
    cost.SetResident(kA);
    EXPECT_TRUE(cost.IsPossible(kD));
  }
  program.op_can_recompute[1] = 0;     // b may run only once
  RecomputeCost cost(program, CostRule::kChain);
  EXPECT_TRUE(!cost.IsPossible(kD));
  EXPECT_TRUE(cost.IsPossible(kA));
}

}  // namespace
}  // namespace coopjax
