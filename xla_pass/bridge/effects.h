// What an instruction does besides making its result from its operands: what keeps it from running again.
#pragma once

#include <cstdint>

#include "hlo/graph.h"
#include "hlo/module.h"

namespace coopjax {

// Touches something besides its operands and its result (collectives, stateful random numbers, side effects, a TPU's
// flags and other small memories), the computations that it calls aside. Unknown opcodes do.
bool HasOwnEffects(const Instruction& instruction);

// The instruction, or any that it calls.
bool HasEffects(const HloGraph& graph, int32_t instruction);

// The same operands give the same bits, in all that it calls, too.
bool IsPure(const HloGraph& graph, int32_t instruction);

// Overwrites an operand, or may: a fusion that ends in an update.
bool WritesInPlace(const HloGraph& graph, int32_t instruction);

}  // namespace coopjax
