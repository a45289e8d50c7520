#include "buffers/alias.h"

#include "hlo/graph_check.h"
#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

struct Analysis {
  explicit Analysis(const hlo::Module& module) : graph(module), dataflow(graph), alias(dataflow) {}
  int32_t ValueOf(int32_t instruction) const { return dataflow.value_at(graph.node_base(instruction)); }
  int32_t BufferOf(int32_t instruction) const { return alias.buffer_of(ValueOf(instruction)); }

  hlo::Graph graph;
  HloDataflow dataflow;
  HloAlias alias;
};

// A loop fusion computation f(a, b) = a + broadcast-of-b, and one that only updates a slice of a.
int64_t AddFusedAddBroadcast(HloBuilder& b) {
  const int64_t computation = b.Begin("add_broadcast");
  const int64_t x = b.Parameter(0, F32({4, 8}));
  const int64_t y = b.Parameter(1, F32({8}));
  const int64_t wide = b.Add("broadcast", F32({4, 8}), {y});
  b.Add("add", F32({4, 8}), {x, wide});
  b.EndEmbedded();
  return computation;
}

int64_t AddFusedUpdate(HloBuilder& b) {
  const int64_t computation = b.Begin("update");
  const int64_t x = b.Parameter(0, F32({4, 8}));
  const int64_t update = b.Parameter(1, F32({1, 8}));
  const int64_t flat = b.Add("bitcast", F32({32}), {x});
  const int64_t written = b.Add("dynamic-update-slice", F32({32}), {flat, update});
  b.Add("bitcast", F32({4, 8}), {written});
  b.EndEmbedded();
  return computation;
}

TEST(GlueForwardsValues) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({4, 8}));
  const int64_t flat = b.Add("bitcast", F32({32}), {p});
  const int64_t pair = b.Add("tuple", TupleOf({F32({32}), F32({4, 8})}), {flat, p});
  const int64_t second = b.Element(pair, 1);
  b.Add("negate", F32({4, 8}), {second});
  const Analysis a(b.Finish());
  EXPECT_EQ(hlo::CheckGraph(a.graph), "");
  EXPECT_EQ(a.dataflow.num_values(), 3);  // parameter, tuple table, negate
  EXPECT_EQ(a.ValueOf(b.index(flat)), a.ValueOf(b.index(p)));
  EXPECT_EQ(a.ValueOf(b.index(second)), a.ValueOf(b.index(p)));
  EXPECT_EQ(a.dataflow.positions(a.ValueOf(b.index(p))).size(), size_t{5});
}

TEST(BarriersAreLookedThrough) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({4}));
  const int64_t x = b.Add("cosine", F32({4}), {p});
  const int64_t pair = b.Add("tuple", TupleOf({F32({4}), F32({4})}), {x, p});
  const int64_t barrier = b.Add("opt-barrier", TupleOf({F32({4}), F32({4})}), {pair});
  const int64_t element = b.Element(barrier, 0);
  const int64_t y = b.Add("negate", F32({4}), {element});
  const Analysis a(b.Finish());
  EXPECT_TRUE(a.graph.is_user_of(b.index(y), b.index(x)));
  EXPECT_TRUE(a.graph.is_dropped(b.index(pair)) && a.graph.is_dropped(b.index(element)));
  EXPECT_EQ(a.dataflow.num_values(), 3);  // the tuple's table is gone
  EXPECT_EQ(a.graph.sequence(0).size(), size_t{3});
}

// while (i, x, w): x changes, w does not.
TEST(LoopElementsThatChangeArePhisInOneBuffer) {
  HloBuilder b;
  const hlo::Shape state = TupleOf({F32({4}), F32({8})});
  const int64_t body = b.Begin("body");
  const int64_t in = b.Parameter(0, state);
  const int64_t x = b.Element(in, 0);
  const int64_t w = b.Element(in, 1);
  const int64_t next = b.Add("negate", F32({4}), {x});
  b.Add("tuple", state, {next, w});
  const int64_t condition = b.Begin("condition");
  const int64_t seen = b.Parameter(0, state);
  b.Add("is-finite", F32({}), {b.Element(seen, 0)});
  b.Begin("main");
  const int64_t x0 = b.Add("iota", F32({4}));
  const int64_t w0 = b.Add("iota", F32({8}));
  const int64_t init = b.Add("tuple", state, {x0, w0});
  const int64_t loop = b.Add("while", state, {init}, {body, condition});
  const int64_t x1 = b.Element(loop, 0);
  const int64_t w1 = b.Element(loop, 1);
  b.Add("tuple", state, {x1, w1});
  const Analysis a(b.Finish());
  EXPECT_EQ(hlo::CheckGraph(a.graph), "");
  EXPECT_EQ(a.ValueOf(b.index(w1)), a.ValueOf(b.index(w0)));
  EXPECT_EQ(a.ValueOf(b.index(w)), a.ValueOf(b.index(w0)));
  EXPECT_TRUE(a.ValueOf(b.index(x1)) != a.ValueOf(b.index(x0)));
  EXPECT_EQ(a.BufferOf(b.index(x1)), a.BufferOf(b.index(x0)));
  // Initial value, body parameter, condition parameter, body result, final value.
  EXPECT_EQ(a.alias.values(a.BufferOf(b.index(x0))).size(), size_t{5});
  EXPECT_TRUE(a.alias.lives_out(a.BufferOf(b.index(x0))));
}

TEST(ConditionalResultsShareABuffer) {
  HloBuilder b;
  const int64_t negate = b.Begin("negate");
  b.Add("negate", F32({4}), {b.Parameter(0, F32({4}))});
  const int64_t same = b.Begin("cosine");
  b.Add("cosine", F32({4}), {b.Parameter(0, F32({4}))});
  b.Begin("main");
  const int64_t index = b.Parameter(0, F32({}));
  const int64_t p = b.Parameter(1, F32({4}));
  const int64_t result = b.Add("conditional", F32({4}), {index, p, p}, {negate, same});
  const Analysis a(b.Finish());
  EXPECT_EQ(hlo::CheckGraph(a.graph), "");
  EXPECT_EQ(a.alias.values(a.BufferOf(b.index(result))).size(), size_t{3});  // two branches and the phi
}

TEST(InPlaceWritersShareTheirOperandsBuffer) {
  HloBuilder b;
  const int64_t update = AddFusedUpdate(b);
  b.Begin("main");
  const int64_t row = b.Parameter(0, F32({1, 8}));
  const int64_t x = b.Add("iota", F32({4, 8}));
  const int64_t y = b.LoopFusion(F32({4, 8}), {x, row}, update);
  const int64_t z = b.Add("dynamic-update-slice", F32({4, 8}), {y, row});
  const int64_t last = b.Add("negate", F32({4, 8}), {z});
  const Analysis a(b.Finish());
  EXPECT_EQ(a.BufferOf(b.index(y)), a.BufferOf(b.index(x)));
  EXPECT_EQ(a.BufferOf(b.index(z)), a.BufferOf(b.index(x)));
  EXPECT_TRUE(a.BufferOf(b.index(last)) != a.BufferOf(b.index(x)));
  EXPECT_EQ(a.alias.values(a.BufferOf(b.index(x))).size(), size_t{3});
}

TEST(DonationUnifiesParameterAndOutput) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({4}));
  const int64_t x = b.Add("negate", F32({4}), {p});
  b.Add("tuple", TupleOf({F32({4})}), {x});
  b.Donate(0, {0});
  const Analysis a(b.Finish());
  EXPECT_EQ(a.BufferOf(b.index(x)), a.BufferOf(b.index(p)));
  EXPECT_TRUE(a.alias.is_donated(a.graph.node_base(b.index(p))));
}

TEST(WhoMayTakeOverADyingOperand) {
  HloBuilder b;
  const int64_t add_broadcast = AddFusedAddBroadcast(b);
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({4, 8}));
  const int64_t v = b.Parameter(1, F32({8}));
  const int64_t constant = b.Add("constant", F32({4, 8}));
  const int64_t sum = b.LoopFusion(F32({4, 8}), {p, v}, add_broadcast);
  const int64_t product = b.Add("multiply", F32({4, 8}), {sum, constant});
  const int64_t flipped = b.Add("reverse", F32({4, 8}), {product});
  const int64_t flat = b.Add("negate", F32({32}), {flipped});
  const Analysis a(b.Finish());
  const auto can_share = [&](int64_t operand, int64_t user) {
    return a.alias.CanShareOperandBuffer(a.graph.node_base(b.index(operand)), a.graph.node_base(b.index(user)));
  };
  EXPECT_TRUE(can_share(p, sum));
  EXPECT_TRUE(!can_share(v, sum));            // other shape
  EXPECT_TRUE(can_share(sum, product));
  EXPECT_TRUE(!can_share(constant, product));
  EXPECT_TRUE(!can_share(product, flipped));  // not elementwise
  EXPECT_TRUE(!can_share(flipped, flat));     // other shape
}

}  // namespace
}  // namespace coopjax
