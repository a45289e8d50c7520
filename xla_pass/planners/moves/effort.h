// How much a search by moves may take, and what it has taken.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/allowance.h"

namespace coopjax {

struct MoveCounters {
  int64_t trials = 0;           // moves tried
  int64_t moves = 0;            // moves taken
  int64_t removals = 0;         // repeats taken out by the clean-up
  int64_t swaps = 0;            // swaps that paid
};

// Ends a search after so many trials, or when its allowance is over.
struct Effort {
  const MoveCounters* counters;
  int64_t max_trials;
  Allowance allowance;
  int64_t stage_end = std::numeric_limits<int64_t>::max();   // of the stage under way, in trials
  bool is_cut_short = false;

  void BeginStage(int64_t num_trials) { stage_end = counters->trials + num_trials; }
  bool IsSpent() {
    is_cut_short = is_cut_short || allowance.IsOver();
    return is_cut_short || counters->trials >= std::min(max_trials, stage_end);
  }
};

}  // namespace coopjax
