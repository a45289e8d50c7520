// The FLOPs of one instruction, by its shapes and attributes: as HloCostAnalysis counts dots, convolutions and the
// like. It counts nothing for ragged dots and for calls to libraries; here they count by their shapes, as in
// coopjax/jaxpr/op_work.py.
#pragma once

#include <cstdint>

#include "hlo/graph.h"

namespace coopjax {

// FLOPs that an instruction does itself, 0 where it applies a computation. A transcendental op counts as any
// elementwise one.
double OwnFlops(const hlo::Graph& graph, int32_t instruction);
// Elements of the first array of a result: that of a reduce over several operands, say.
double ResultElements(const hlo::Instruction& instruction);
// Elements under the window of a reduce-window or a select-and-scatter, 1 without a window.
double WindowElements(const hlo::Instruction& instruction);

}  // namespace coopjax
