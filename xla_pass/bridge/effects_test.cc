#include "bridge/effects.h"

#include <string>
#include <vector>

#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

hlo::Shape InMemory(int64_t memory_space) {
  hlo::Shape shape = F32({4});
  shape.memory_space = memory_space;
  return shape;
}

TEST(CollectivesAndRandomStateAreEffects) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({4}));
  for (const char* opcode : {"all-reduce", "collective-permute", "rng", "send", "outfeed", "brand-new-op"}) {
    const int64_t i = b.Add(opcode, F32({4}), {p});
    EXPECT_TRUE(HasEffects(hlo::Graph(b.Finish()), b.index(i)));
  }
  for (const char* opcode : {"negate", "copy", "reverse", "partition-id", "replica-id"}) {
    const int64_t i = b.Add(opcode, F32({4}), {p});
    EXPECT_TRUE(!HasEffects(hlo::Graph(b.Finish()), b.index(i)));
  }
}

TEST(ACustomCallHasTheEffectsThatItSays) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({4}));
  const int64_t quiet = b.Add("custom-call", F32({4}), {p});
  const int64_t loud = b.Add("custom-call", F32({4}), {p});
  b.last().custom_call_has_side_effect = true;
  const hlo::Graph graph(b.Finish());
  EXPECT_TRUE(!HasEffects(graph, b.index(quiet)));
  EXPECT_TRUE(HasEffects(graph, b.index(loud)));
}

// Space 0 is the main memory, 5 the host's; 1 is a TPU's vector memory.
TEST(WhatIsMadeInASmallMemoryIsAnEffectAndGlueMakesNothing) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({4}));
  const int64_t on_host = b.Add("negate", InMemory(5), {p}), small = b.Add("negate", InMemory(1), {p});
  const int64_t one_of_two = b.Add("custom-call", TupleOf({InMemory(0), InMemory(1)}), {p});
  const int64_t shown = b.Add("bitcast", InMemory(1), {small});
  const hlo::Graph graph(b.Finish());
  EXPECT_TRUE(!HasEffects(graph, b.index(on_host)));
  EXPECT_TRUE(HasEffects(graph, b.index(small)));
  EXPECT_TRUE(HasEffects(graph, b.index(one_of_two)));
  EXPECT_TRUE(!HasEffects(graph, b.index(shown)));
}

// main calls outer, which calls inner, which draws random numbers; and a pure computation.
TEST(EffectsAreThoseOfAllThatIsCalled) {
  HloBuilder b;
  const int64_t inner = b.Begin("inner");
  b.Add("rng", F32({4}), {b.Parameter(0, F32({4}))});
  const int64_t outer = b.Begin("outer");
  b.Add("call", F32({4}), {b.Parameter(0, F32({4}))}, {inner});
  const int64_t pure = b.Begin("pure");
  b.Add("negate", F32({4}), {b.Parameter(0, F32({4}))});
  b.EndEmbedded();
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({4}));
  const int64_t drawn = b.Add("call", F32({4}), {p}, {outer}), fused = b.LoopFusion(F32({4}), {p}, pure);
  const hlo::Graph graph(b.Finish());
  EXPECT_TRUE(!hlo::HasOwnEffects(graph.instruction(b.index(drawn))));
  EXPECT_TRUE(HasEffects(graph, b.index(drawn)));
  EXPECT_TRUE(!HasEffects(graph, b.index(fused)));
}

// To have no effect is not yet to give the same bits again: a custom call may do anything.
TEST(PureIsWhatGivesTheSameBits) {
  HloBuilder b;
  const int64_t custom = b.Begin("custom");
  b.Add("custom-call", F32({4}), {b.Parameter(0, F32({4}))});
  b.EndEmbedded();
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({4}));
  const int64_t negate = b.Add("negate", F32({4}), {p}), called = b.Add("custom-call", F32({4}), {p});
  const int64_t fused = b.LoopFusion(F32({4}), {p}, custom), unknown = b.Add("brand-new-op", F32({4}), {p});
  const hlo::Graph graph(b.Finish());
  EXPECT_TRUE(IsPure(graph, b.index(negate)));
  EXPECT_TRUE(!IsPure(graph, b.index(called)));
  EXPECT_TRUE(!IsPure(graph, b.index(fused)));
  EXPECT_TRUE(!IsPure(graph, b.index(unknown)));
}

TEST(UpdatesWriteInPlace) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({8})), row = b.Parameter(1, F32({1}));
  const int64_t update = b.Add("dynamic-update-slice", F32({8}), {p, row});
  const int64_t shown = b.Add("bitcast", F32({2, 4}), {update}), negate = b.Add("negate", F32({2, 4}), {shown});
  const hlo::Graph graph(b.Finish());
  EXPECT_TRUE(WritesInPlace(graph, b.index(update)));
  EXPECT_TRUE(WritesInPlace(graph, b.index(shown)));
  EXPECT_TRUE(!WritesInPlace(graph, b.index(negate)));
}

// Fusions: one whose root is an update, one that has it as one of two results, one that has it inside alone.
TEST(AFusionThatEndsInAnUpdateMayWriteInPlace) {
  HloBuilder b;
  std::vector<int64_t> computations;
  for (const std::string end : {"update", "tuple", "negate"}) {
    computations.push_back(b.Begin(end));
    const int64_t p = b.Parameter(0, F32({8})), row = b.Parameter(1, F32({1}));
    const int64_t update = b.Add("dynamic-update-slice", F32({8}), {p, row});
    if (end == "tuple") b.Add("tuple", TupleOf({F32({1}), F32({8})}), {b.Add("negate", F32({1}), {row}), update});
    if (end == "negate") b.Add("negate", F32({8}), {update});
    b.EndEmbedded();
  }
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({8})), row = b.Parameter(1, F32({1}));
  const int64_t one = b.LoopFusion(F32({8}), {p, row}, computations[0]);
  const int64_t two = b.LoopFusion(TupleOf({F32({1}), F32({8})}), {p, row}, computations[1]);
  const int64_t inside = b.LoopFusion(F32({8}), {p, row}, computations[2]);
  const hlo::Graph graph(b.Finish());
  EXPECT_TRUE(WritesInPlace(graph, b.index(one)));
  EXPECT_TRUE(WritesInPlace(graph, b.index(two)));
  EXPECT_TRUE(!WritesInPlace(graph, b.index(inside)));
}

}  // namespace
}  // namespace coopjax
