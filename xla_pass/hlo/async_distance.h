// Asynchronous pairs: what runs between a start (of a copy, a collective, a computation) and its done hides the time
// that it takes. XLA's latency-hiding scheduler has chosen it; a plan may add to it, and take nothing away.
#pragma once

#include <string>

#include "hlo/module.h"

namespace coopjax::hlo {

// The instruction that starts what `instruction` waits for: copy-start of a copy-done, send of a send-done and so on,
// async-updates looked through. nullptr where `instruction` is no done half, or
// of a start that ran elsewhere (in a loop's last iteration).
const Instruction* StartOf(const Module& module, const Instruction& instruction);

// Empty when all work that `before` does between the halves of a pair is between them in `after`, in every computation
// that both have; otherwise one sentence on the first that is not. The originals count, clones do not, nor what XLA
// removes with the barriers (Graph::is_dropped).
std::string CheckAsyncDistance(const Module& before, const Module& after);

}  // namespace coopjax::hlo
