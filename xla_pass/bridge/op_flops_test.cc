#include "bridge/op_flops.h"

#include "hlo/wire.h"
#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

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
    EXPECT_EQ(OwnFlops(graph, b.index(convolution)), 2.0 * 2 * 3 * 5 * static_cast<double>(positions));
  }
}

TEST(FlopsByOpcode) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({4, 9}));
  const int64_t sum = b.Add("add", F32({4, 9}), {p, p});
  const int64_t copy = b.Add("copy", F32({4, 9}), {p});
  const int64_t sort = b.Add("sort", TupleOf({F32({4, 9}), F32({4, 9})}), {p, p});
  const int64_t fft = b.Add("fft", F32({4, 9}), {p});
  std::string lengths;
  hlo::AppendPackedField(32, std::vector<int64_t>{9}, &lengths);
  b.SetRaw(lengths);
  const hlo::Graph graph(b.Finish());
  EXPECT_EQ(OwnFlops(graph, b.index(sum)), 36.0);
  EXPECT_EQ(OwnFlops(graph, b.index(copy)), 0.0);
  EXPECT_EQ(OwnFlops(graph, b.index(sort)), 36.0 * 6);  // 36 elements: 6 rounds
  EXPECT_EQ(OwnFlops(graph, b.index(fft)), 8.0 * 36 * 3);
  EXPECT_EQ(ResultElements(graph.instruction(b.index(sort))), 36.0);  // of the first array
}

// Of a call with two operands and scratch behind its result; `raw` has its attributes.
double FlopsOfCall(std::string_view target, const hlo::Shape& lhs, const hlo::Shape& rhs, const hlo::Shape& result,
                   std::string raw = "") {
  HloBuilder b;
  b.Begin("main");
  const int64_t first = b.Parameter(0, lhs), second = b.Parameter(1, rhs);
  const int64_t call = b.Add("custom-call", TupleOf({result, F32({64})}), {first, second});
  b.last().custom_call_target = target;
  b.SetRaw(std::move(raw));
  const hlo::Graph graph(b.Finish());
  return OwnFlops(graph, b.index(call));
}

TEST(CallsToLibrariesCountTheirProducts) {
  EXPECT_EQ(FlopsOfCall("__cublas$gemm", F32({3, 4, 5}), F32({3, 5, 6}), F32({3, 4, 6})), 2.0 * 3 * 4 * 5 * 6);
  EXPECT_EQ(FlopsOfCall("__onednn$matmul", F32({4, 5}), F32({5, 6}), F32({4, 6})), 2.0 * 4 * 5 * 6);
  const hlo::Shape queries = F32({2, 64, 4, 16}), keys = F32({2, 32, 2, 16});
  const double scores = 2.0 * 4 * 64 * 32;
  EXPECT_EQ(FlopsOfCall("__cudnn$fmhaSoftmax", queries, keys, queries), 2 * 2 * scores * 16);
  EXPECT_EQ(FlopsOfCall("__cudnn$fmhaSoftmaxBackward", queries, keys, queries), 5 * 2 * scores * 16);
  EXPECT_EQ(FlopsOfCall("my_norm", queries, keys, queries), 0.0);
}

TEST(ConvolutionsOfALibraryCountAsThatOfTheForwardPass) {
  const hlo::Shape input = F32({2, 8, 3}), kernel = F32({3, 3, 5}), output = F32({2, 6, 5});
  const std::string raw = Convolution1D(3, 1, 0, 0, 1, 1);
  const double expected = 2.0 * 2 * 3 * 5 * 6 * 3;
  EXPECT_EQ(FlopsOfCall("__cudnn$convForward", input, kernel, output, raw), expected);
  EXPECT_EQ(FlopsOfCall("__cudnn$convBackwardInput", output, kernel, input, raw), expected);
  EXPECT_EQ(FlopsOfCall("__cudnn$convBackwardFilter", input, output, kernel, raw), expected);
}

TEST(RaggedDotsCountEachRowOnce) {
  HloBuilder b;
  b.Begin("main");
  const int64_t rows = b.Parameter(0, F32({64, 32})), experts = b.Parameter(1, F32({4, 32, 16}));
  const int64_t sizes = b.Parameter(2, F32({4}));
  const int64_t ragged = b.Add("ragged-dot", F32({64, 16}), {rows, experts, sizes});
  const hlo::Graph graph(b.Finish());
  EXPECT_EQ(OwnFlops(graph, b.index(ragged)), 2.0 * 64 * 32 * 16);
}

TEST(WindowsMultiplyOverTheirDimensions) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({8, 8}));
  const int64_t pool = b.Add("reduce-window", F32({4, 3}), {p});
  std::string window, raw;
  for (const int64_t size : {2, 3}) {
    std::string dimension;
    hlo::AppendVarintField(1, size, &dimension);
    hlo::AppendBytesField(1, dimension, &window);
  }
  hlo::AppendBytesField(15, window, &raw);
  b.SetRaw(raw);
  const hlo::Graph graph(b.Finish());
  EXPECT_EQ(WindowElements(graph.instruction(b.index(pool))), 6.0);
  EXPECT_EQ(WindowElements(graph.instruction(b.index(p))), 1.0);
}

}  // namespace
}  // namespace coopjax
