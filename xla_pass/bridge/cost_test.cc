#include "bridge/cost.h"

#include "hlo/wire.h"
#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloBuilder;

std::string ContractingDimension(int64_t dimension) {
  std::string dimensions, raw;
  const std::vector<int64_t> contracting = {dimension};
  hlo::AppendPackedField(1, contracting, &dimensions);
  hlo::AppendBytesField(30, dimensions, &raw);
  return raw;
}

TEST(DotsCostTwoFlopsPerMultiplyAdd) {
  HloBuilder b;
  b.Begin("main");
  const int64_t dot = b.Add("dot", F32({4, 16}), {b.Parameter(0, F32({4, 8})), b.Parameter(1, F32({8, 16}))});
  b.SetRaw(ContractingDimension(1));
  const hlo::Graph graph(b.Finish());
  const OpCost cost = CostModel(graph).Cost(b.index(dot));
  EXPECT_EQ(cost.flops, 2.0 * 4 * 16 * 8);
  EXPECT_EQ(cost.bytes_accessed, 4.0 * (4 * 8 + 8 * 16 + 4 * 16));
}

TEST(TranscendentalsAreCountedApart) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({10}));
  const int64_t e = b.Add("exponential", F32({10}), {p});
  const int64_t sum = b.Add("add", F32({10}), {e, p});
  const hlo::Graph graph(b.Finish());
  CostModel model(graph);
  EXPECT_EQ(model.Cost(b.index(e)).flops, 0.0);
  EXPECT_EQ(model.Cost(b.index(e)).transcendentals, 10.0);
  EXPECT_EQ(model.Cost(b.index(sum)).flops, 10.0);
  EXPECT_EQ(model.ComputationCost(0).bytes_accessed, 4.0 * (20 + 30));
}

// The fusion reads a slice of its first operand, once, and all of the second; it writes the result.
TEST(FusionsReadWhatTheyUse) {
  HloBuilder b;
  const int64_t fused = b.Begin("fused");
  const int64_t x = b.Parameter(0, F32({100}));
  const int64_t y = b.Parameter(1, F32({10}));
  const int64_t part = b.Add("slice", F32({10}), {x});
  const int64_t product = b.Add("multiply", F32({10}), {part, y});
  b.Add("subtract", F32({10}), {product, y});
  b.EndEmbedded();
  b.Begin("main");
  const int64_t call = b.LoopFusion(F32({10}), {b.Parameter(0, F32({100})), b.Parameter(1, F32({10}))}, fused);
  const hlo::Graph graph(b.Finish());
  const OpCost cost = CostModel(graph).Cost(b.index(call));
  EXPECT_EQ(cost.flops, 20.0);
  EXPECT_EQ(cost.bytes_accessed, 4.0 * (10 + 10 + 10));
}

// 7 iterations of a body with 4 FLOPs and a condition with 1.
TEST(LoopsCostTheirIterations) {
  HloBuilder b;
  const int64_t body = b.Begin("body");
  b.Add("negate", F32({4}), {b.Parameter(0, F32({4}))});
  const int64_t condition = b.Begin("condition");
  const int64_t element = b.Add("reshape", F32({}), {b.Parameter(0, F32({4}))});
  b.Add("is-finite", F32({}), {element});
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({4}));
  const int64_t loop = b.Add("while", F32({4}), {p}, {body, condition});
  std::string raw;
  hlo::AppendBytesField(43, R"({"known_init_step":{"init":"0"},"known_trip_count":{"n":"7"}})", &raw);
  b.SetRaw(raw);
  const hlo::Graph graph(b.Finish());
  EXPECT_EQ(CostModel(graph).Cost(b.index(loop)).flops, 7.0 * (4 + 1));
  EXPECT_EQ(CostModel(graph, /*count_iterations=*/false).Cost(b.index(loop)).flops, 5.0);
  // Three ops inside, 0.5 s overhead each, and the loop itself: nothing else costs time here.
  const Roofline roofline = {1e30, 1e30, 1e30, 0.5};
  EXPECT_EQ(CostModel(graph).Seconds(b.index(loop), roofline), 7 * 3 * 0.5 + 0.5);
}

TEST(SecondsFollowTheSlowerSide) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({10}));
  const int64_t e = b.Add("exponential", F32({10}), {p});  // 10 transcendentals, 80 bytes
  const hlo::Graph graph(b.Finish());
  EXPECT_EQ(CostModel(graph).Seconds(b.index(e), {1, 2, 1000, 1}), 5.0 + 1);
  EXPECT_EQ(CostModel(graph).Seconds(b.index(e), {1, 1000, 8, 0}), 10.0);
  EXPECT_EQ(CostModel(graph).Seconds(b.index(p), {1, 1, 1, 1}), 0.0);
}

}  // namespace
}  // namespace coopjax
