// The words of bridge/hlo_program.h for ops and values.
#pragma once

#include <cstdint>
#include <string>

#include "hlo/graph.h"
#include "hlo/module.h"

namespace coopjax {

// What an instruction does: its opcode. A fusion or call does its most expensive part, "convolution" or "dot" if one is
// inside, else what its root does (of several results the first). A custom call that is a matrix product or convolution
// by its target counts as one.
std::string OpKind(const hlo::Graph& graph, int32_t instruction);

// "f32[4,128]", tuples as "(f32[4], s32[])".
std::string ShapeText(const hlo::Shape& shape);

}  // namespace coopjax
