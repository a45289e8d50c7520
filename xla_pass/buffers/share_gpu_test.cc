#include "buffers/share_gpu.h"

#include <functional>
#include <vector>

#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

const hlo::Shape kArray = F32({8, 16}), kRow = F32({8});

// Whether main's fusion of `kind` may write each of its results over its first operand. `fuse` adds the fused
// computation to the builder.
std::vector<bool> MayShare(const std::string& kind, const std::vector<hlo::Shape>& operands, const hlo::Shape& result,
                           const std::function<void(HloBuilder&)>& fuse) {
  HloBuilder b;
  b.Begin("reducer");
  b.Add("add", F32({}), {b.Parameter(0, F32({})), b.Parameter(1, F32({}))});
  b.EndEmbedded();
  const int64_t fused = b.Begin("fused");
  fuse(b);
  b.EndEmbedded();
  b.Begin("main");
  std::vector<int64_t> parameters;
  for (const hlo::Shape& shape : operands) parameters.push_back(b.Parameter(parameters.size(), shape));
  const int64_t fusion = b.Add("fusion", result, parameters, {fused});
  b.last().fusion_kind = kind;
  const hlo::Graph graph(b.Finish());
  std::vector<bool> verdicts;
  for (hlo::Node node = graph.node_base(b.index(fusion)); node < graph.node_end(b.index(fusion)); ++node) {
    if (graph.shape(node).is_array()) {
      verdicts.push_back(CanGpuFusionShare(graph, graph.node_base(b.index(parameters[0])), node));
    }
  }
  return verdicts;
}

using Verdicts = std::vector<bool>;

// (sum over rows of p, exp(p)): the reduction is done before exp overwrites p, but only by the kernel for reductions.
TEST(AReductionReadsFirst) {
  const auto fuse = [](HloBuilder& b) {
    const int64_t p = b.Parameter(0, kArray), zero = b.Add("constant", F32({}));
    const int64_t sum = b.Add("reduce", kRow, {p, zero}, {1});
    b.Add("tuple", TupleOf({kRow, kArray}), {sum, b.Add("exponential", kArray, {p})});
  };
  EXPECT_TRUE(MayShare("kInput", {kArray}, TupleOf({kRow, kArray}), fuse) == (Verdicts{false, true}));
  EXPECT_TRUE(MayShare("kLoop", {kArray}, TupleOf({kRow, kArray}), fuse) == (Verdicts{false, false}));
}

// sort(p, iota) is in place, each result over its operand.
TEST(ASortIsInPlace) {
  const hlo::Shape result = TupleOf({kArray, kArray});
  const auto verdicts = MayShare("kCustom", {kArray}, result, [&](HloBuilder& b) {
    const int64_t p = b.Parameter(0, kArray);
    b.Add("sort", result, {p, b.Add("iota", kArray)}, {1});
  });
  EXPECT_TRUE(verdicts == (Verdicts{true, false}));
}

// Equal sizes are enough, equal shapes are not needed; the order of a transposition is another one.
TEST(WhatKeepsTheOrder) {
  const auto with = [](const char* opcode, const hlo::Shape& result) {
    return MayShare("kLoop", {kArray}, result,
                    [&](HloBuilder& b) { b.Add("negate", result, {b.Add(opcode, result, {b.Parameter(0, kArray)})}); });
  };
  EXPECT_TRUE(with("bitcast", F32({128})) == Verdicts{true});
  EXPECT_TRUE(with("transpose", F32({16, 8})) == Verdicts{false});
  EXPECT_TRUE(with("copy", kArray) == Verdicts{false});
  EXPECT_TRUE(with("convert", F32({64})) == Verdicts{false});
}

// p[i] = p[j] + 1 in place where i is j.
TEST(ASliceThatIsReadMustBeTheOneThatIsWritten) {
  const hlo::Shape slice = F32({1, 16}), index = F32({});
  const auto with = [&](bool is_same) {
    return MayShare("kLoop", {kArray, index, index}, kArray, [&](HloBuilder& b) {
      const int64_t p = b.Parameter(0, kArray), i = b.Parameter(1, index), j = b.Parameter(2, index);
      const int64_t read = b.Add("dynamic-slice", slice, {p, is_same ? i : j, i});
      b.Add("dynamic-update-slice", kArray, {p, b.Add("negate", slice, {read}), i, i});
    });
  };
  EXPECT_TRUE(with(true) == Verdicts{true});
  EXPECT_TRUE(with(false) == Verdicts{false});
}

// Two results of one operand, one of them transposed.
TEST(AnotherResultMayNeedAnotherOrder) {
  const hlo::Shape other = F32({16, 8});
  const auto with = [&](const char* opcode, const hlo::Shape& second) -> bool {
    return MayShare("kLoop", {kArray}, TupleOf({kArray, second}), [&](HloBuilder& b) {
      const int64_t p = b.Parameter(0, kArray), x = b.Add("negate", kArray, {p});
      b.Add("tuple", TupleOf({kArray, second}), {x, b.Add(opcode, second, {x})});
    })[0];
  };
  EXPECT_TRUE(with("sine", kArray));
  EXPECT_TRUE(!with("transpose", other));
}

}  // namespace
}  // namespace coopjax
