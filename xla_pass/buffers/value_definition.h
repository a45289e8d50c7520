// Where values are defined: which positions of its result an instruction makes, and which it is handed.
#pragma once

#include "hlo/graph.h"

namespace coopjax {

// Whether the instruction that owns `node` defines the value there. Else the value is forwarded to it, from an operand,
// a caller or a callee: see buffers/dataflow.h.
bool DefinesValueAt(const hlo::Graph& graph, hlo::Node node);

}  // namespace coopjax
