#include "verify/alias_rules.h"

#include <iterator>
#include <string_view>
#include <unordered_set>

#include "hlo/opcode.h"

namespace coopjax::verify {
namespace {

// Opcodes of which the table of hlo/opcode.h says nothing, and whose outputs are buffers of their own.
bool MakesOwnBuffers(std::string_view opcode) {
  static const std::unordered_set<std::string_view> names = {
      "all-gather",      "all-to-all",         "collective-broadcast",
      "dynamic-reshape", "get-dimension-size", "infeed",
      "outfeed",         "partition-id",       "recv",
      "reduce-scatter",  "replica-id",         "rng-get-and-update-state",
      "send-done"};
  return names.contains(opcode);
}

}  // namespace

AliasRules::AliasRules(const ShapeNodes& nodes) : nodes_(nodes), forward_(nodes.num_nodes(), kNoNode) {
  for (int32_t i = 0; i < nodes_.num_instructions(); ++i) FindForwarding(i);
}

bool AliasRules::MayWriteOperands(int32_t i) const {
  return nodes_.op(i) == hlo::Op::kOther && !nodes_.is_pure(i) && !MakesOwnBuffers(nodes_.instruction(i).opcode);
}

void AliasRules::ForwardTree(ShapeNode to, ShapeNode from) {
  if (to == kNoNode || from == kNoNode || nodes_.subtree_size(to) != nodes_.subtree_size(from)) return;
  for (int32_t k = 0; k < nodes_.subtree_size(to); ++k) forward_[to + k] = from + k;
}

void AliasRules::FindForwarding(int32_t i) {
  const auto operands = nodes_.operands(i);
  if (operands.empty()) return;
  const ShapeNode to = nodes_.first(i), from = nodes_.first(operands[0]);
  const auto forward_operands = [&](ShapeNode tuple) {  // to the elements of a tuple, one operand each
    for (int32_t k = 0; k < std::ssize(operands); ++k) {
      ForwardTree(nodes_.Child(tuple, k), nodes_.first(operands[k]));
    }
  };
  switch (nodes_.op(i)) {
    case hlo::Op::kBitcast:
    case hlo::Op::kOptimizationBarrier:
    case hlo::Op::kAddDependency:
    case hlo::Op::kDomain:
    case hlo::Op::kAsyncUpdate:
    case hlo::Op::kAllReduceDone:
      return ForwardTree(to, from);
    case hlo::Op::kGetTupleElement:
      return ForwardTree(to, nodes_.Child(from, nodes_.instruction(i).tuple_index));
    case hlo::Op::kTuple:
      return forward_operands(to);
    case hlo::Op::kCopyStart:
      return ForwardTree(nodes_.Child(to, 1), from);
    case hlo::Op::kCopyDone:
      return ForwardTree(to, nodes_.Child(from, 0));
    case hlo::Op::kSend:
      return ForwardTree(nodes_.Child(to, 0), from);
    case hlo::Op::kRecvDone:
      return ForwardTree(nodes_.Child(to, 0), nodes_.Child(from, 0));
    case hlo::Op::kAsyncDone:
    case hlo::Op::kAllGatherDone:
    case hlo::Op::kCollectivePermuteDone:
      return ForwardTree(to, nodes_.Child(from, 1));
    case hlo::Op::kAsyncStart:
    case hlo::Op::kAllGatherStart:
    case hlo::Op::kCollectivePermuteStart: {
      const ShapeNode first = nodes_.Child(to, 0);
      if (first == kNoNode) return;
      return nodes_.is_tuple(first) && !nodes_.is_tuple(from) ? forward_operands(first) : ForwardTree(first, from);
    }
    default:
      return;
  }
}

ShapeNode AliasRules::Follow(ShapeNode node) const {
  while (forward_[node] != kNoNode) node = forward_[node];
  return node;
}

ShapeNode AliasRules::InPlaceOperand(ShapeNode output) const {
  const int32_t i = nodes_.owner(output);
  const int32_t offset = output - nodes_.first(i);
  const int32_t num_operands = static_cast<int32_t>(nodes_.operands(i).size());
  for (const auto& alias : nodes_.instruction(i).output_operand_aliasing) {
    if (nodes_.At(i, alias.output_index) != output) continue;
    if (alias.operand_number < 0 || alias.operand_number >= num_operands) continue;
    return nodes_.At(nodes_.operands(i)[alias.operand_number], alias.operand_index);
  }
  switch (nodes_.op(i)) {
    case hlo::Op::kDynamicUpdateSlice:
    case hlo::Op::kSetDimensionSize:
      return nodes_.OperandNode(i, 0, offset);
    case hlo::Op::kScatter:
    case hlo::Op::kAllReduceStart: {
      // One operand and an array, or n operands and a tuple of n arrays.
      const int32_t num_in_place = nodes_.op(i) == hlo::Op::kScatter ? num_operands / 2 : num_operands;
      if (num_in_place == 1) return nodes_.OperandNode(i, 0, offset);
      return offset >= 1 && offset <= num_in_place ? nodes_.OperandNode(i, offset - 1, 0) : kNoNode;
    }
    case hlo::Op::kRaggedAllToAll:
      return nodes_.OperandNode(i, 1, offset);
    case hlo::Op::kCollectivePermute:
    case hlo::Op::kCollectivePermuteStart: {
      if (num_operands != 4) return kNoNode;  // only this form writes into an operand, the second
      const bool is_start = nodes_.op(i) == hlo::Op::kCollectivePermuteStart;
      const ShapeNode target = is_start ? nodes_.Child(nodes_.first(i), 1) : nodes_.first(i);
      return target == kNoNode || output < target ? kNoNode : nodes_.OperandNode(i, 1, output - target);
    }
    case hlo::Op::kFusion:
      return InPlaceFusionOperand(output);
    default:
      return kNoNode;
  }
}

// A fusion whose output is made in place from one of its parameters, inner fusions looked through.
ShapeNode AliasRules::InPlaceFusionOperand(ShapeNode output) const {
  const int32_t fusion = nodes_.owner(output);
  if (nodes_.called(fusion).empty()) return kNoNode;
  const int32_t root = nodes_.root(nodes_.called(fusion)[0]);
  const ShapeNode result = nodes_.first(root) + (output - nodes_.first(fusion));
  if (result >= nodes_.end(root)) return kNoNode;
  ShapeNode source = InPlaceOperand(Follow(result));
  if (source == kNoNode) return kNoNode;
  source = Follow(source);
  if (nodes_.op(nodes_.owner(source)) == hlo::Op::kFusion) {
    const ShapeNode inner = InPlaceOperand(source);
    if (inner != kNoNode) source = Follow(inner);
  }
  const int32_t parameter = nodes_.owner(source);
  if (nodes_.op(parameter) != hlo::Op::kParameter) return kNoNode;
  return nodes_.OperandNode(fusion, nodes_.instruction(parameter).parameter_number, source - nodes_.first(parameter));
}

}  // namespace coopjax::verify
