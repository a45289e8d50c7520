// Seconds: how many are left, and where they went.
#pragma once

#include <algorithm>
#include <chrono>

namespace coopjax {

// So many seconds from when it was made.
class Deadline {
 public:
  explicit Deadline(double time_limit_s) : start_(Clock::now()), time_limit_s_(time_limit_s) {}
  double Left() const {
    return std::max(0.0, time_limit_s_ - std::chrono::duration<double>(Clock::now() - start_).count());
  }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point start_;
  double time_limit_s_;
};

// Adds the time that it lives to `*seconds`.
class Stopwatch {
 public:
  explicit Stopwatch(double* seconds) : seconds_(seconds), start_(Clock::now()) {}
  ~Stopwatch() { *seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  double* seconds_;
  const Clock::time_point start_;
};

}  // namespace coopjax
