#include "planners/fastsa/anneal.h"

#include <algorithm>

#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

AnnealOptions Quick() {
  AnnealOptions options;
  options.num_slots = 0;
  options.stage1_iterations = 4000;
  options.stage2_iterations = 4000;
  return options;
}

// a (8, a tenth of the others' cost) is read early and at the end, c and d (5 each) lie between: 18 bytes, or 14
// with a made again.
StepProgram Skip() {
  testing::ProgramBuilder builder;
  const ValueId a = builder.Op({.inputs = {builder.Given(100)}, .output_bytes = {8}, .cost_s = 0.1});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {1}});
  const ValueId c = builder.Op({.inputs = {b}, .output_bytes = {5}});
  const ValueId d = builder.Op({.inputs = {c}, .output_bytes = {5}});
  builder.Op({.inputs = {a, d}, .output_bytes = {1}});
  return builder.program();
}

TEST(RecomputesASkipConnection) {
  const StepProgram program = Skip();
  AnnealResult result = Anneal(program, program.schedule, 14, Quick());
  EXPECT_TRUE((result.schedule == Schedule{0, 1, 2, 3, 0, 4}));
  EXPECT_TRUE(result.is_feasible);
  result = Anneal(program, program.schedule, 13, Quick());   // the last op alone needs 8 + 5 + 1
  EXPECT_TRUE(!result.is_feasible);
  EXPECT_EQ(ComputeLiveness(program, result.schedule).peak_bytes, 14);
  result = Anneal(program, program.schedule, 18, Quick());
  EXPECT_TRUE(result.schedule == program.schedule);
  EXPECT_EQ(result.counters.tried, 0);                       // nothing to gain
}

TEST(PolishesAPlan) {
  const StepProgram program = Skip();
  const Schedule wasteful = {0, 0, 1, 2, 1, 3, 2, 0, 4};
  EXPECT_EQ(CheckSchedule(program, wasteful), "");
  AnnealOptions options = Quick();
  options.start_temperature = 1e-7;
  const AnnealResult result = Anneal(program, wasteful, 14, options);
  EXPECT_TRUE((result.schedule == Schedule{0, 1, 2, 3, 0, 4}));
  EXPECT_EQ(result.counters.num_groups, 0);
}

// Two pairs (9 -> 1 byte) in the worst order, 9 + 9; one after the other 9 + 1.
TEST(OrderOnlyMovesOnly) {
  testing::ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {9}});
  const ValueId b = builder.Op({.inputs = {x}, .output_bytes = {9}});
  const ValueId a1 = builder.Op({.inputs = {a}, .output_bytes = {1}});
  const ValueId b1 = builder.Op({.inputs = {b}, .output_bytes = {1}});
  builder.Op({.inputs = {a1, b1}, .output_bytes = {1}});
  AnnealOptions options = Quick();
  options.order_only = true;
  const AnnealResult result = Anneal(builder.program(), builder.program().schedule, 0, options);
  EXPECT_EQ(result.schedule.size(), size_t{5});
  EXPECT_EQ(ComputeLiveness(builder.program(), result.schedule).peak_bytes, 11);
}

// A quarter of the bytes at half again the cost: f is less above the budget, where a hot stage 2 stays for good. What
// it comes back with then is what the groups came to, unless it stays within.
TEST(AHotSecondStageThatStaysWithinTheBudgetFindsCheaperPlans) {
  const StepProgram program = testing::ForwardBackwardChain(60, 10);
  AnnealOptions options = Quick();
  options.stage2_iterations = 40'000;
  options.stage2_temperature = 1e-2;
  const AnnealResult leaves = Anneal(program, program.schedule, 180, options);
  options.stays_within = true;
  const AnnealResult stays = Anneal(program, program.schedule, 180, options);
  EXPECT_TRUE(leaves.is_feasible && stays.is_feasible);
  EXPECT_TRUE(CountRecompute(program, stays.schedule).cost_s < 0.7 * CountRecompute(program, leaves.schedule).cost_s);
}

TEST(PlansAreValidAndDeterministicUnderAllSwitches) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    const StepProgram program = testing::RandomProgram(seed, 1 + seed % 30);
    const int64_t given_peak = ComputeLiveness(program, program.schedule).peak_bytes;
    for (const int switches : {0, 1, 2, 3}) {
      AnnealOptions options = Quick();
      options.group = switches == 0 || switches == 3;
      options.order_only = switches == 2;
      options.stays_within = switches == 3;
      options.stage2_temperature = switches == 3 ? 1e-2 : 0;
      options.seed = seed;
      const int64_t budget_bytes = given_peak * 6 / 10;
      const AnnealResult result = Anneal(program, program.schedule, budget_bytes, options);
      EXPECT_EQ(CheckSchedule(program, result.schedule), "");
      const int64_t peak = ComputeLiveness(program, result.schedule).peak_bytes;
      EXPECT_TRUE(peak <= given_peak);
      EXPECT_EQ(result.is_feasible, peak <= budget_bytes);
      EXPECT_TRUE(!options.order_only || CountRecompute(program, result.schedule).num_ops == 0);
      EXPECT_TRUE(Anneal(program, program.schedule, budget_bytes, options).schedule == result.schedule);
    }
  }
}

TEST(TheBestSoFarIsKeptWhenItsStepsAreTaken) {
  const StepProgram program = testing::ForwardBackwardChain(200, 10);
  AnnealOptions options;
  options.max_steps = 0;
  const AnnealResult result = Anneal(program, program.schedule, 100, options);
  EXPECT_TRUE(result.is_cut_short);
  EXPECT_EQ(CheckSchedule(program, result.schedule), "");
}

}  // namespace
}  // namespace coopjax
