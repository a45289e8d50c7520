// How often a while loop turns.
#pragma once

#include <cstdint>

#include "hlo/graph.h"

namespace coopjax {

// Turns of a while loop: the `known_trip_count` of its backend_config, where the compiler wrote one (XLA:CPU, XLA:GPU).
// Else (XLA:TPU) a counter's: an element of the state that starts at a constant, grows by a constant in the body and is
// compared with one in the condition. Constants are looked for through copies, and through the loops around that carry
// them unchanged. 1 where no such counter is seen.
int64_t TripCount(const hlo::Graph& graph, int32_t loop);

}  // namespace coopjax
