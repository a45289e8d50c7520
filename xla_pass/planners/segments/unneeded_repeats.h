// Takes repeats out of a schedule where the budget has room to hold what they make instead.
#pragma once

#include <cstdint>
#include <span>

#include "program/step_program.h"

namespace coopjax {

struct FewerRepeats {
  Schedule schedule;
  int64_t num_removed = 0;
};

// `schedule` is valid and under `budget_bytes`, and so is what comes back; its in-place writers run once. The repeats
// that save most seconds per byte held go first, and with them those that served nobody else. `touches` is
// OpTouches(program). O((steps + reads) log steps).
FewerRepeats RemoveUnneededRepeats(const StepProgram& program, const Csr& touches, std::span<const OpId> schedule,
                                   int64_t budget_bytes);

}  // namespace coopjax
