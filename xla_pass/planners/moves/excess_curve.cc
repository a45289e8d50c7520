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
  blocks_.resize(num_steps / kBlock + 1);
  long_blocks_.clear();
  block_price_.resize(num_steps / kBlock + 1);
  total_ = 0;
  double price = 0;
  // Block by block, as sums over all steps would wait for one another.
  for (Step block = 0; block <= num_steps / kBlock; ++block) {
    const Step end = std::min(num_steps, (block + 1) * kBlock);
    double least = std::numeric_limits<double>::max(), most = std::numeric_limits<double>::lowest();
    double sum = 0, potential = 0, slopes = 0;
    for (Step t = block * kBlock; t < end; ++t) {
      over_[t] = static_cast<double>(live[t] - budget_);
      least = std::min(least, over_[t]);
      most = std::max(most, over_[t]);
      sum += over_[t];
      const double over = std::max(0.0, over_[t]);
      price_[t] = slopes;
      slopes += is_squared_ ? over : over > 0;
      potential += is_squared_ ? over * over : over;
    }
    const double scale = is_squared_ ? 2 / (unit_ * unit_) : 1 / unit_;
    for (Step t = block * kBlock; t < end; ++t) price_[t] *= scale;
    blocks_[block] = {least, most, sum};
    if (block % (kLongBlock / kBlock) == 0) {
      long_blocks_.push_back(blocks_[block]);
    } else {
      Block& together = long_blocks_.back();
      together = {std::min(together.least, least), std::max(together.most, most), together.sum + sum};
    }
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

// Of a block that is one-sided for `bytes`.
double ExcessCurve::BlockDelta(const Block& block, Step num_steps, double bytes) const {
  if (block.most + std::max(0.0, bytes) <= 0) return 0;
  if (!is_squared_) return num_steps * bytes / unit_;
  return (2 * block.sum + num_steps * bytes) * bytes / (unit_ * unit_);
}

// As StepsDelta, without looking at the steps of blocks that are one-sided.
double ExcessCurve::RangeDelta(Step begin, Step end, double bytes) const {
  double sum = 0;
  Step num_looked_at = 0;
  for (Step t = begin; t < end;) {
    ++num_looked_at;
    if (t % kLongBlock == 0 && t + kLongBlock <= end && IsOneSided(long_blocks_[t / kLongBlock], bytes)) {
      sum += BlockDelta(long_blocks_[t / kLongBlock], kLongBlock, bytes);
      t += kLongBlock;
      continue;
    }
    const Block& block = blocks_[t / kBlock];
    const Step block_end = std::min(end, (t / kBlock + 1) * kBlock);
    if (block.most + std::max(0.0, bytes) > 0) {
      const bool is_summed = t % kBlock == 0 && block_end == t + kBlock && IsOneSided(block, bytes);
      sum += is_summed ? BlockDelta(block, kBlock, bytes) : StepsDelta(t, block_end, bytes);
      if (!is_summed) num_looked_at += (block_end - t) / 8;
    }
    t = block_end;
  }
  CountSteps(1 + num_looked_at / 2);
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
