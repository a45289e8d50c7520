#include "bridge/placement.h"

#include <string>
#include <vector>

#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

// The productions in words, an instruction's index with a ' for each clone and what it reads: "0 1(0) 2(1) 1'(0) ...".
std::string Text(const Placement& placement) {
  std::string text;
  for (int32_t k = 0; k < std::ssize(placement.instructions); ++k) {
    text.append(k == 0 ? "" : " ").append(std::to_string(placement.instructions[k]));
    if (placement.is_clone[k]) text += "'";
    std::string operands;
    for (const int32_t operand : placement.operands[k]) {
      operands.append(operands.empty() ? "" : " ").append(std::to_string(operand));
    }
    if (!operands.empty()) text.append("(").append(operands).append(")");
  }
  return text;
}

Placement Placed(HloBuilder& builder, const std::vector<int64_t>& ops, const Schedule& schedule) {
  const hlo::Module& module = builder.Finish();
  Placement placement;
  EXPECT_EQ(PlaceSchedule(module, module.entry, ops, schedule, &placement), "");
  return placement;
}

// 0 parameter, 1 negate, 2 exponential of it, 3 add of both, 4 multiply of negate and add.
struct Chain : HloBuilder {
  std::vector<int64_t> ops;
  Chain() {
    Begin("main");
    const int64_t p = Parameter(0, F32({4}));
    ops.push_back(Add("negate", F32({4}), {p}));
    ops.push_back(Add("exponential", F32({4}), {ops[0]}));
    ops.push_back(Add("add", F32({4}), {ops[0], ops[1]}));
    ops.push_back(Add("multiply", F32({4}), {ops[0], ops[2]}));
  }
};

TEST(TheGivenOrderPlacesOriginals) {
  Chain chain;
  const Placement placement = Placed(chain, chain.ops, {0, 1, 2, 3});
  EXPECT_EQ(Text(placement), "0 1(0) 2(1) 3(1 2) 4(1 3)");
  EXPECT_EQ(placement.root, 4);
  EXPECT_EQ(placement.num_clones, 0);
}

TEST(AReadIsOfTheMostRecentProduction) {
  Chain chain;
  // The second negate is production 3: the add reads it beside production 2, the multiply beside the add, which is 4.
  const Placement placement = Placed(chain, chain.ops, {0, 1, 0, 2, 3});
  EXPECT_EQ(Text(placement), "0 1(0) 2(1) 1'(0) 3(3 2) 4(3 4)");
  EXPECT_EQ(placement.root, 5);
  EXPECT_EQ(placement.num_clones, 1);
}

TEST(TheRootIsTheLastOfItsProductions) {
  Chain chain;
  EXPECT_EQ(Placed(chain, chain.ops, {0, 1, 2, 3, 3}).root, 5);
}

// 0 parameter, 1 negate a, 2 bitcast b of it, 3 exponential of b, 4 add of b and 3, 5 tuple of a and 4.
struct Glued : HloBuilder {
  std::vector<int64_t> ops;
  Glued() {
    Begin("main");
    const int64_t a = Add("negate", F32({4}), {Parameter(0, F32({4}))});
    const int64_t b = Add("bitcast", F32({2, 2}), {a});
    const int64_t c = Add("exponential", F32({2, 2}), {b}), d = Add("add", F32({2, 2}), {b, c});
    Add("tuple", TupleOf({F32({4}), F32({2, 2})}), {a, d});
    ops = {a, c, d};
  }
};

TEST(GlueIsPlacedBeforeItsFirstUse) {
  Glued glued;
  EXPECT_EQ(Text(Placed(glued, glued.ops, {0, 1, 2})), "0 1(0) 2(1) 3(2) 4(2 3) 5(1 4)");
}

TEST(GlueOverACloneIsACloneThatDoesNotCount) {
  Glued glued;
  // Productions 4 and 5 are the second a and the bitcast over it.
  const Placement placement = Placed(glued, glued.ops, {0, 1, 0, 2});
  EXPECT_EQ(Text(placement), "0 1(0) 2(1) 3(2) 1'(0) 2'(4) 4(5 3) 5(4 6)");
  EXPECT_EQ(placement.num_clones, 1);
}

TEST(GlueIsPlacedOnceForEachProductionUnderIt) {
  Glued glued;
  // The exponential runs again over the bitcast that is there, production 2.
  EXPECT_EQ(Text(Placed(glued, glued.ops, {0, 1, 1, 2})), "0 1(0) 2(1) 3(2) 3'(2) 4(2 4) 5(1 5)");
}

TEST(DeadGlueIsPlacedAsSoonAsItCan) {
  HloBuilder builder;
  builder.Begin("main");
  const int64_t a = builder.Add("negate", F32({4}), {builder.Parameter(0, F32({4}))});   // 1
  builder.Add("bitcast", F32({2, 2}), {a});                                              // 2, nobody reads it
  const int64_t b = builder.Add("negate", F32({4}), {a});                                // 3
  const int64_t c = builder.Add("add", F32({4}), {a, b});                                // 4
  EXPECT_EQ(Text(Placed(builder, {a, b, c}, {0, 1, 2})), "0 1(0) 2(1) 3(1) 4(1 3)");
}

TEST(AnyComputationIsPlaced) {
  HloBuilder builder;
  const int64_t called = builder.Begin("called");
  const int64_t p = builder.Parameter(0, F32({4}));
  const int64_t a = builder.Add("negate", F32({4}), {p}), b = builder.Add("exponential", F32({4}), {p});
  const int64_t c = builder.Add("add", F32({4}), {a, b});
  builder.Begin("main");
  builder.Add("call", F32({4}), {builder.Parameter(0, F32({4}))}, {called});
  Placement placement;
  EXPECT_EQ(PlaceSchedule(builder.Finish(), 0, {a, b, c}, {1, 0, 2}, &placement), "");
  EXPECT_EQ(Text(placement), "0 2(0) 1(0) 3(2 1)");
}

TEST(WhatCannotBePlacedIsSaid) {
  Chain chain;
  const hlo::Module& module = chain.Finish();
  Placement placement;
  EXPECT_EQ(PlaceSchedule(module, module.entry, chain.ops, {0, 1, 2}, &placement), "the schedule lacks op 3");
  EXPECT_EQ(PlaceSchedule(module, module.entry, chain.ops, {1, 0, 2, 3}, &placement),
            "the schedule has nothing before that produces 'negate.1', which 'exponential.2' reads");
}

// 0 parameter, 1 negate a, 2 exponential b, 3 reverse of a bitcast (4) of a, which only the barrier has, 5 the
// barrier's tuple of b and it, 6 the barrier, 7 its b, 8 the add of that and a.
TEST(DeadWorkIsPlacedOnceAsSoonAsItCan) {
  HloBuilder builder;
  builder.Begin("main");
  const hlo::Shape pair = TupleOf({F32({4}), F32({4})});
  const int64_t p = builder.Parameter(0, F32({4}));
  const int64_t a = builder.Add("negate", F32({4}), {p}), b = builder.Add("exponential", F32({4}), {p});
  const int64_t dead = builder.Add("reverse", F32({4}), {builder.Add("bitcast", F32({4}), {a})});
  const int64_t barrier = builder.Add("opt-barrier", pair, {builder.Add("tuple", pair, {b, dead})});
  const int64_t c = builder.Add("add", F32({4}), {builder.Element(barrier, 0), a});
  // Before b, though nothing reads it yet; a's second production brings no second one.
  EXPECT_EQ(Text(Placed(builder, {a, b, c}, {0, 1, 0, 2})), "0 1(0) 3(1) 4(2) 2(0) 1'(0) 5(4 3) 6(6) 7(7) 8(8 5)");
}

}  // namespace
}  // namespace coopjax
