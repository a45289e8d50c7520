#include "planners/moves/excess_curve.h"

#include <algorithm>
#include <limits>

#include "base/allowance.h"

namespace coopjax {

void ExcessCurve::Reset(const EditableSchedule& schedule) {
  schedule_ = &schedule;
  const auto& live = schedule.live_bytes();
  CountSteps(std::ssize(live) / 2);
  over_.resize(live.size());
  price_.assign(live.size() + 1, 0);
  block_max_.assign(live.size() / kBlock + 1, std::numeric_limits<double>::lowest());
  total_ = 0;
  for (size_t t = 0; t < live.size(); ++t) {
    over_[t] = static_cast<double>(live[t] - budget_);
    total_ += Power(over_[t]);
    block_max_[t / kBlock] = std::max(block_max_[t / kBlock], over_[t]);
    const double slope = over_[t] <= 0 ? 0 : is_squared_ ? 2 * over_[t] / (unit_ * unit_) : 1 / unit_;
    price_[t + 1] = price_[t] + slope;
  }
}

double ExcessCurve::StepsDelta(Step begin, Step end, double bytes) const {
  double sum = 0;
  if (is_squared_) {
    for (Step t = begin; t < end; ++t) {
      const double before = std::max(0.0, over_[t]), after = std::max(0.0, over_[t] + bytes);
      sum += after * after - before * before;
    }
    return sum / (unit_ * unit_);
  }
  for (Step t = begin; t < end; ++t) sum += std::max(0.0, over_[t] + bytes) - std::max(0.0, over_[t]);
  return sum / unit_;
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
