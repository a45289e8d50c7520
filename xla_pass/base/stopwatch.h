// Seconds: how many are left, and where they went. Nothing else looks at a clock.
#pragma once

#include <algorithm>
#include <chrono>

namespace coopjax {

// So many seconds from when it was made; infinity never passes.
class Deadline {
 public:
  explicit Deadline(double time_limit_s) : time_limit_s_(time_limit_s) {}
  double Spent() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  double Left() const { return std::max(0.0, time_limit_s_ - Spent()); }
  bool IsOver() const { return Left() <= 0; }
  // From the same start, `share` of its seconds.
  Deadline Part(double share) const {
    Deadline part = *this;
    part.time_limit_s_ *= share;
    return part;
  }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point start_ = Clock::now();
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
