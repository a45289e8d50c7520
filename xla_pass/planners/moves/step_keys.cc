#include "planners/moves/step_keys.h"

#include <algorithm>

namespace coopjax {
namespace {

// Between neighbours; a row of new keys between them is still no closer than every other one.
constexpr Key kLeastRoom = 2 * (StepKeys::kMostInARow + 1);

}  // namespace

void StepKeys::Reset(Step num_steps) {
  keys_.resize(num_steps);
  first_at_.resize(num_steps + 1);
  for (Step t = 0; t < num_steps; ++t) {
    keys_[t] = StepKey(t);
    first_at_[t] = t;
  }
  first_at_[num_steps] = num_steps;
  reserved_.clear();
  is_tight_ = false;
}

Step StepKeys::AtOrAfter(Key key) const {
  if (key <= 0) return 0;
  const size_t r = static_cast<size_t>(key >> kKeyBits);
  if (r + 1 >= first_at_.size()) return num_steps();
  const auto begin = keys_.begin() + first_at_[r], end = keys_.begin() + first_at_[r + 1];
  return static_cast<Step>(std::lower_bound(begin, end, key) - keys_.begin());
}

// The last key in use before `key`, and the first after it.
Key StepKeys::KeyBefore(Key key) const {
  const Step step = AtOrAfter(key);
  const Key of_step = step > 0 ? keys_[step - 1] : StepKey(-1);
  const auto reserved = std::lower_bound(reserved_.begin(), reserved_.end(), key);
  return reserved == reserved_.begin() ? of_step : std::max(of_step, *(reserved - 1));
}

Key StepKeys::KeyAfter(Key key) const {
  const Step step = AtOrAfter(key + 1);
  const Key of_step = step < num_steps() ? keys_[step] : StepKey(static_cast<Step>(first_at_.size()));
  const auto reserved = std::upper_bound(reserved_.begin(), reserved_.end(), key);
  return reserved == reserved_.end() ? of_step : std::min(of_step, *reserved);
}

FreeKeys StepKeys::Before(Key key, size_t count) const {
  const Key stride = (key - KeyBefore(key)) / static_cast<Key>(count + 1);
  return {key - static_cast<Key>(count) * stride, stride};
}

void StepKeys::Reserve(Key key) {
  is_tight_ |= key - KeyBefore(key) < kLeastRoom || KeyAfter(key) - key < kLeastRoom;
  reserved_.insert(std::upper_bound(reserved_.begin(), reserved_.end(), key), key);
}

void StepKeys::Settle(std::span<const Key> inserted) {
  reserved_.clear();
  is_tight_ = false;
  if (inserted.empty()) return;
  const auto middle = static_cast<int64_t>(keys_.size());
  keys_.insert(keys_.end(), inserted.begin(), inserted.end());
  std::inplace_merge(keys_.begin(), keys_.begin() + middle, keys_.end());
  Index();
}

void StepKeys::TakeOut(std::span<const Step> steps) {
  if (steps.empty()) return;
  EraseSteps(steps, &keys_);
  Index();
}

void StepKeys::Index() {
  Step t = 0;
  for (size_t r = 0; r < first_at_.size(); ++r) {
    while (t < num_steps() && keys_[t] < StepKey(static_cast<Step>(r))) ++t;
    first_at_[r] = t;
  }
}

}  // namespace coopjax
