// Bytes that no schedule avoids, in any order and with any repeats: ComputeLowerBound's (program/liveness.h), and two
// more.
//
//  * At the first run of an op, whatever is read later and can't be made again by then, or only from what is held in
//    its place, takes its bytes next to the op's working set: a minimum cut (FirstRunCut, at a price that only bytes
//    matter for).
//  * Of two ops that no dependence orders one runs first, and the other is then among those that read later. Neither
//    way round takes less than the smaller of the two cuts.
//
// Cuts are made for the ops in the way of most bytes, and for pairs of them. Near-linear: for a fixed amount of work.
#pragma once

#include <cstdint>

#include "program/liveness.h"
#include "program/step_program.h"

namespace coopjax {

struct ByteBoundOptions {
  int64_t max_work = 20'000'000;   // edges looked at, about; bounds the effort the same on every machine
};

LowerBound ComputeByteBound(const StepProgram& program, const ByteBoundOptions& options = {});

}  // namespace coopjax
