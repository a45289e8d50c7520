#include "bridge/effects.h"

#include <algorithm>
#include <functional>

#include "buffers/share.h"
#include "hlo/opcode.h"

namespace coopjax {
namespace {

// Whether it holds for any instruction of the computations that this one calls.
bool AnyCalled(const hlo::Graph& graph, int32_t instruction, const std::function<bool(int32_t)>& holds) {
  return std::ranges::any_of(graph.called(instruction), [&](int32_t computation) {
    return std::ranges::any_of(graph.module().computations[computation].instructions, holds);
  });
}

}  // namespace

bool HasEffects(const hlo::Graph& graph, int32_t instruction) {
  return hlo::HasOwnEffects(graph.instruction(instruction)) ||
         AnyCalled(graph, instruction, [&](int32_t inner) { return HasEffects(graph, inner); });
}

bool IsPure(const hlo::Graph& graph, int32_t instruction) {
  return graph.opcode(instruction).is_pure &&
         !AnyCalled(graph, instruction, [&](int32_t inner) { return !IsPure(graph, inner); });
}

bool WritesInPlace(const hlo::Graph& graph, int32_t instruction) {
  const auto is_writer = [&](int32_t at) {
    while (graph.op(at) == hlo::Op::kBitcast) at = graph.operands(at)[0];
    return graph.op(at) == hlo::Op::kDynamicUpdateSlice || graph.op(at) == hlo::Op::kScatter;
  };
  if (!InPlacePairs(graph, instruction).empty() || is_writer(instruction)) return true;
  if (graph.op(instruction) != hlo::Op::kFusion) return false;
  const int32_t root = graph.root(graph.called(instruction)[0]);
  return is_writer(root) || (graph.op(root) == hlo::Op::kTuple && std::ranges::any_of(graph.operands(root), is_writer));
}

}  // namespace coopjax
