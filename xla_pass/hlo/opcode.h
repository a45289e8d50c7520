// What this project knows about HLO opcodes: one table, everything else is "unknown" and left alone.
#pragma once

#include <cstdint>
#include <string_view>

namespace coopjax::hlo {

struct Instruction;

// The opcodes that some analysis treats in a way of their own.
enum class Op : uint8_t {
  kOther,
  kParameter,
  kConstant,
  // Forward buffers and do no work.
  kBitcast,
  kTuple,
  kGetTupleElement,
  kOptimizationBarrier,
  kAddDependency,
  kAfterAll,
  kDomain,
  // Call computations in the caller's control flow.
  kCall,
  kWhile,
  kConditional,
  kAsyncStart,
  kAsyncUpdate,
  kAsyncDone,
  // Asynchronous pairs with forwarding rules of their own.
  kCopyStart,
  kCopyDone,
  kSend,
  kRecvDone,
  kAllGatherStart,
  kAllGatherDone,
  kAllReduceStart,
  kAllReduceDone,
  kCollectivePermute,
  kCollectivePermuteStart,
  kCollectivePermuteDone,
  // Everything else with a rule for aliasing or for cost.
  kFusion,
  kCustomCall,
  kDynamicUpdateSlice,
  kScatter,
  kSetDimensionSize,
  kRaggedAllToAll,
  kSort,
  kTriangularSolve,
  kBitcastConvert,
  kCopy,
  kAdd,
  kDot,
  kConvolution,
  kReduce,
  kReduceWindow,
  kSelectAndScatter,
  kMap,
  kFft,
  kCholesky,
  kSlice,
  kDynamicSlice,
  kGather,
  kBroadcast,
  kReshape,
  kTranspose,
  kRng,
  kRngBitGenerator,
  kAllReduce,
};

struct OpcodeInfo {
  Op op = Op::kOther;
  bool is_elementwise = false;     // XLA's IsOpElementwise
  bool is_transcendental = false;  // counted apart from FLOPs by XLA's cost analysis
  bool is_pure = false;            // the same operands give the same bits, with no other effect
};

// The entry of the table; for unknown names kOther, with all facts false.
OpcodeInfo LookUpOpcode(std::string_view name);

// Whether XLA:GPU calls a library by this name for what is a function of its operands: products, which the compiler
// moves to cuBLAS where that is faster than code of its own, convolutions and attention of the forward pass. Each is
// called with the algorithm that its instruction names, which gives the same bits every time.
bool IsLibraryFunction(std::string_view custom_call_target);

// Forwards buffers and does no work: "glue", folded away in a StepProgram.
inline bool IsGlue(Op op) {
  return op == Op::kParameter || op == Op::kConstant || (op >= Op::kBitcast && op <= Op::kDomain);
}
inline bool IsControlFlowCall(Op op) { return op >= Op::kCall && op <= Op::kAsyncDone; }

// Touches something besides its operands and its result (collectives, stateful random numbers, side effects, a TPU's
// flags and other small memories), the computations that it calls aside. Unknown opcodes do.
bool HasOwnEffects(const Instruction& instruction);

}  // namespace coopjax::hlo
