// The rules of buffers/alias.h for single instructions: what is in place by nature, and when a dying
// operand's buffer may hold the result.
#pragma once

#include <cstdint>
#include <vector>

#include "buffers/dataflow.h"
#include "buffers/platform.h"
#include "hlo/graph.h"
#include "hlo/module.h"

namespace coopjax {

// Element `operand_offset` of operand `operand_number` and element `output_offset` of the result share
// a buffer. Offsets count nodes from the root of the shape tree.
struct InPlacePair {
  int32_t operand_number = 0;
  int32_t operand_offset = 0;
  int32_t output_offset = 0;
};

// The in-place pairs of an instruction: dynamic-update-slice, scatter, fusions rooted in them,
// output_operand_aliasing and the like.
std::vector<InPlacePair> InPlacePairs(const hlo::Graph& graph, int32_t instruction);

// XLA's IsElementwiseOnOperand.
bool IsElementwiseOnOperand(const hlo::Graph& graph, int32_t instruction, int32_t operand_number);

// With layouts.
bool ShapesAreEqual(const hlo::Shape& a, const hlo::Shape& b);

// Whether the result at `user_node` may take the buffer of its operand at `operand_node`, no constant, when that value
// dies at the user, in-place pairs aside.
bool MayTakeBuffer(const HloDataflow& dataflow, HloPlatform platform, hlo::Node operand_node, hlo::Node user_node);

}  // namespace coopjax
