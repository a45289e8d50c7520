#include "bridge/cost.h"

#include "hlo/wire.h"
#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

std::string ContractingDimension(int64_t dimension) {
  std::string dimensions, raw;
  const std::vector<int64_t> contracting = {dimension};
  hlo::AppendPackedField(1, contracting, &dimensions);
  hlo::AppendBytesField(30, dimensions, &raw);
  return raw;
}

// A window dimension with every attribute, and the dimension numbers of a [batch, spatial, feature] convolution
// with a [spatial, in, out] kernel.
std::string Convolution1D(int64_t size, int64_t stride, int64_t low, int64_t high, int64_t window_dilation,
                          int64_t base_dilation) {
  std::string dimension, window, numbers, raw;
  const int64_t attributes[] = {size, stride, low, high, window_dilation, base_dilation};
  for (uint32_t k = 0; k < 6; ++k) hlo::AppendVarintField(k + 1, attributes[k], &dimension);
  hlo::AppendBytesField(1, dimension, &window);
  hlo::AppendVarintField(8, 2, &numbers);   // input feature
  hlo::AppendVarintField(10, 2, &numbers);  // output feature
  const std::vector<int64_t> kernel_spatial = {0}, spatial = {1};
  hlo::AppendPackedField(6, kernel_spatial, &numbers);
  hlo::AppendPackedField(11, spatial, &numbers);
  hlo::AppendPackedField(12, spatial, &numbers);
  hlo::AppendBytesField(15, window, &raw);
  hlo::AppendBytesField(16, numbers, &raw);
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

TEST(ConvolutionsCountPositionsThatMeetInput) {
  struct Case {
    int64_t input, kernel, output, stride, low, high, window_dilation, base_dilation;
  };
  for (const Case c : {Case{8, 3, 8, 1, 1, 1, 1, 1}, Case{8, 3, 4, 2, 0, 1, 1, 1}, Case{8, 3, 8, 1, 2, 2, 2, 1},
                       Case{4, 3, 8, 1, 1, 2, 1, 2}, Case{5, 4, 7, 2, 3, 3, 2, 3}, Case{1, 5, 5, 1, 4, 4, 1, 1}}) {
    int64_t positions = 0;  // the plain definition
    for (int64_t k = 0; k < c.kernel; ++k) {
      for (int64_t o = 0; o < c.output; ++o) {
        const int64_t at = o * c.stride - c.low + k * c.window_dilation;
        positions += at >= 0 && at % c.base_dilation == 0 && at / c.base_dilation < c.input;
      }
    }
    HloBuilder b;
    b.Begin("main");
    const int64_t lhs = b.Parameter(0, F32({2, c.input, 3})), rhs = b.Parameter(1, F32({c.kernel, 3, 5}));
    const int64_t convolution = b.Add("convolution", F32({2, c.output, 5}), {lhs, rhs});
    b.SetRaw(Convolution1D(c.kernel, c.stride, c.low, c.high, c.window_dilation, c.base_dilation));
    const hlo::Graph graph(b.Finish());
    EXPECT_EQ(CostModel(graph).Cost(b.index(convolution)).flops, 2.0 * 2 * 3 * 5 * static_cast<double>(positions));
  }
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
