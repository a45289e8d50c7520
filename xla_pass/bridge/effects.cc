#include "bridge/effects.h"

#include <algorithm>
#include <functional>

#include "buffers/share.h"

namespace coopjax {
namespace {

// What is neither the device's main memory nor the host's: how much of it there is, no plan models.
bool IsInSmallMemory(const Shape& shape) {
  return (shape.memory_space != kMainMemorySpace && shape.memory_space != kHostMemorySpace) ||
         std::ranges::any_of(shape.tuple_shapes, IsInSmallMemory);
}

// Whether it holds for any instruction of the computations that this one calls.
bool AnyCalled(const HloGraph& graph, int32_t instruction, const std::function<bool(int32_t)>& holds) {
  return std::ranges::any_of(graph.called(instruction), [&](int32_t computation) {
    return std::ranges::any_of(graph.module().computations[computation].instructions, holds);
  });
}

}  // namespace

bool HasOwnEffects(const Instruction& instruction) {
  const OpcodeInfo opcode = instruction.info;
  if (!IsGlue(opcode.op) && IsInSmallMemory(*instruction.shape)) return true;
  switch (opcode.op) {
    case Op::kCustomCall:
      return instruction.custom_call_has_side_effect;
    case Op::kOther:  // all that is not known to be harmless
      return !opcode.is_pure && instruction.opcode != "partition-id" && instruction.opcode != "replica-id";
    case Op::kRng: case Op::kSend: case Op::kRecvDone: case Op::kAllReduce: case Op::kAllReduceStart:
    case Op::kAllGatherStart: case Op::kRaggedAllToAll: case Op::kCollectivePermute:
    case Op::kCollectivePermuteStart:
      return true;
    default:
      return false;
  }
}

bool HasEffects(const HloGraph& graph, int32_t instruction) {
  return HasOwnEffects(graph.instruction(instruction)) ||
         AnyCalled(graph, instruction, [&](int32_t inner) { return HasEffects(graph, inner); });
}

bool IsPure(const HloGraph& graph, int32_t instruction) {
  return graph.opcode(instruction).is_pure &&
         !AnyCalled(graph, instruction, [&](int32_t inner) { return !IsPure(graph, inner); });
}

bool WritesInPlace(const HloGraph& graph, int32_t instruction) {
  const auto is_writer = [&](int32_t at) {
    while (graph.op(at) == Op::kBitcast) at = graph.operands(at)[0];
    return graph.op(at) == Op::kDynamicUpdateSlice || graph.op(at) == Op::kScatter;
  };
  if (!InPlacePairs(graph, instruction).empty() || is_writer(instruction)) return true;
  if (graph.op(instruction) != Op::kFusion) return false;
  const int32_t root = graph.root(graph.called(instruction)[0]);
  return is_writer(root) || (graph.op(root) == Op::kTuple && std::ranges::any_of(graph.operands(root), is_writer));
}

}  // namespace coopjax
