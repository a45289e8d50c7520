// Collectives between whose start and done nothing runs. Once a module has its schedule, XLA:GPU puts the plain
// collective in the place of the done: the tables that the start would give are never made, and the result may take
// over what the collective reads, if it is of a kind that may.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hlo/graph.h"

namespace coopjax {

struct Synchronous {
  int32_t start = -1;  // of the pair, in whose place the plain collective stands in XLA's orders
  int32_t done = -1;
};

// [instruction]: the pair of its start and of what is in the computation that the start wraps; nothing for all others,
// and empty if there is no such pair. `sequence` may hold the instructions of several computations.
std::vector<Synchronous> FindSynchronous(const hlo::Graph& graph, std::span<const int32_t> sequence);

}  // namespace coopjax
