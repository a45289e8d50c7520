#include "hlo/graph.h"

#include <cstdint>
#include <span>
#include <vector>

#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax::hlo {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;
using Indices = std::vector<int32_t>;
using Path = std::vector<int64_t>;

Indices ListOf(std::span<const int32_t> list) { return {list.begin(), list.end()}; }

// (f32, (f32, f32), f32): nodes 0 to 5 in pre-order, and the operand that came before takes one.
TEST(ShapeTreesAreNumberedInPreOrder) {
  HloBuilder b;
  b.Begin("main");
  b.Parameter(0, F32({}));
  b.Parameter(1, TupleOf({F32({}), TupleOf({F32({}), F32({})}), F32({})}));
  const Graph graph(b.Finish());
  EXPECT_EQ(graph.num_nodes(), 1 + 6);
  EXPECT_EQ(graph.node_base(1), 1);
  EXPECT_EQ(graph.node_end(1), 7);
  const Path inner = {1}, second = {1, 1}, last = {2};
  EXPECT_EQ(graph.NodeAt(1, inner), 1 + 2);
  EXPECT_EQ(graph.subtree_size(1 + 2), 3);
  EXPECT_EQ(graph.NodeAt(1, second), 1 + 4);
  EXPECT_EQ(graph.NodeAt(1, last), 1 + 5);
  EXPECT_TRUE(graph.PathOf(1 + 4) == second && graph.PathOf(1 + 5) == last && graph.PathOf(1).empty());
  EXPECT_EQ(graph.owner(1 + 4), 1);
  EXPECT_EQ(graph.Child(1, 2), 1 + 5);
  EXPECT_EQ(graph.Child(1, 3), Graph::kNoNode);      // there are three
  EXPECT_EQ(graph.Child(1 + 5, 0), Graph::kNoNode);  // an array has none
  EXPECT_EQ(graph.NodeAt(1, Path{0, 0}), Graph::kNoNode);
}

// x * x: one user, two uses.
TEST(UsersCountOnceAndUsesEachTime) {
  HloBuilder b;
  b.Begin("main");
  const int64_t x = b.Parameter(0, F32({}));
  const int64_t y = b.Add("multiply", F32({}), {x, x});
  b.Add("negate", F32({}), {y});
  b.Follows({x});
  const Graph graph(b.Finish());
  EXPECT_TRUE(ListOf(graph.users(0)) == Indices{1});
  EXPECT_EQ(graph.uses(0).size(), 2u);
  EXPECT_EQ(graph.uses(0)[1].user, 1);
  EXPECT_EQ(graph.uses(0)[1].operand_number, 1);
  EXPECT_TRUE(ListOf(graph.control_predecessors(2)) == Indices{0});
  EXPECT_TRUE(graph.is_user_of(1, 0) && !graph.is_user_of(2, 0));
  EXPECT_TRUE(graph.is_root(2) && !graph.is_root(1));
}

// The entry calls f, which calls g, and runs a fusion.
TEST(OnlyControlFlowIsReached) {
  HloBuilder b;
  const int64_t fused = b.Begin("fused");
  b.Add("negate", F32({}), {b.Parameter(0, F32({}))});
  b.EndEmbedded();
  const int64_t g = b.Begin("g");
  b.Add("negate", F32({}), {b.Parameter(0, F32({}))});
  const int64_t f = b.Begin("f");
  b.Add("call", F32({}), {b.Parameter(0, F32({}))}, {g});
  b.Begin("main");
  const int64_t x = b.LoopFusion(F32({}), {b.Parameter(0, F32({}))}, fused);
  const int64_t call = b.Add("call", F32({}), {x}, {f});
  const Graph graph(b.Finish());
  const std::vector<bool> expected = {false, true, true, true};
  for (int32_t c = 0; c < 4; ++c) EXPECT_EQ(graph.is_control_flow(c), expected[c]);
  EXPECT_TRUE((graph.CallGraphPostOrder() == Indices{1, 2, 3}));
  EXPECT_TRUE(ListOf(graph.callers(2)) == Indices{b.index(call)});
  EXPECT_EQ(graph.parameter(2, 0), 4);
  EXPECT_EQ(graph.parameter(2, 1), -1);
  EXPECT_EQ(graph.parameter(2, -1), -1);
  EXPECT_TRUE(graph.sequence(0).empty());
}

// sine(element 0 of barrier(x, y)) reads x itself; the tuple, the barrier and the elements are gone. A tuple that
// somebody else reads stays.
TEST(BarriersTuplesAndElementsAreDropped) {
  for (const bool is_read : {false, true}) {
    HloBuilder b;
    b.Begin("main");
    const Shape pair = TupleOf({F32({}), F32({})});
    const int64_t x = b.Parameter(0, F32({})), y = b.Parameter(1, F32({}));
    const int64_t tuple = b.Add("tuple", pair, {x, y});
    const int64_t barrier = b.Add("opt-barrier", pair, {tuple});
    const int64_t element = b.Element(barrier, 0);
    if (is_read) b.Add("custom-call", F32({}), {tuple});
    const int64_t sine = b.Add("sine", F32({}), {element});
    const Graph graph(b.Finish());
    EXPECT_TRUE(ListOf(graph.operands(b.index(sine))) == Indices{b.index(x)});
    EXPECT_TRUE(graph.is_dropped(b.index(barrier)) && graph.is_dropped(b.index(element)));
    EXPECT_EQ(graph.is_dropped(b.index(tuple)), !is_read);
    EXPECT_EQ(graph.sequence(0).size(), is_read ? 5u : 3u);
  }
}

// add(negate, sine), and below them p: depth first, operands in order, whatever the schedule.
TEST(PostOrderIsDepthFirst) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({}));
  const int64_t sine = b.Add("sine", F32({}), {p});
  const int64_t negate = b.Add("negate", F32({}), {p});
  const int64_t unread = b.Add("cosine", F32({}), {p});
  const int64_t sum = b.Add("add", F32({}), {negate, sine});
  const Graph graph(b.Finish());
  const Indices expected = {b.index(p), b.index(unread), b.index(negate), b.index(sine), b.index(sum)};
  EXPECT_TRUE(graph.PostOrder(0) == expected);
  EXPECT_TRUE((graph.ById(0) == Indices{0, 1, 2, 3, 4}));
}

// Behind a barrier around (x, d) only x is read: d goes, and what d alone reads. Not where d does more, is held by
// control, or where somebody takes the barrier whole.
TEST(WhatOnlyABarrierKeepsIsDropped) {
  enum Reason { kNone, kEffects, kOverwrites, kControl, kBarrierControl, kTakenWhole, kParameter };
  for (const Reason kept : {kNone, kEffects, kOverwrites, kControl, kBarrierControl, kTakenWhole, kParameter}) {
    HloBuilder b;
    b.Begin("main");
    const Shape pair = TupleOf({F32({4}), F32({4})});
    const int64_t p = b.Parameter(0, F32({4}));
    const int64_t x = b.Add("sine", F32({4}), {p}), q = b.Add("negate", F32({4}), {p});
    const int64_t d = kept == kEffects      ? b.Add("rng", F32({4}), {q})
                      : kept == kOverwrites ? b.Add("dynamic-update-slice", F32({4}), {q, q})
                                            : b.Add("reverse", F32({4}), {q});
    if (kept == kControl) b.Follows({x});
    const int64_t tuple = b.Add("tuple", pair, {x, kept == kParameter ? p : d});
    const int64_t barrier = b.Add("opt-barrier", pair, {tuple});
    if (kept == kBarrierControl) b.Follows({x});
    const int64_t y = b.Add("cosine", F32({4}), {b.Element(barrier, 0)});
    if (kept == kTakenWhole) b.Add("tuple", TupleOf({F32({4}), pair}), {y, barrier});
    const Graph graph(b.Finish());
    // With the parameter in its place d had no reader to lose.
    EXPECT_EQ(graph.is_dropped(b.index(d)), kept == kNone);
    EXPECT_EQ(graph.is_dropped(b.index(q)), kept == kNone);
    EXPECT_TRUE(!graph.is_dropped(b.index(p)) && !graph.is_dropped(b.index(x)) && !graph.is_dropped(b.index(y)));
    EXPECT_EQ(graph.users(b.index(p)).size(), kept == kNone ? 1u : 2u);
  }
}

// d stands behind two barriers, the second one around it alone, and runs a fusion.
TEST(WhatOnlyNestedBarriersKeepIsDropped) {
  HloBuilder b;
  const int64_t fused = b.Begin("fused");
  b.Add("negate", F32({4}), {b.Parameter(0, F32({4}))});
  b.EndEmbedded();
  b.Begin("main");
  const Shape pair = TupleOf({F32({4}), F32({4})});
  const int64_t p = b.Parameter(0, F32({4}));
  const int64_t d = b.LoopFusion(F32({4}), {p}, fused);
  const int64_t outer = b.Add("opt-barrier", pair, {b.Add("tuple", pair, {p, d})});
  const int64_t e = b.Add("reverse", F32({4}), {b.Add("opt-barrier", F32({4}), {b.Element(outer, 1)})});
  const int64_t inner = b.Add("opt-barrier", pair, {b.Add("tuple", pair, {b.Element(outer, 0), e})});
  const int64_t y = b.Add("cosine", F32({4}), {b.Element(inner, 0)});
  const Graph graph(b.Finish());
  EXPECT_TRUE(ListOf(graph.sequence(1)) == (Indices{b.index(p), b.index(y)}));
  EXPECT_TRUE(graph.is_dropped(b.index(d)) && graph.is_dropped(b.index(e)));
  EXPECT_TRUE(graph.callers(0).empty());
}

}  // namespace
}  // namespace coopjax::hlo
