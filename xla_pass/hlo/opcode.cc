#include "hlo/opcode.h"

#include <algorithm>
#include <unordered_map>

#include "hlo/module.h"

namespace coopjax::hlo {
namespace {

constexpr OpcodeInfo Elementwise(Op op = Op::kOther) { return {op, true, false, true}; }
constexpr OpcodeInfo Transcendental() { return {Op::kOther, true, true, true}; }
constexpr OpcodeInfo Pure(Op op = Op::kOther) { return {op, false, false, true}; }
constexpr OpcodeInfo Special(Op op) { return {op, false, false, false}; }

using OpcodeTable = std::unordered_map<std::string_view, OpcodeInfo>;

void AddElementwise(OpcodeTable& table) {
  for (const std::string_view name : {"abs",
                                      "acos",
                                      "acosh",
                                      "and",
                                      "asin",
                                      "asinh",
                                      "atan",
                                      "atanh",
                                      "ceil",
                                      "clamp",
                                      "compare",
                                      "complex",
                                      "convert",
                                      "cosh",
                                      "count-leading-zeros",
                                      "divide",
                                      "erf",
                                      "floor",
                                      "imag",
                                      "is-finite",
                                      "maximum",
                                      "minimum",
                                      "mulhi",
                                      "multiply",
                                      "negate",
                                      "not",
                                      "or",
                                      "popcnt",
                                      "real",
                                      "reduce-precision",
                                      "remainder",
                                      "round-nearest-afz",
                                      "round-nearest-even",
                                      "select",
                                      "shift-left",
                                      "shift-right-arithmetic",
                                      "shift-right-logical",
                                      "sign",
                                      "sinh",
                                      "stochastic-convert",
                                      "subtract",
                                      "tan",
                                      "xor"}) {
    table[name] = Elementwise();
  }
  for (const std::string_view name : {"exponential", "log", "logistic", "power", "sqrt", "cbrt", "rsqrt", "tanh",
                                      "sine", "cosine", "exponential-minus-one", "log-plus-one", "atan2"}) {
    table[name] = Transcendental();
  }
  table["bitcast-convert"] = Elementwise(Op::kBitcastConvert);
  table["add"] = Elementwise(Op::kAdd);
  table["copy"] = Elementwise(Op::kCopy);
  table["map"] = Elementwise(Op::kMap);
}

void AddForwarding(OpcodeTable& table) {
  table["parameter"] = Pure(Op::kParameter);
  table["constant"] = Pure(Op::kConstant);
  table["bitcast"] = Pure(Op::kBitcast);
  table["tuple"] = Pure(Op::kTuple);
  table["get-tuple-element"] = Pure(Op::kGetTupleElement);
  table["opt-barrier"] = table["optimization-barrier"] = Special(Op::kOptimizationBarrier);
  table["add-dependency"] = Special(Op::kAddDependency);
  table["after-all"] = Special(Op::kAfterAll);
  table["domain"] = Special(Op::kDomain);
}

void AddControlFlowAndAsync(OpcodeTable& table) {
  table["call"] = Special(Op::kCall);
  table["while"] = Special(Op::kWhile);
  table["conditional"] = Special(Op::kConditional);
  table["async-start"] = Special(Op::kAsyncStart);
  table["async-update"] = Special(Op::kAsyncUpdate);
  table["async-done"] = Special(Op::kAsyncDone);
  table["copy-start"] = Special(Op::kCopyStart);
  table["copy-done"] = Special(Op::kCopyDone);
  table["send"] = Special(Op::kSend);
  table["recv-done"] = Special(Op::kRecvDone);
  table["all-gather-start"] = Special(Op::kAllGatherStart);
  table["all-gather-done"] = Special(Op::kAllGatherDone);
  table["all-reduce"] = Special(Op::kAllReduce);
  table["all-reduce-start"] = Special(Op::kAllReduceStart);
  table["all-reduce-done"] = Special(Op::kAllReduceDone);
  table["collective-permute"] = Special(Op::kCollectivePermute);
  table["collective-permute-start"] = Special(Op::kCollectivePermuteStart);
  table["collective-permute-done"] = Special(Op::kCollectivePermuteDone);
  table["ragged-all-to-all"] = Special(Op::kRaggedAllToAll);
  table["custom-call"] = Special(Op::kCustomCall);
  table["rng"] = Special(Op::kRng);
  table["rng-bit-generator"] = Special(Op::kRngBitGenerator);
}

void AddArrayOps(OpcodeTable& table) {
  for (const std::string_view name : {"concatenate", "iota", "pad", "reverse", "ragged-dot", "topk",
                                      "batch-norm-training", "batch-norm-inference", "batch-norm-grad"}) {
    table[name] = Pure();
  }
  table["fusion"] = Pure(Op::kFusion);
  table["dynamic-update-slice"] = Pure(Op::kDynamicUpdateSlice);
  table["scatter"] = Pure(Op::kScatter);
  table["set-dimension-size"] = Special(Op::kSetDimensionSize);
  table["sort"] = Pure(Op::kSort);
  table["triangular-solve"] = Pure(Op::kTriangularSolve);
  table["cholesky"] = Pure(Op::kCholesky);
  table["dot"] = Pure(Op::kDot);
  table["convolution"] = Pure(Op::kConvolution);
  table["reduce"] = Pure(Op::kReduce);
  table["reduce-window"] = Pure(Op::kReduceWindow);
  table["select-and-scatter"] = Pure(Op::kSelectAndScatter);
  table["fft"] = Pure(Op::kFft);
  table["slice"] = Pure(Op::kSlice);
  table["dynamic-slice"] = Pure(Op::kDynamicSlice);
  table["gather"] = Pure(Op::kGather);
  table["broadcast"] = Pure(Op::kBroadcast);
  table["reshape"] = Pure(Op::kReshape);
  table["transpose"] = Pure(Op::kTranspose);
}

// What is neither the device's main memory nor the host's: how much of it there is, no plan models.
bool IsInSmallMemory(const Shape& shape) {
  return (shape.memory_space != kMainMemorySpace && shape.memory_space != kHostMemorySpace) ||
         std::ranges::any_of(shape.tuple_shapes, IsInSmallMemory);
}

}  // namespace

OpcodeInfo LookUpOpcode(std::string_view name) {
  static const OpcodeTable table = [] {
    OpcodeTable result;
    AddElementwise(result);
    AddForwarding(result);
    AddControlFlowAndAsync(result);
    AddArrayOps(result);
    return result;
  }();
  const auto found = table.find(name);
  return found == table.end() ? OpcodeInfo{} : found->second;
}

bool IsLibraryFunction(std::string_view custom_call_target) {
  static constexpr std::string_view kFunctions[] = {"__cublas$gemm",
                                                    "__cublas$lt$matmul",
                                                    "__cublas$lt$matmul$f8",
                                                    "__cublas$lt$matmul$mx",
                                                    "__cudnn$convForward",
                                                    "__cudnn$convForwardGraph",
                                                    "__cudnn$convBiasActivationForward",
                                                    "__cudnn$fmhaSoftmax",
                                                    "__cudnn$fmhaScaleBiasSoftmax"};
  return std::ranges::find(kFunctions, custom_call_target) != std::end(kFunctions);
}

bool HasOwnEffects(const Instruction& instruction) {
  const OpcodeInfo opcode = instruction.info;
  if (!IsGlue(opcode.op) && IsInSmallMemory(*instruction.shape)) return true;
  switch (opcode.op) {
    case Op::kCustomCall:
      return instruction.custom_call_has_side_effect;
    case Op::kOther:  // all that is not known to be harmless
      return !opcode.is_pure && instruction.opcode != "partition-id" && instruction.opcode != "replica-id";
    case Op::kRng:
    case Op::kSend:
    case Op::kRecvDone:
    case Op::kAllReduce:
    case Op::kAllReduceStart:
    case Op::kAllGatherStart:
    case Op::kRaggedAllToAll:
    case Op::kCollectivePermute:
    case Op::kCollectivePermuteStart:
      return true;
    default:
      return false;
  }
}

}  // namespace coopjax::hlo
