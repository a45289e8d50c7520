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
  const Key r = key >> kKeyBits;
  if (r + 1 >= std::ssize(first_at_)) return num_steps();
  const auto begin = keys_.begin() + (r >= 0 ? first_at_[r] : 0);
  const auto end = keys_.begin() + first_at_[std::max<Key>(r + 1, 0)];
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
  std::vector<Step> at(inserted.size());
  std::ranges::transform(inserted, at.begin(), [this](Key key) { return AtOrAfter(key); });
  MergeSteps(at, inserted, &keys_);
  Shift(inserted, +1);
}

void StepKeys::TakeOut(std::span<const Step> steps) {
  std::vector<Key> taken(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) taken[i] = keys_[steps[i]];
  EraseSteps(steps, &keys_);
  Shift(taken, -1);
}

// After `keys`, ascending, came, or went.
void StepKeys::Shift(std::span<const Key> keys, Step sign) {
  const auto end_of = [this](Key key) { return std::min(static_cast<size_t>(key >> kKeyBits) + 1, first_at_.size()); };
  for (size_t i = 0; i < keys.size(); ++i) {
    const size_t begin = end_of(keys[i]), end = i + 1 < keys.size() ? end_of(keys[i + 1]) : first_at_.size();
    for (size_t r = begin; r < end; ++r) first_at_[r] += sign * static_cast<Step>(i + 1);
  }
}

}  // namespace coopjax
