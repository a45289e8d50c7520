// Work, counted in steps, and how much of it a search may do.
//
// A step is about ten nanoseconds of a search: an edge of a network looked at, a live range extended, a byte of a
// module read. What takes time counts its steps where it takes it, so that limits mean the same on every machine, under
// every load; the count is the thread's, and only differences of it are ever looked at. Whoever asks an allowance in a
// loop counts steps in that loop, or calls what does.
//
// A fuse is the exception: seconds after which every allowance of the thread is over. It is for who would rather have
// some plan than wait; what it cut short may differ between machines, and says so.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/stopwatch.h"

namespace coopjax {

struct Work {
  int64_t steps = 0;
  int64_t num_cuts = 0;  // how often an allowance was found to be over
  Fuse fuse;
};

// NOLINTNEXTLINE(bugprone-throwing-static-initialization): it is made by the compiler
inline constinit thread_local Work thread_work;

inline void CountSteps(int64_t steps) { thread_work.steps += steps; }

inline constexpr int64_t kUnlimitedSteps = int64_t{1} << 62;
inline constexpr int64_t kDefaultSteps = 1'000'000'000;

// So many steps from when it was made.
class Allowance {
 public:
  explicit Allowance(int64_t max_steps) : max_steps_(std::clamp<int64_t>(max_steps, 0, kUnlimitedSteps)) {}
  int64_t Left() const {
    const int64_t left = max_steps_ - Spent();
    if (left > 0 && !thread_work.fuse.IsBlown()) return left;
    ++thread_work.num_cuts;
    return 0;
  }
  int64_t Spent() const { return thread_work.steps - start_; }
  bool IsOver() const { return Left() == 0; }
  // From the same start, `share` of its steps.
  Allowance Part(double share) const {
    Allowance part = *this;
    part.max_steps_ = static_cast<int64_t>(share * static_cast<double>(max_steps_));
    return part;
  }

 private:
  int64_t start_ = thread_work.steps;
  int64_t max_steps_;
};

}  // namespace coopjax
