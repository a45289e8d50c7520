#include "planners/improve/exchange_moves.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

// a and b (8 bytes, 2 and 1 s) are read by c (10) and again after d (10): live 8, 16, 26, 36, 27, 18, 10.
StepProgram Program() {
  testing::ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {8}, .cost_s = 2});
  const ValueId b = builder.Op({.inputs = {x}, .output_bytes = {8}, .cost_s = 1});
  const ValueId c = builder.Op({.inputs = {a, b}, .output_bytes = {10}});
  const ValueId d = builder.Op({.inputs = {c}, .output_bytes = {10}});
  const ValueId e = builder.Op({.inputs = {d}, .output_bytes = {1}});
  const ValueId f = builder.Op({.inputs = {a, e}, .output_bytes = {1}});
  builder.Op({.inputs = {b, f}, .output_bytes = {1}});
  return builder.program();
}
const Schedule kRepeatsA = {0, 1, 2, 3, 4, 0, 5, 6}, kRepeatsB = {0, 1, 2, 3, 4, 5, 1, 6},
               kRepeatsNone = {0, 1, 2, 3, 4, 5, 6};

struct Listed {
  explicit Listed(int64_t budget) : moves(program, budget, &effort, &counters) { moves.List(kRepeatsA); }

  // Of the items that save, or cost, just this; -1: none.
  int32_t ItemOf(double gain_s) const {
    const auto& items = moves.items();
    const auto found = std::ranges::find(items, gain_s, &ExchangeItem::gain_s);
    return found == items.end() ? -1 : static_cast<int32_t>(found - items.begin());
  }

  StepProgram program = Program();
  MoveCounters counters;
  Effort effort{&counters, std::numeric_limits<int64_t>::max(), Allowance(kUnlimitedSteps)};
  ExchangeMoves moves;
};

// The plan repeats a: live 8, 16, 26, 28, 19, 17, 18, 10. Watched is what is above 3/4 of the budget.
TEST(WhatIsNearTheBudgetIsWatched) {
  EXPECT_TRUE((Listed(28).moves.room() == std::vector<double>{2, 0}));
  EXPECT_TRUE((Listed(34).moves.room() == std::vector<double>{8, 6}));   // 26 > 25.5
  EXPECT_TRUE((Listed(35).moves.room() == std::vector<double>{7}));      // 26 < 26.25
  EXPECT_TRUE(Listed(38).moves.room().empty());                          // 28 < 28.5
  EXPECT_TRUE(Listed(38).moves.items().empty());
}

TEST(MovesSaveOrGiveBytes) {
  const Listed listed(28);
  const int32_t keep_a = listed.ItemOf(2), drop_b = listed.ItemOf(-1);
  EXPECT_TRUE(keep_a >= 0 && drop_b >= 0);
  EXPECT_EQ(listed.moves.items()[keep_a].bytes[1], 8);
  EXPECT_EQ(listed.moves.items()[drop_b].bytes[1], -8);
  EXPECT_EQ(listed.moves.items()[drop_b].bytes[0], 0);   // both are read there
  EXPECT_TRUE(listed.counters.trials >= 2);
}

TEST(AChoiceIsCarriedOut) {
  Listed listed(28);
  const int32_t keep_a = listed.ItemOf(2), drop_b = listed.ItemOf(-1);
  EXPECT_TRUE(listed.moves.CarryOut({{keep_a}, 2}) == kRepeatsNone);
  ExchangeChoice both = {{keep_a, drop_b}, 1};
  std::ranges::sort(both.items);
  EXPECT_TRUE(listed.moves.CarryOut(both) == kRepeatsB);
  EXPECT_TRUE(listed.moves.CarryOut({}) == kRepeatsA);
}

// Without repeats 36 bytes are live at step 3, 8 above the budget: of which the choice itself takes 8.
TEST(WhatAChoiceOverflowsIsWatchedFromThenOn) {
  Listed listed(28);
  const ExchangeChoice keep_a = {{listed.ItemOf(2)}, 2};
  EXPECT_EQ(ComputeLiveness(listed.program, listed.moves.CarryOut(keep_a)).peak_bytes, 36);
  listed.moves.WatchExcess(keep_a);
  EXPECT_TRUE((listed.moves.room() == std::vector<double>{2, 0, 0}));
  EXPECT_EQ(listed.moves.items()[keep_a.items[0]].bytes[2], 8);
}

TEST(WithoutEffortNothingIsListed) {
  const StepProgram program = Program();
  MoveCounters counters;
  Effort effort{&counters, /*max_trials=*/0, Allowance(kUnlimitedSteps)};
  ExchangeMoves moves(program, 28, &effort, &counters);
  moves.List(kRepeatsA);
  EXPECT_TRUE(moves.items().empty());
  EXPECT_EQ(counters.trials, 0);
}

}  // namespace
}  // namespace coopjax
