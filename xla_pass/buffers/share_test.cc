#include "buffers/share.h"

#include <string>
#include <vector>

#include "buffers/alias.h"
#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

const hlo::Shape kArray = F32({4}), kPair = TupleOf({kArray, kArray});

// The in-place pairs of the last instruction, "operand.offset>output".
std::string Pairs(HloBuilder& b) {
  const hlo::Graph graph(b.Finish());
  std::string text;
  for (const InPlacePair& pair : InPlacePairs(graph, graph.num_instructions() - 1)) {
    if (!text.empty()) text += ' ';
    text += std::to_string(pair.operand_number);
    text += '.';
    text += std::to_string(pair.operand_offset);
    text += '>';
    text += std::to_string(pair.output_offset);
  }
  return text;
}

std::string PairsOf(const std::string& opcode, const hlo::Shape& shape, int num_operands) {
  HloBuilder b;
  b.Begin("main");
  std::vector<int64_t> operands;
  for (int k = 0; k < num_operands; ++k) operands.push_back(b.Parameter(k, kArray));
  b.Add(opcode, shape, operands);
  return Pairs(b);
}

TEST(SomeOpcodesWriteInPlace) {
  EXPECT_EQ(PairsOf("dynamic-update-slice", kArray, 3), "0.0>0");
  EXPECT_EQ(PairsOf("set-dimension-size", kArray, 2), "0.0>0");
  EXPECT_EQ(PairsOf("ragged-all-to-all", kArray, 6), "1.0>0");
  EXPECT_EQ(PairsOf("scatter", kArray, 3), "0.0>0");        // operand, indices, update
  EXPECT_EQ(PairsOf("scatter", kPair, 5), "0.0>1 1.0>2");   // two operands, indices, two updates
  EXPECT_EQ(PairsOf("all-reduce-start", kPair, 2), "0.0>1 1.0>2");
  EXPECT_EQ(PairsOf("collective-permute", kArray, 4), "1.0>0");
  EXPECT_EQ(PairsOf("collective-permute", kArray, 1), "");
  EXPECT_EQ(PairsOf("collective-permute", TupleOf({kArray, kArray, kArray, kArray}), 4), "");  // four combined
  EXPECT_EQ(PairsOf("negate", kArray, 1), "");
}

// What a custom-call says of itself; an operand or element that it has not is ignored.
TEST(AnnotatedAliasesArePairs) {
  HloBuilder b;
  b.Begin("main");
  const int64_t x = b.Parameter(0, kArray), y = b.Parameter(1, kPair);
  b.Add("custom-call", kPair, {x, y});
  b.last().output_operand_aliasing = {{{0}, -1, {}}, {{0}, 2, {}},  {{2}, 0, {}},
                                      {{0}, 0, {0}}, {{0}, 1, {1}}, {{1}, 0, {}}};
  EXPECT_EQ(Pairs(b), "1.2>1 0.0>2");
}

// f(a, b) = (b updated in place, -a), seen through bitcasts.
TEST(FusionsAreInPlaceWhereTheirRootIs) {
  HloBuilder b;
  const int64_t fused = b.Begin("fused");
  const int64_t x = b.Parameter(0, kArray), y = b.Parameter(1, kArray);
  const int64_t flat = b.Add("bitcast", F32({2, 2}), {y});
  const int64_t written = b.Add("dynamic-update-slice", F32({2, 2}), {flat, x});
  const int64_t back = b.Add("bitcast", kArray, {written});
  b.Add("tuple", kPair, {back, b.Add("negate", kArray, {x})});
  b.EndEmbedded();
  b.Begin("main");
  const int64_t p = b.Parameter(0, kArray), q = b.Parameter(1, kArray);
  b.LoopFusion(kPair, {p, q}, fused);
  EXPECT_EQ(Pairs(b), "1.0>1");
}

TEST(WhatIsElementwise) {
  const auto is_elementwise = [](const std::string& opcode, const hlo::Shape& shape, int32_t operand_number) {
    HloBuilder b;
    b.Begin("main");
    const int64_t p = b.Parameter(0, kArray);
    b.Add(opcode, shape, {p, p});
    return IsElementwiseOnOperand(hlo::Graph(b.Finish()), 1, operand_number);
  };
  EXPECT_TRUE(is_elementwise("add", kArray, 1) && !is_elementwise("reverse", kArray, 0));
  EXPECT_TRUE(is_elementwise("dynamic-update-slice", kArray, 0) && !is_elementwise("dynamic-update-slice", kArray, 1));
  EXPECT_TRUE(is_elementwise("bitcast-convert", kArray, 0) && !is_elementwise("bitcast-convert", F32({4, 2}), 0));
}

// Whether the result of the last instruction may lie where its operand, made by a "reverse", did. `add` gets that
// operand and another one.
template <typename Add>
bool MayTakeOver(const Add& add) {
  HloBuilder b;
  const int64_t callee = b.Begin("callee");
  b.Add("negate", kArray, {b.Parameter(0, kArray)});
  b.EndEmbedded();
  b.Begin("main");
  const int64_t p = b.Parameter(0, kArray);
  const int64_t x = b.Add("reverse", kArray, {p}), y = b.Add("reverse", kArray, {p});
  const int64_t last = add(b, x, y, callee);
  const hlo::Graph graph(b.Finish());
  const HloDataflow dataflow(graph);
  return HloAlias(dataflow).CanShareOperandBuffer(graph.node_base(b.index(x)), graph.node_base(b.index(last)));
}

bool MayTakeOver(const std::string& opcode, const std::string& operands, const hlo::Shape& shape = kArray) {
  return MayTakeOver([&](HloBuilder& b, int64_t x, int64_t y, int64_t) {
    std::vector<int64_t> ids;
    for (const char name : operands) ids.push_back(name == 'x' ? x : y);
    return b.Add(opcode, shape, ids);
  });
}

TEST(ADyingOperandIsWrittenOver) {
  EXPECT_TRUE(MayTakeOver("add", "xy") && MayTakeOver("add", "yx") && MayTakeOver("add", "xx"));
  EXPECT_TRUE(!MayTakeOver("negate", "x", F32({2, 2})));   // another shape
  EXPECT_TRUE(!MayTakeOver("reverse", "x"));
  EXPECT_TRUE(MayTakeOver("dynamic-update-slice", "xy") && !MayTakeOver("dynamic-update-slice", "yx"));
  EXPECT_TRUE(MayTakeOver("triangular-solve", "yx") && !MayTakeOver("triangular-solve", "xy"));
  EXPECT_TRUE(MayTakeOver("sort", "x"));
  EXPECT_TRUE(!MayTakeOver("all-reduce", "x"));            // not on CPU
}

// negate in a loop fusion, and in one of another kind.
TEST(AFusionWritesOverWhatItReadsElementByElement) {
  for (const bool is_loop : {false, true}) {
    EXPECT_EQ(MayTakeOver([&](HloBuilder& b, int64_t x, int64_t, int64_t callee) {
                const int64_t fusion = b.LoopFusion(kArray, {x}, callee);
                if (!is_loop) b.last().fusion_kind = "kCustom";
                return fusion;
              }),
              is_loop);
  }
}

}  // namespace
}  // namespace coopjax
