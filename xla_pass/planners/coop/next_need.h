// When a static order wants each value next: what Belady's rule evicts by.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "program/step_program.h"

namespace coopjax {

class NextNeed {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  static constexpr Step kNoStep = std::numeric_limits<Step>::max();

  // A value is wanted where the order reads it and, with `counts_recompute`, where it reads what was made
  // directly from it and is no smaller: to make that again. `order` has no repeats.
  NextNeed(const StepProgram& program, std::span<const OpId> order, bool counts_recompute);

  // The next step after `step` that wants `v`, or kNoStep.
  Step StepFrom(Step step, ValueId v) const;
  // Seconds from the beginning of `step` to the beginning of that one, without recomputes; kNever for none.
  double SecondsFrom(Step step, ValueId v) const;
  double total_s() const { return total_s_; }

 private:
  std::vector<double> time_s_;             // per step: when it begins
  std::vector<std::vector<Step>> steps_;   // per value: where it is wanted, ascending
  double total_s_ = 0;
};

}  // namespace coopjax
