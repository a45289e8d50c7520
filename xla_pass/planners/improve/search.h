// What the searches that improve a plan take and give: exchange_search.h, neighbourhood_search.h.
#pragma once

#include <cstdint>

#include "base/allowance.h"
#include "program/step_program.h"

namespace coopjax {

// What a unit of work is, and how many are worth their time, each search says for itself.
template <int64_t kMaxWork, int32_t kPatience>
struct ImproveOptions {
  int64_t max_work = kMaxWork;      // bounds the effort the same on every machine
  int32_t patience = kPatience;     // rounds without a better plan before it is given up
  double stop_at_cost_s = 0;        // a bound: at this cost nothing is left to gain
  uint64_t seed = 1;
  int64_t max_steps = kDefaultSteps;
};

struct ImproveResult {
  Schedule schedule;
  int64_t rounds = 0;
  int64_t improvements = 0;
  bool is_cut_short = false;
};

}  // namespace coopjax
