// The structural facts that the analyses of an HloModule rely on.
#pragma once

#include <string>

#include "hlo/graph.h"

namespace coopjax::hlo {

// Empty when operands, shapes and called computations fit together as each opcode demands, and every
// control-flow computation is scheduled and has one caller. Otherwise one sentence that names the
// first fault. The analyses must not see a module that fails.
std::string CheckGraph(const Graph& graph);

}  // namespace coopjax::hlo
