#include "planners/moves/drop_moves.h"

#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

constexpr OpId kMakesP = 0, kMakesA = 1;
constexpr ValueId kA = 2;
constexpr Gap kGap = {kA, StepKey(1), StepKey(2), StepKey(5)};   // between the reads of a

// x -> p (2 bytes, 3 s) -> a (8 bytes, 1 s) -> b (1) -> c (5) -> d (5); the last op reads a and d.
// Live: 2, 10, 9, 14, 18, 14.
StepProgram Program() {
  testing::ProgramBuilder builder;
  const ValueId p = builder.Op({.inputs = {builder.Given(1)}, .output_bytes = {2}, .cost_s = 3});
  const ValueId a = builder.Op({.inputs = {p}, .output_bytes = {8}});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {1}});
  const ValueId c = builder.Op({.inputs = {b}, .output_bytes = {5}});
  const ValueId d = builder.Op({.inputs = {c}, .output_bytes = {5}});
  builder.Op({.inputs = {a, d}, .output_bytes = {1}});
  return builder.program();
}

struct Planned {
  explicit Planned(const Schedule& start, int64_t budget) : schedule(program, start), curve(budget, 1, false) {
    curve.Reset(schedule);
  }
  Schedule Committed() {
    schedule.Commit();
    return schedule.schedule();
  }

  StepProgram program = Program();
  EditableSchedule schedule;
  ExcessCurve curve;
  DropMoves moves{&schedule, &curve};
};

const Schedule kOnce = {0, 1, 2, 3, 4, 5}, kTwice = {0, 1, 2, 3, 4, kMakesP, kMakesA, 5};

TEST(ADeadOperandIsMadeAgainOrHeld) {
  Planned remade(kOnce, 12), held(kOnce, 12);
  const auto both = remade.moves.Drop(kGap, DeadOperands::kRemake, /*merges_repeats=*/false);
  EXPECT_TRUE(both.is_possible && both.met_dead_operand);
  EXPECT_EQ(both.cost_s, 3 + 1);
  EXPECT_TRUE(remade.Committed() == kTwice);
  const auto one = held.moves.Drop(kGap, DeadOperands::kHold, /*merges_repeats=*/false);
  EXPECT_TRUE(one.is_possible && one.met_dead_operand);
  EXPECT_EQ(one.cost_s, 1);
  EXPECT_TRUE((held.Committed() == Schedule{0, 1, 2, 3, 4, kMakesA, 5}));
}

// Steps 3, 4 and 5 are above 12 bytes, of which p would have to be held over 3 and 4: 2 steps * 2 bytes = 4, against
// 3 s at the going rate. At 4 / 3 it is held.
TEST(TheGoingRateDecides) {
  Planned dear(kOnce, 12), cheap(kOnce, 12);
  dear.moves.set_going_rate(1.4);
  EXPECT_EQ(dear.moves.Drop(kGap, DeadOperands::kAtRate, false).cost_s, 1);
  cheap.moves.set_going_rate(1.3);
  EXPECT_EQ(cheap.moves.Drop(kGap, DeadOperands::kAtRate, false).cost_s, 3 + 1);
}

// At 1.4 that is as if all were held, at 1.3 as if all were made again: told before another way is followed.
TEST(AChainTellsWhetherAnotherWayDiffers) {
  Planned dear(kOnce, 12), cheap(kOnce, 12);
  dear.moves.set_going_rate(1.4);
  EXPECT_TRUE(dear.moves.Follow(kGap, DeadOperands::kRemake, /*merges_repeats=*/false).holds_at_rate);
  EXPECT_TRUE(!dear.moves.Follow(kGap, DeadOperands::kAtRate, /*merges_repeats=*/false).remakes_at_rate);
  cheap.moves.set_going_rate(1.3);
  EXPECT_TRUE(!cheap.moves.Follow(kGap, DeadOperands::kRemake, /*merges_repeats=*/false).holds_at_rate);
  EXPECT_TRUE(cheap.moves.Follow(kGap, DeadOperands::kAtRate, /*merges_repeats=*/false).remakes_at_rate);
}

TEST(AChainMayBeTooDear) {
  Planned planned(kOnce, 12);
  planned.moves.set_most_cost(3.9);
  const auto outcome = planned.moves.Drop(kGap, DeadOperands::kRemake, /*merges_repeats=*/false);
  EXPECT_TRUE(!outcome.is_possible && outcome.is_too_dear);
  planned.schedule.UndoTo(0);
  planned.moves.set_most_cost(4);
  EXPECT_TRUE(planned.moves.Drop(kGap, DeadOperands::kRemake, /*merges_repeats=*/false).is_possible);
}

// a is made again right before its first read; its repeat for the last op goes if holding costs nothing. In between
// live 6, 10 and 7 bytes.
TEST(ALaterRepeatIsMergedWhereHoldingIsCheaper) {
  const Gap gap = {kA, StepKey(1), StepKey(1), StepKey(2)};
  Planned enough(kTwice, 10), less(kTwice, 9);
  const auto merged = enough.moves.Drop(gap, DeadOperands::kHold, /*merges_repeats=*/true);
  EXPECT_TRUE(merged.is_possible && merged.has_merged);
  EXPECT_EQ(merged.cost_s, 1 - 1 - (3 + 1));   // one more run of a, less the first one, less the repeat and p's
  EXPECT_TRUE(enough.Committed() == kOnce);
  const auto kept = less.moves.Drop(gap, DeadOperands::kHold, /*merges_repeats=*/true);
  EXPECT_TRUE(kept.is_possible && !kept.has_merged);
  EXPECT_EQ(kept.cost_s, 1 - 1);
}

// What TheGoingRateDecides and ALaterRepeatIsMerged do, told without an edit: a second run of a that would go for 0
// seconds a byte is foreseen with its own cost, what was made for it is not.
TEST(AChainTellsWhatAMoveTakes) {
  Planned held(kOnce, 12), enough(kTwice, 10), less(kTwice, 9);
  const auto chain = held.moves.Follow(kGap, DeadOperands::kHold, /*merges_repeats=*/true);
  EXPECT_TRUE(chain.is_possible && chain.met_dead_operand && !chain.may_delay && !chain.may_merge);
  EXPECT_EQ(chain.cost_s, 1);
  EXPECT_EQ(chain.held_price, 2 * 2);
  const Gap gap = {kA, StepKey(1), StepKey(1), StepKey(2)};
  const auto merging = enough.moves.Follow(gap, DeadOperands::kHold, /*merges_repeats=*/true);
  EXPECT_TRUE(merging.may_delay && merging.may_merge);
  EXPECT_EQ(merging.merged_s, 1);
  EXPECT_TRUE(!less.moves.Follow(gap, DeadOperands::kHold, /*merges_repeats=*/true).may_merge);
  EXPECT_TRUE(held.schedule.edits().empty() && enough.schedule.edits().empty());
}

TEST(ARepeatIsTakenOutWithWhatIsMadeForIt) {
  Planned planned(kTwice, 12);
  double saved_s = 0;
  EXPECT_TRUE(planned.moves.TakeOut(kMakesA, StepKey(6), &saved_s));
  EXPECT_EQ(saved_s, 3 + 1);
  EXPECT_TRUE(planned.Committed() == kOnce);
  EXPECT_TRUE(!planned.moves.TakeOut(kMakesA, StepKey(1), &saved_s));   // its only run
  EXPECT_TRUE(planned.schedule.edits().empty());
}

}  // namespace
}  // namespace coopjax
