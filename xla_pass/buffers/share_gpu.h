// XLA:GPU's own rule for which operand's memory a fusion may overwrite: all that reads the operand must go through it
// in the order in which the result is written. Facts after xla/service/gpu/alias_info.cc.
#pragma once

#include "hlo/graph.h"

namespace coopjax {

// Whether a fusion may write the result at `result` over its operand at `operand`.
bool CanGpuFusionShare(const hlo::Graph& graph, hlo::Node operand, hlo::Node result);

}  // namespace coopjax
