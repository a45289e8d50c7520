#include "hlo/opcode.h"

#include <string_view>

#include "testing/expect.h"

namespace coopjax::hlo {
namespace {

TEST(FactsAreThoseOfTheTable) {
  const OpcodeInfo tanh = LookUpOpcode("tanh"), add = LookUpOpcode("add"), dot = LookUpOpcode("dot"),
                   rng = LookUpOpcode("rng");
  EXPECT_TRUE(tanh.op == Op::kOther && tanh.is_elementwise && tanh.is_transcendental && tanh.is_pure);
  EXPECT_TRUE(add.op == Op::kAdd && add.is_elementwise && !add.is_transcendental && add.is_pure);
  EXPECT_TRUE(dot.op == Op::kDot && !dot.is_elementwise && dot.is_pure);
  EXPECT_TRUE(rng.op == Op::kRng && !rng.is_pure);   // its bits differ from run to run
}

// XLA's own name, and the one that it has in text.
TEST(BarriersHaveTwoNames) {
  EXPECT_TRUE(LookUpOpcode("opt-barrier").op == Op::kOptimizationBarrier);
  EXPECT_TRUE(LookUpOpcode("optimization-barrier").op == Op::kOptimizationBarrier);
}

TEST(NothingIsKnownOfOthers) {
  for (const std::string_view name : {"", "from-the-future", "Add", "add-"}) {
    const OpcodeInfo info = LookUpOpcode(name);
    EXPECT_TRUE(info.op == Op::kOther && !info.is_elementwise && !info.is_transcendental && !info.is_pure);
  }
}

TEST(SomeLibrariesAreFunctions) {
  for (const std::string_view name : {"__cublas$gemm", "__cublas$lt$matmul$f8", "__cudnn$convForward"}) {
    EXPECT_TRUE(IsLibraryFunction(name));
  }
  for (const std::string_view name : {"", "__cublas$", "__cudnn$fmhaSoftmaxDropout", "__cudnn$convBackwardFilter"}) {
    EXPECT_TRUE(!IsLibraryFunction(name));
  }
}

TEST(GlueForwardsAndDoesNoWork) {
  for (const std::string_view name : {"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "opt-barrier",
                                      "add-dependency", "after-all", "domain"}) {
    EXPECT_TRUE(IsGlue(LookUpOpcode(name).op));
  }
  for (const std::string_view name : {"call", "copy", "bitcast-convert", "reshape", "iota"}) {
    EXPECT_TRUE(!IsGlue(LookUpOpcode(name).op));
  }
}

TEST(ControlFlowRunsWhatItCalls) {
  for (const std::string_view name : {"call", "while", "conditional", "async-start", "async-update", "async-done"}) {
    EXPECT_TRUE(IsControlFlowCall(LookUpOpcode(name).op));
  }
  for (const std::string_view name : {"domain", "copy-start", "fusion", "reduce"}) {
    EXPECT_TRUE(!IsControlFlowCall(LookUpOpcode(name).op));
  }
}

}  // namespace
}  // namespace coopjax::hlo
