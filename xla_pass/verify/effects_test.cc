#include "verify/effects.h"

#include <string>
#include <string_view>

#include "hlo/opcode.h"
#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax::verify {
namespace {

// HLO_OPCODE_LIST of xla/hlo/ir/hlo_opcode.h, a second name that opt-barrier has had, and one of the future.
constexpr std::string_view kOpcodes[] = {"abs",
                                         "acos",
                                         "acosh",
                                         "add",
                                         "add-dependency",
                                         "after-all",
                                         "all-gather",
                                         "all-gather-done",
                                         "all-gather-start",
                                         "all-reduce",
                                         "all-reduce-done",
                                         "all-reduce-start",
                                         "all-to-all",
                                         "and",
                                         "asin",
                                         "asinh",
                                         "async-done",
                                         "async-start",
                                         "async-update",
                                         "atan",
                                         "atan2",
                                         "atanh",
                                         "batch-norm-grad",
                                         "batch-norm-inference",
                                         "batch-norm-training",
                                         "bitcast",
                                         "bitcast-convert",
                                         "broadcast",
                                         "call",
                                         "cbrt",
                                         "ceil",
                                         "cholesky",
                                         "clamp",
                                         "count-leading-zeros",
                                         "collective-broadcast",
                                         "collective-permute",
                                         "collective-permute-done",
                                         "collective-permute-start",
                                         "collective-reduce",
                                         "compare",
                                         "complex",
                                         "concatenate",
                                         "conditional",
                                         "constant",
                                         "convert",
                                         "convolution",
                                         "copy",
                                         "copy-done",
                                         "copy-start",
                                         "cosine",
                                         "cosh",
                                         "custom-call",
                                         "divide",
                                         "domain",
                                         "dot",
                                         "dynamic-reshape",
                                         "dynamic-slice",
                                         "dynamic-update-slice",
                                         "erf",
                                         "exponential",
                                         "exponential-minus-one",
                                         "fft",
                                         "floor",
                                         "fusion",
                                         "gather",
                                         "get-dimension-size",
                                         "get-tuple-element",
                                         "imag",
                                         "infeed",
                                         "iota",
                                         "is-finite",
                                         "log",
                                         "log-plus-one",
                                         "logistic",
                                         "map",
                                         "maximum",
                                         "minimum",
                                         "mulhi",
                                         "multiply",
                                         "negate",
                                         "not",
                                         "opt-barrier",
                                         "or",
                                         "outfeed",
                                         "pad",
                                         "parameter",
                                         "partition-id",
                                         "popcnt",
                                         "power",
                                         "ragged-all-to-all",
                                         "ragged-dot",
                                         "real",
                                         "recv",
                                         "recv-done",
                                         "reduce",
                                         "reduce-precision",
                                         "reduce-scatter",
                                         "reduce-window",
                                         "remainder",
                                         "replica-id",
                                         "reshape",
                                         "reverse",
                                         "rng",
                                         "rng-bit-generator",
                                         "rng-get-and-update-state",
                                         "round-nearest-afz",
                                         "round-nearest-even",
                                         "rsqrt",
                                         "scaled-dot",
                                         "scan",
                                         "scatter",
                                         "select",
                                         "select-and-scatter",
                                         "send",
                                         "send-done",
                                         "set-dimension-size",
                                         "shift-left",
                                         "shift-right-arithmetic",
                                         "shift-right-logical",
                                         "shuffle",
                                         "sign",
                                         "sine",
                                         "sinh",
                                         "slice",
                                         "sort",
                                         "sqrt",
                                         "stochastic-convert",
                                         "subtract",
                                         "tan",
                                         "tanh",
                                         "topk",
                                         "transpose",
                                         "triangular-solve",
                                         "tuple",
                                         "while",
                                         "xor",
                                         "optimization-barrier",
                                         "an-opcode-of-the-future"};

hlo::Instruction Of(std::string_view opcode, const hlo::Shape* shape) {
  hlo::Instruction instruction;
  instruction.opcode = opcode;
  instruction.info = hlo::LookUpOpcode(opcode);
  instruction.shape = shape;
  return instruction;
}

// The opcodes for which the two tables differ, in words.
std::string Differences(const hlo::Shape& shape) {
  std::string differences;
  for (const std::string_view opcode : kOpcodes) {
    const hlo::Instruction instruction = Of(opcode, &shape);
    const auto compare = [&](bool verifier, bool planners, const char* what) {
      if (verifier != planners) differences += std::string(opcode) + (verifier ? " is " : " is not ") + what + "; ";
    };
    compare(EffectsOf(opcode).is_pure, instruction.info.is_pure, "pure to the verifier alone");
    compare(!EffectsOf(opcode).does_work, hlo::IsGlue(instruction.info.op), "glue to the verifier alone");
    compare(TouchesWorld(instruction), hlo::HasOwnEffects(instruction), "an effect to the verifier alone");
  }
  return differences;
}

// Each table was made by itself. Where they come to differ, one of them is wrong, or the difference is meant and has
// its name here. None is.
TEST(TheTablesOfPlannersAndVerifierAgree) {
  hlo::Shape shape = testing::F32({4});
  EXPECT_EQ(Differences(shape), "");
  shape.memory_space = hlo::kHostMemorySpace;
  EXPECT_EQ(Differences(shape), "");
  shape.memory_space = 1;
  EXPECT_EQ(Differences(shape), "");
  EXPECT_EQ(Differences(testing::TupleOf({testing::F32({4}), shape})), "");
}

TEST(CustomCallsSayThemselves) {
  const hlo::Shape shape = testing::F32({4});
  hlo::Instruction call = Of("custom-call", &shape);
  for (const bool has_side_effect : {false, true}) {
    call.custom_call_has_side_effect = has_side_effect;
    EXPECT_EQ(TouchesWorld(call), has_side_effect);
    EXPECT_EQ(hlo::HasOwnEffects(call), has_side_effect);
  }
}

// Where the two tables of libraries come to differ, one of them is wrong.
TEST(LibrariesThatAreFunctionsMayRunTwice) {
  testing::HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, testing::F32({4}));
  for (const std::string_view target :
       {"__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8", "__cublas$lt$matmul$mx", "__cudnn$convForward",
        "__cudnn$convForwardGraph", "__cudnn$convBiasActivationForward", "__cudnn$fmhaSoftmax",
        "__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaSoftmaxDropout", "__cudnn$fmhaSoftmaxBackward",
        "__cudnn$convBackwardInput", "__cudnn$convBackwardFilter", "__cublas$triangularSolve", "__onednn$matmul", ""}) {
    b.Add("custom-call", testing::TupleOf({testing::F32({4}), testing::F32({2})}), {p});
    b.last().custom_call_target = target;
  }
  b.Add("custom-call", testing::F32({4}), {p});  // one that adds to its operand, in place
  b.last().custom_call_target = "__cublas$gemm";
  b.last().output_operand_aliasing.emplace_back();
  const hlo::Module module = b.Finish();
  const ModuleEffects effects(module);
  for (const hlo::Instruction& call : module.instructions) {
    if (call.opcode != "custom-call") continue;
    const bool writes = !call.output_operand_aliasing.empty();
    EXPECT_EQ(effects.MayRunTwice(call), hlo::IsLibraryFunction(call.custom_call_target) && !writes);
  }
}

// Something of each list.
TEST(WhatIsNotListedHasEffects) {
  for (const std::string_view opcode : {"all-reduce", "all-gather", "infeed", "send", "recv-done", "rng",
                                        "rng-get-and-update-state", "an-opcode-of-the-future"}) {
    EXPECT_TRUE(EffectsOf(opcode).touches_world && !EffectsOf(opcode).is_pure);
  }
  for (const std::string_view opcode : {"dot", "copy", "topk", "fusion"}) {
    EXPECT_TRUE(!EffectsOf(opcode).touches_world && EffectsOf(opcode).is_pure);
  }
  for (const std::string_view opcode : {"while", "copy-start", "rng-bit-generator", "after-all"}) {
    EXPECT_TRUE(!EffectsOf(opcode).touches_world && !EffectsOf(opcode).is_pure);
  }
}

// Only what makes something is held against a small memory, not what shows it.
TEST(SmallMemories) {
  hlo::Shape shape = testing::F32({4});
  shape.memory_space = 1;
  for (const std::string_view opcode : {"parameter", "bitcast", "tuple", "get-tuple-element", "opt-barrier"}) {
    EXPECT_TRUE(!TouchesWorld(Of(opcode, &shape)));
  }
  for (const std::string_view opcode : {"add", "fusion", "copy-start", "while"}) {
    EXPECT_TRUE(TouchesWorld(Of(opcode, &shape)));
  }
}

}  // namespace
}  // namespace coopjax::verify
