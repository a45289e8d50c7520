#include "planners/moves/lowering.h"

#include <limits>
#include <vector>

#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

constexpr double kAnyCost = std::numeric_limits<double>::infinity();

// Without a clock.
struct Lowered {
  Lowered(const StepProgram& program, const Schedule& start, int64_t budget, int64_t max_trials = 1'000'000)
      : effort{&counters, max_trials, Allowance(kUnlimitedSteps)},
        lowering(program, start, budget, /*is_squared=*/true, /*merges_repeats=*/true, &effort, &counters) {}

  MoveCounters counters;
  Effort effort;
  Lowering lowering;
};

// a (8 bytes) is read at once and at the end; b (1), c (5) and d (5) lie between: live 8, 9, 14, 18, 14. Made again for
// the last op: 8, 9, 6, 10, 13, 14.
StepProgram Skip() {
  testing::ProgramBuilder builder;
  const ValueId a = builder.Op({.inputs = {builder.Given(1)}, .output_bytes = {8}});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {1}});
  const ValueId c = builder.Op({.inputs = {b}, .output_bytes = {5}});
  const ValueId d = builder.Op({.inputs = {c}, .output_bytes = {5}});
  builder.Op({.inputs = {a, d}, .output_bytes = {1}});
  return builder.program();
}
const Schedule kOnce = {0, 1, 2, 3, 4}, kTwice = {0, 1, 2, 3, 0, 4};

Schedule ScheduleFor(int64_t budget) {
  const StepProgram program = Skip();
  Lowered lowered(program, kOnce, budget);
  lowered.lowering.Lower(kAnyCost);
  EXPECT_EQ(lowered.lowering.is_feasible(), budget >= 14);
  return lowered.lowering.schedule();
}

TEST(TheBudgetDecides) {
  EXPECT_TRUE(ScheduleFor(18) == kOnce);
  EXPECT_TRUE(ScheduleFor(17) == kTwice);
  EXPECT_TRUE(ScheduleFor(14) == kTwice);
  ScheduleFor(13);                       // out of reach: the last op reads 8 + 5 bytes and makes 1
}

TEST(MovesEndWithTheirCostAndTheTrials) {
  const StepProgram program = Skip();
  Lowered cost(program, kOnce, 14), trials(program, kOnce, 14, /*max_trials=*/0);
  cost.lowering.Lower(/*cost_limit_s=*/0);
  EXPECT_TRUE(cost.lowering.schedule() == kOnce);
  EXPECT_EQ(cost.counters.moves, 0);
  cost.lowering.Lower(/*cost_limit_s=*/1);
  EXPECT_EQ(cost.counters.moves, 1);
  trials.lowering.Lower(kAnyCost);
  EXPECT_TRUE(trials.effort.IsSpent() && !trials.lowering.is_feasible());
}

TEST(AStageEndsBeforeTheRest) {
  MoveCounters counters;
  Effort effort{&counters, /*max_trials=*/5, Allowance(kUnlimitedSteps)};
  effort.BeginStage(2);
  counters.trials = 1;
  EXPECT_TRUE(!effort.IsSpent());
  counters.trials = 2;
  EXPECT_TRUE(effort.IsSpent());
  effort.BeginStage(100);
  counters.trials = 4;
  EXPECT_TRUE(!effort.IsSpent());
  counters.trials = 5;
  EXPECT_TRUE(effort.IsSpent() && !effort.is_cut_short);
}

TEST(RepeatsThatTheBudgetDoesNotNeedGo) {
  const StepProgram program = Skip();
  Lowered loose(program, kTwice, 18), tight(program, kTwice, 17);
  loose.lowering.CleanUp();
  EXPECT_TRUE(loose.lowering.schedule() == kOnce);
  EXPECT_EQ(loose.counters.removals, 1);
  tight.lowering.CleanUp();
  EXPECT_TRUE(tight.lowering.schedule() == kTwice);
  EXPECT_EQ(tight.lowering.TakeOut(std::vector<Step>{4}), 1.0);   // whatever that does to the budget
  EXPECT_TRUE(tight.lowering.schedule() == kOnce && !tight.lowering.is_feasible());
  tight.lowering.Reset(kTwice);
  EXPECT_TRUE(tight.lowering.is_feasible());
}

// a (5 s) and b (1 s), 8 bytes each, are held while c (5) and then d (10) are made from both: live 8, 16, 21, 31, 27,
// 18, 10. For 23 bytes one of them must go before d is made, for 22 both.
TEST(ADearRepeatIsSwappedForACheapOne) {
  testing::ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {8}, .cost_s = 5});
  const ValueId b = builder.Op({.inputs = {x}, .output_bytes = {8}, .cost_s = 1});
  const ValueId c = builder.Op({.inputs = {a, b}, .output_bytes = {5}});
  const ValueId d = builder.Op({.inputs = {c}, .output_bytes = {10}});
  const ValueId e = builder.Op({.inputs = {d}, .output_bytes = {1}});
  const ValueId f = builder.Op({.inputs = {a, e}, .output_bytes = {1}});
  builder.Op({.inputs = {b, f}, .output_bytes = {1}});
  const Schedule dear = {0, 1, 2, 3, 4, 0, 5, 6}, cheap = {0, 1, 2, 3, 4, 5, 1, 6};
  Lowered enough(builder.program(), dear, 23), less(builder.program(), dear, 22);
  EXPECT_TRUE(enough.lowering.is_feasible() && !less.lowering.is_feasible());
  enough.lowering.Swap();
  EXPECT_TRUE(enough.lowering.schedule() == cheap);
  EXPECT_EQ(enough.counters.swaps, 1);
  Lowered again(builder.program(), cheap, 23);
  again.lowering.Swap();
  EXPECT_TRUE(again.lowering.schedule() == cheap);
  EXPECT_EQ(again.counters.swaps, 0);
}

}  // namespace
}  // namespace coopjax
