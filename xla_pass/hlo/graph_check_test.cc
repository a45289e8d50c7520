#include "hlo/graph_check.h"

#include <string>
#include <vector>

#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax::hlo {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

const Shape kArray = F32({4}), kPair = TupleOf({F32({4}), F32({4})});

std::string Fault(HloBuilder& b) { return CheckGraph(Graph(b.Finish())); }

// An instruction of `shape` that reads `operands`, made of parameters of these shapes.
std::string FaultOf(const std::string& opcode, const Shape& shape, const std::vector<Shape>& operands) {
  HloBuilder b;
  b.Begin("main");
  std::vector<int64_t> parameters;
  for (const Shape& operand : operands) parameters.push_back(b.Parameter(parameters.size(), operand));
  b.Add(opcode, shape, parameters);
  return Fault(b);
}

// f(x) = negate(x), of arrays; returns its id.
int64_t AddNegate(HloBuilder& b) {
  const int64_t id = b.Begin("f");
  b.Add("negate", kArray, {b.Parameter(0, kArray)});
  return id;
}

TEST(OperandsFitTheOpcode) {
  EXPECT_EQ(FaultOf("tuple", kPair, {kArray, kArray}), "");
  EXPECT_EQ(FaultOf("tuple", kPair, {kArray}), "'tuple.1' is not a well-formed tuple");
  EXPECT_EQ(FaultOf("tuple", kArray, {kArray}), "'tuple.1' is not a well-formed tuple");
  EXPECT_EQ(FaultOf("tuple", kPair, {kArray, kPair}), "'tuple.2' is not a well-formed tuple");
  EXPECT_EQ(FaultOf("bitcast", F32({2, 2}), {kArray}), "");   // arrays may differ, trees may not
  EXPECT_EQ(FaultOf("bitcast", kPair, {kArray}), "'bitcast.1' is not a well-formed bitcast");
  EXPECT_EQ(FaultOf("bitcast", kArray, {}), "'bitcast.0' is not a well-formed bitcast");
  EXPECT_EQ(FaultOf("add", kArray, {kArray, kArray}), "");
  EXPECT_EQ(FaultOf("add", kArray, {kArray}), "'add.1' is not a well-formed add");
  EXPECT_EQ(FaultOf("from-the-future", kPair, {}), "");
}

TEST(AnElementIsOneThatTheTupleHas) {
  for (const int64_t index : {0, 1, 2, -1}) {
    HloBuilder b;
    b.Begin("main");
    b.Add("get-tuple-element", kArray, {b.Parameter(0, kPair)});
    b.last().tuple_index = index;
    const bool is_there = index == 0 || index == 1;
    EXPECT_EQ(Fault(b), is_there ? "" : "'get-tuple-element.1' is not a well-formed get-tuple-element");
  }
}

TEST(CalledComputationsTakeTheOperands) {
  for (const size_t num_operands : {0, 1, 2}) {
    HloBuilder b;
    const int64_t f = AddNegate(b);
    b.Begin("main");
    b.Add("call", kArray, std::vector<int64_t>(num_operands, b.Parameter(0, kArray)), {f});
    EXPECT_EQ(Fault(b), num_operands == 1 ? "" : "'call.3' is not a well-formed call");
  }
  HloBuilder b;
  const int64_t f = AddNegate(b);
  b.Begin("main");
  b.Add("call", kPair, {b.Parameter(0, kArray)}, {f});
  EXPECT_EQ(Fault(b), "'call.3' is not a well-formed call");
}

TEST(ALoopHasABodyAndACondition) {
  HloBuilder b;
  const int64_t body = b.Begin("body");
  b.Parameter(0, kArray);
  b.Begin("main");
  b.Add("while", kArray, {b.Parameter(0, kArray)}, {body});
  EXPECT_EQ(Fault(b), "'while.2' is not a well-formed while");
}

// A branch each for the operands after the first.
TEST(AConditionalHasABranchForEachOperand) {
  for (const size_t num_operands : {1, 2}) {
    HloBuilder b;
    const int64_t f = AddNegate(b);
    b.Begin("main");
    const int64_t index = b.Parameter(0, F32({})), x = b.Parameter(1, kArray);
    std::vector<int64_t> operands(num_operands + 1, x);
    operands[0] = index;
    b.Add("conditional", kArray, operands, {f});
    EXPECT_EQ(Fault(b), num_operands == 1 ? "" : "'conditional.4' is not a well-formed conditional");
  }
}

TEST(ControlFlowIsScheduledAndCalledOnce) {
  HloBuilder unscheduled;
  const int64_t f = AddNegate(unscheduled);
  unscheduled.EndEmbedded();
  unscheduled.Begin("main");
  unscheduled.Add("call", kArray, {unscheduled.Parameter(0, kArray)}, {f});
  EXPECT_EQ(Fault(unscheduled), "computation 'f' has no schedule");
  HloBuilder twice;
  const int64_t g = AddNegate(twice);
  twice.Begin("main");
  const int64_t x = twice.Add("call", kArray, {twice.Parameter(0, kArray)}, {g});
  twice.Add("call", kArray, {x}, {g});
  EXPECT_EQ(Fault(twice), "computation 'f' has several callers");
  HloBuilder fusion;   // a fusion needs no schedule
  const int64_t fused = AddNegate(fusion);
  fusion.EndEmbedded();
  fusion.Begin("main");
  fusion.LoopFusion(kArray, {fusion.Parameter(0, kArray)}, fused);
  EXPECT_EQ(Fault(fusion), "");
}

}  // namespace
}  // namespace coopjax::hlo
