// How far live bytes stand above a budget, as one number, and what a set of edits does to it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "planners/moves/editable_schedule.h"

namespace coopjax {

// The potential: the sum over steps of (excess bytes / unit)^exponent.
class ExcessCurve {
 public:
  ExcessCurve(int64_t budget_bytes, int64_t unit_bytes, bool is_squared)
      : budget_(budget_bytes), unit_(static_cast<double>(unit_bytes)), is_squared_(is_squared) {}

  // Takes over the live bytes of the last commit; `schedule` must outlive this. O(steps).
  void Reset(const EditableSchedule& schedule);
  double total() const { return total_; }
  // First-order change of the potential per byte kept alive on the keys [begin, end).
  double PricePerByte(Key begin, Key end) const {
    if (begin >= end) return 0;
    return PriceBefore(schedule_->StepAtOrAfter(end)) - PriceBefore(schedule_->StepAtOrAfter(begin));
  }
  // Change of the potential by the edits since the last commit: exact, unless some are kept. O(changes log changes +
  // steps that they bring to the budget or below, or above it).
  double Delta(const EditableSchedule& schedule);

 private:
  struct Boundary {
    Key key;
    int64_t bytes;
  };
  double Power(double bytes_over) const {
    if (bytes_over <= 0) return 0;
    const double x = bytes_over / unit_;
    return is_squared_ ? x * x : x;
  }
  // The potential's slope per byte, summed over the steps before `step`.
  double PriceBefore(Step step) const { return price_[step] + block_price_[step / kBlock]; }
  double RangeDelta(Step begin, Step end, double bytes) const;
  double StepsDelta(Step begin, Step end, double bytes) const;
  double EditedSteps(const EditableSchedule& schedule);

  const EditableSchedule* schedule_ = nullptr;
  int64_t budget_;
  double unit_;
  bool is_squared_;
  double total_ = 0;
  static constexpr Step kBlock = 64;
  static constexpr Step kLongBlock = 64 * kBlock;
  struct Block {
    double least;   // of over_
    double most;
    double sum;
  };
  // Whether the steps of a block are all above the budget, or all below, with and without `bytes` more.
  static bool IsOneSided(const Block& block, double bytes) {
    return block.most + std::max(0.0, bytes) <= 0 || block.least + std::min(0.0, bytes) >= 0;
  }
  double BlockDelta(const Block& block, Step num_steps, double bytes) const;

  std::vector<double> over_;       // live bytes - budget, per step
  std::vector<Block> blocks_;      // per kBlock steps
  std::vector<Block> long_blocks_;  // per kLongBlock steps
  std::vector<double> price_;      // prefix sums of the potential's slope per byte, within blocks
  std::vector<double> block_price_;  // and of whole blocks
  std::vector<Boundary> boundaries_;
  std::vector<EditableSchedule::Edit> edited_;
};

}  // namespace coopjax
