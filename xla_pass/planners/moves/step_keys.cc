#include "planners/moves/step_keys.h"

#include <algorithm>

namespace coopjax {
namespace {

// Between neighbours: a row of new keys in the lower half of that is still no closer than every other one.
constexpr Key kLeastRoom = 4 * (StepKeys::kMostInARow + 1);
// Per step, where steps get new keys: what a thousand steps have that were put in before one.
constexpr Key kNewRoom = StepKey(1) >> 10;

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
  tight_.clear();
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
  const Key of_step = AtStep(step);
  const auto reserved = std::upper_bound(reserved_.begin(), reserved_.end(), key);
  return reserved == reserved_.end() ? of_step : std::min(of_step, *reserved);
}

// In the lower half of the room: the next row before `key`, however long this one is, finds half as much.
FreeKeys StepKeys::Before(Key key, size_t count) const {
  const Key before = KeyBefore(key), stride = (key - before) / static_cast<Key>(2 * count);
  return {before + stride, stride};
}

void StepKeys::Reserve(Key key) {
  if (key - KeyBefore(key) < kLeastRoom || KeyAfter(key) - key < kLeastRoom) tight_.push_back(key);
  reserved_.insert(std::upper_bound(reserved_.begin(), reserved_.end(), key), key);
}

void StepKeys::Settle(std::span<const Key> inserted) {
  reserved_.clear();
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

// The steps around one that have plenty of room together.
std::pair<Step, Step> StepKeys::Crowded(Step step) const {
  for (Step reach = 1;; reach *= 2) {
    const Step begin = std::max(step - reach, 0), end = std::min(step + reach, num_steps());
    const bool is_all = begin == 0 && end == num_steps();
    if (is_all || (AtStep(end) - BeforeStep(begin)) / (end - begin + 1) >= kNewRoom) return {begin, end};
  }
}

void StepKeys::Spread(Step begin, Step end) {
  const Key before = BeforeStep(begin), after = AtStep(end), stride = (after - before) / (end - begin + 1);
  for (Step step = begin; step < end; ++step) keys_[step] = before + stride * (step - begin + 1);
  Step first = begin;
  for (Key r = (before >> kKeyBits) + 1; r < std::ssize(first_at_) && StepKey(static_cast<Step>(r)) <= after; ++r) {
    while (first < end && keys_[first] < StepKey(static_cast<Step>(r))) ++first;
    first_at_[r] = first;
  }
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
