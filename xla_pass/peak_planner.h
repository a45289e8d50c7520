// Rematerialization under a budget of live bytes, by greedy moves on an exact model.
//
// The idea: in a given order, the bytes above the budget, summed over steps with an exponent, are a
// potential. A move drops one value across one gap between two of its reads and makes it again just
// before the later one, with whatever must come back first. Moves are tried on an EditableSchedule,
// so that what a chain costs, keeps alive and makes peak itself is all counted, and the move that
// lowers the potential most per modelled second is taken, until nothing is above the budget. Then
// repeats that are no longer needed are taken out, the most expensive first.
#pragma once

#include <cstdint>
#include <string>

#include "step_program.h"

namespace coopjax {

struct PeakOptions {
  double exponent = 2;          // of the excess in the potential; 1 or 2
  bool merge_repeats = true;    // a chain may take over the work of later repeats of its ops
  bool clean_up = true;         // remove repeats that the budget does not need
  double time_limit_s = 10;
};

struct PeakCounters {
  int64_t trials = 0;
  int64_t moves = 0;
  int64_t removals = 0;
};

struct PeakResult {
  Schedule schedule;
  bool is_feasible = false;
  bool timed_out = false;
  PeakCounters counters;
};

// `order` is a valid schedule (its repeats, if any, are kept as a starting point). Deterministic unless
// the time limit strikes. When the budget is not reached the schedule is the smallest one found.
PeakResult PlanPeak(const StepProgram& program, std::span<const OpId> order, int64_t budget_bytes,
                    const PeakOptions& options);

}  // namespace coopjax
