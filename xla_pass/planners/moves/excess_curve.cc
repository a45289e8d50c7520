#include "planners/moves/excess_curve.h"

#include <algorithm>
#include <limits>

#include "base/allowance.h"

namespace coopjax {

void ExcessCurve::Reset(const EditableSchedule& schedule) {
  schedule_ = &schedule;
  const auto& live = schedule.live_bytes();
  const Step num_steps = static_cast<Step>(live.size());
  CountSteps(num_steps / 4);
  over_.resize(live.size());
  price_.resize(live.size() + 1);
  block_max_.resize(num_steps / kBlock + 1);
  block_price_.resize(num_steps / kBlock + 1);
  total_ = 0;
  double price = 0;
  // Block by block, as sums over all steps would wait for one another.
  for (Step block = 0; block <= num_steps / kBlock; ++block) {
    const Step end = std::min(num_steps, (block + 1) * kBlock);
    double most = std::numeric_limits<double>::lowest(), potential = 0, slopes = 0;
    for (Step t = block * kBlock; t < end; ++t) {
      over_[t] = static_cast<double>(live[t] - budget_);
      most = std::max(most, over_[t]);
      const double over = std::max(0.0, over_[t]);
      price_[t] = slopes;
      slopes += is_squared_ ? over : over > 0;
      potential += is_squared_ ? over * over : over;
    }
    const double scale = is_squared_ ? 2 / (unit_ * unit_) : 1 / unit_;
    for (Step t = block * kBlock; t < end; ++t) price_[t] *= scale;
    block_max_[block] = most;
    block_price_[block] = price;
    price += slopes * scale;
    total_ += is_squared_ ? potential / (unit_ * unit_) : potential / unit_;
    if (end == num_steps) price_[num_steps] = num_steps % kBlock == 0 ? 0 : slopes * scale;
  }
}

double ExcessCurve::StepsDelta(Step begin, Step end, double bytes) const {
  constexpr Step kAtOnce = 4;   // sums that don't wait for one another
  double sums[kAtOnce] = {};
  auto add = [&](Step t, double* sum) {
    const double before = std::max(0.0, over_[t]), after = std::max(0.0, over_[t] + bytes);
    *sum += is_squared_ ? after * after - before * before : after - before;
  };
  Step t = begin;
  for (; t + kAtOnce <= end; t += kAtOnce) {
    for (Step i = 0; i < kAtOnce; ++i) add(t + i, &sums[i]);
  }
  for (; t < end; ++t) add(t, &sums[0]);
  const double sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return is_squared_ ? sum / (unit_ * unit_) : sum / unit_;
}

// As StepsDelta, without looking at blocks that stay under the budget.
double ExcessCurve::RangeDelta(Step begin, Step end, double bytes) const {
  if (begin < end) CountSteps(1 + (end - begin) / 16);
  double sum = 0;
  for (Step t = begin; t < end;) {
    const Step block = t / kBlock, block_end = std::min(end, (block + 1) * kBlock);
    if (block_max_[block] + std::max(0.0, bytes) > 0) sum += StepsDelta(t, block_end, bytes);
    t = block_end;
  }
  return sum;
}

// What the steps that came and went add: `boundaries_` is sorted, its bytes are running sums.
double ExcessCurve::EditedSteps(const EditableSchedule& schedule) {
  edited_.assign(schedule.edits().begin(), schedule.edits().end());
  std::sort(edited_.begin(), edited_.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  double sum = 0;
  size_t next = 0;
  int64_t bytes = 0;
  const StepProgram& program = schedule.program();
  for (const auto& edit : edited_) {
    while (next < boundaries_.size() && boundaries_[next].key <= edit.key) bytes = boundaries_[next++].bytes;
    const Step step = schedule.StepAtOrAfter(edit.key);
    if (edit.is_insert) {
      const int64_t live = schedule.live_bytes_before()[step] + bytes + program.op_workspace_bytes[edit.op];
      sum += Power(static_cast<double>(live - budget_));
    } else {
      sum -= Power(over_[step] + static_cast<double>(bytes));
    }
  }
  return sum;
}

double ExcessCurve::Delta(const EditableSchedule& schedule) {
  boundaries_.clear();
  for (const auto& change : schedule.changes()) {
    boundaries_.push_back({change.begin, change.bytes});
    boundaries_.push_back({change.end, -change.bytes});
  }
  std::sort(boundaries_.begin(), boundaries_.end(), [](const Boundary& a, const Boundary& b) { return a.key < b.key; });
  CountSteps(4 * std::ssize(boundaries_));
  double sum = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < boundaries_.size(); ++i) {
    bytes += boundaries_[i].bytes;
    boundaries_[i].bytes = bytes;
    if (bytes == 0 || i + 1 == boundaries_.size()) continue;
    sum += RangeDelta(schedule.StepAtOrAfter(boundaries_[i].key), schedule.StepAtOrAfter(boundaries_[i + 1].key),
                      static_cast<double>(bytes));
  }
  return sum + EditedSteps(schedule);
}

}  // namespace coopjax
