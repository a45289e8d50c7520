#include "planners/bounds/first_run_cut.h"

#include <cmath>

#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

// x is given; a (10 bytes, 4 s) is made into b (6, 1 s); late (1) reads middle (2), a and b. Before middle
// runs, both are there: 10 + 6 + 2.
struct Two {
  testing::ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {10}, .cost_s = 4});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {6}, .cost_s = 1});
  const ValueId middle = builder.Op({.inputs = {b}, .output_bytes = {2}});
  const ValueId late = builder.Op({.inputs = {a, b, middle}, .output_bytes = {1}});
  StepProgram& program = builder.program();
};

FirstRunCut::Best BestOf(const StepProgram& program, OpId op, int64_t budget_bytes) {
  const FirstRunOrder order(program);
  const ShareIndex shares(program);
  return FirstRunCut(program, order, shares, op).OverPrices(budget_bytes);
}

TEST(HoldsOrRemakes) {
  const Two two;
  const FirstRunOrder order(two.program);
  const ShareIndex shares(two.program);
  FirstRunCut cut(two.program, order, shares, 2);
  EXPECT_EQ(cut.most_bytes(), 18);
  // b is read by middle, so only a (4 s for 10 bytes) can make room: at 0.3 s a byte 8 bytes too much cost 2.4 s and
  // a is held; at 0.4 both are as good; at 0.5 it is remade for 4 s and leaves 2 bytes free.
  EXPECT_TRUE(std::abs(cut.At(0.3, 10) - 2.4) < 1e-6);
  EXPECT_TRUE(std::abs(cut.At(0.4, 10) - 3.2) < 1e-6);
  EXPECT_TRUE(std::abs(cut.At(0.5, 10) - 3.0) < 1e-6);
  EXPECT_TRUE(std::abs(cut.OverPrices(10).cost_s - 3.2) < 1e-6);
  EXPECT_EQ(cut.OverPrices(18).cost_s, 0.0);
  EXPECT_TRUE(std::isinf(cut.OverPrices(7).cost_s));
}

TEST(PinnedValuesAreHeldAtAnyPrice) {
  Two two;
  two.program.op_can_recompute[0] = false;
  EXPECT_TRUE(std::isinf(BestOf(two.program, 2, 17).cost_s));
  EXPECT_EQ(BestOf(two.program, 2, 18).cost_s, 0.0);
}

TEST(WhatTheOpDoesNotDependOnIsFree) {
  // c is read late and may run after middle for the first time: only a and b count.
  testing::ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId c = builder.Op({.inputs = {x}, .output_bytes = {100}});
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {10}, .cost_s = 4});
  const ValueId middle = builder.Op({.inputs = {a}, .output_bytes = {2}});
  builder.Op({.inputs = {c, middle}, .output_bytes = {1}});
  EXPECT_EQ(BestOf(builder.program(), 2, 12).cost_s, 0.0);
}

TEST(WhatTheOpOverwritesCantBeHeld) {
  // r reads a before w overwrites it, then again (in a repeat) if its result was not held.
  testing::ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {10}, .cost_s = 4});
  const ValueId r = builder.Op({.inputs = {a}, .output_bytes = {10}, .cost_s = 1});
  const ValueId w = builder.Op({.inputs = {a}, .output_bytes = {10}, .in_place_of = a, .control = {1}});
  builder.Op({.inputs = {r, w}, .output_bytes = {1}});
  // w's 10 bytes and r's 10; with r made again, and a for it, 5 s save 10 bytes: 1 byte costs half a second.
  EXPECT_EQ(BestOf(builder.program(), 2, 20).cost_s, 0.0);
  EXPECT_TRUE(std::abs(BestOf(builder.program(), 2, 19).cost_s - 0.5) < 1e-6);
  EXPECT_TRUE(std::abs(BestOf(builder.program(), 2, 10).cost_s - 5) < 1e-6);
}

}  // namespace
}  // namespace coopjax
