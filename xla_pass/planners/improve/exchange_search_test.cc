#include "planners/improve/exchange_search.h"

#include "planners/peak/planner.h"
#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

// `small` values of 10 bytes that take 2 s each, and one of 30 bytes that takes 5 s, are read at the end. Two ops of
// 10 bytes lie between.
StepProgram ThreeOrOne(int num_small) {
  testing::ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  std::vector<ValueId> held;
  for (int i = 0; i < num_small; ++i) held.push_back(builder.Op({.inputs = {x}, .output_bytes = {10}, .cost_s = 2}));
  held.push_back(builder.Op({.inputs = {x}, .output_bytes = {30}, .cost_s = 5}));
  ValueId last = builder.Op({.inputs = held, .output_bytes = {40}});
  last = builder.Op({.inputs = {last}, .output_bytes = {40}});
  last = builder.Op({.inputs = {last}, .output_bytes = {1}});
  for (ValueId v : held) last = builder.Op({.inputs = {v, last}, .output_bytes = {1}});
  return builder.program();
}

TEST(ExchangesThreeForOne) {
  // Values 0, 1, 2 take 10 bytes, 3 takes 30: with the 80 of ops 4 and 5, 140. For 110, three repeats of 2 s or one of
  // 5 s: no repeat can go alone or two by two, and none can be had for less than the three together.
  const StepProgram program = ThreeOrOne(3);
  EXPECT_EQ(ComputeLiveness(program, program.schedule).peak_bytes, 140);
  const Schedule dear = {0, 1, 2, 3, 4, 5, 6, 0, 7, 1, 8, 2, 9, 10};
  EXPECT_EQ(ComputeLiveness(program, dear).peak_bytes, 110);
  const ImproveResult result = SearchExchanges(program, dear, 110, {});
  EXPECT_TRUE((result.schedule == Schedule{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 10}));
  EXPECT_TRUE(result.improvements > 0);
  // One byte less, and the three are not enough to begin with: what is above the budget comes back as it is.
  EXPECT_TRUE(SearchExchanges(program, dear, 109, {}).schedule == dear);
  EXPECT_EQ(SearchExchanges(program, dear, 110, {.stop_at_cost_s = 6}).rounds, 0);
  EXPECT_EQ(SearchExchanges(program, dear, 110, {.max_work = 0}).rounds, 0);
}

TEST(NeverWorsensRandomPlans) {
  int32_t num_improved = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    const StepProgram program = testing::RandomProgram(seed, 40);
    const int64_t budget = ComputeLiveness(program, program.schedule).peak_bytes * (9 - seed % 7) / 10;
    PeakOptions hasty;
    hasty.num_price_rounds = 0;
    hasty.clean_up = hasty.swap = false;
    const PeakResult start = PlanPeak(program, program.schedule, budget, hasty);
    const ExchangeOptions options = {.patience = 3, .seed = seed};
    const Schedule found = SearchExchanges(program, start.schedule, budget, options).schedule;
    EXPECT_EQ(CheckSchedule(program, found), "");
    EXPECT_TRUE(SearchExchanges(program, start.schedule, budget, options).schedule == found);
    if (!start.is_feasible) {
      EXPECT_TRUE(found == start.schedule);
      continue;
    }
    EXPECT_TRUE(ComputeLiveness(program, found).peak_bytes <= budget);
    const double before_s = CountRecompute(program, start.schedule).cost_s;
    const double after_s = CountRecompute(program, found).cost_s;
    EXPECT_TRUE(after_s <= before_s * (1 + 1e-9));
    num_improved += after_s < before_s;
  }
  EXPECT_TRUE(num_improved > 0);
}

TEST(EmptyProgram) { EXPECT_TRUE(SearchExchanges(testing::ProgramBuilder().program(), {}, 0, {}).schedule.empty()); }

}  // namespace
}  // namespace coopjax
