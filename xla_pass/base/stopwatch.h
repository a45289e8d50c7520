// Seconds: where they went, and a fuse. Nothing else looks at a clock, and no plan depends on one unless a fuse blows.
#pragma once

#include <chrono>
#include <limits>

namespace coopjax {

// Blows so many seconds after it was lit, and stays blown.
class Fuse {
 public:
  constexpr Fuse() = default;
  explicit Fuse(double seconds)
      : is_lit_(true),
        end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}
  bool IsBlown() {
    is_blown_ = is_blown_ || SecondsLeft() <= 0;
    return is_blown_;
  }
  double SecondsLeft() const {
    if (!is_lit_) return std::numeric_limits<double>::infinity();
    return std::chrono::duration<double>(end_ - Clock::now()).count();
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool is_lit_ = false;
  bool is_blown_ = false;
  Clock::time_point end_;
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
