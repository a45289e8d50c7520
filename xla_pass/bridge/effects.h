// What an instruction does besides making its result from its operands: what keeps it from running again.
#pragma once

#include <cstdint>

#include "hlo/graph.h"

namespace coopjax {

// The instruction (HasOwnEffects), or any that it calls.
bool HasEffects(const hlo::Graph& graph, int32_t instruction);

// The same operands give the same bits, in all that it calls, too.
bool IsPure(const hlo::Graph& graph, int32_t instruction);

// Overwrites an operand, or may: a fusion that ends in an update.
bool WritesInPlace(const hlo::Graph& graph, int32_t instruction);

}  // namespace coopjax
