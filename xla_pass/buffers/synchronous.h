// Collectives between whose start and done nothing runs. Once a module has its schedule, XLA:GPU puts the plain
// collective in the place of the pair; the tables that the start would give are never made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hlo/graph.h"

namespace coopjax {

// [instruction]: 1 for the start of such a pair and for what is in the computation that it wraps. `sequence` may hold
// the instructions of several computations.
std::vector<uint8_t> FindSynchronous(const hlo::Graph& graph, std::span<const int32_t> sequence);

}  // namespace coopjax
