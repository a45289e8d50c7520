// The aliasing rules of HLO for one instruction: whose buffers its outputs are, and whose they overwrite.
#pragma once

#include <cstdint>
#include <vector>

#include "verify/shape_nodes.h"

namespace coopjax::verify {

class AliasRules {
 public:
  // `nodes` must outlive the rules.
  explicit AliasRules(const ShapeNodes& nodes);

  // The operand's node whose buffer this is, within one computation; kNoNode when it is not forwarded.
  ShapeNode forwarded(ShapeNode node) const { return forward_[node]; }
  // The operand's node whose buffer the output's node `output` overwrites; kNoNode when it has its own.
  ShapeNode InPlaceOperand(ShapeNode output) const;
  // Whether an instruction's opcode is without a known rule, so that it may write into its operands.
  bool MayWriteOperands(int32_t instruction) const;

 private:
  void FindForwarding(int32_t i);
  void ForwardTree(ShapeNode to, ShapeNode from);
  ShapeNode InPlaceFusionOperand(ShapeNode output) const;
  ShapeNode Follow(ShapeNode node) const;

  const ShapeNodes& nodes_;
  std::vector<ShapeNode> forward_;  // [node]
};

}  // namespace coopjax::verify
