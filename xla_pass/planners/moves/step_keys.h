// The positions of a schedule's steps: sparse 64-bit keys, so that rows of new steps fit between any two of them, and
// rows between those, without a new key for any of the others; where room gets short, the steps around get new ones.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "program/step_program.h"

namespace coopjax {

using Key = int64_t;
inline constexpr int kKeyBits = 38;   // of room between two steps; what is left numbers 33 million steps
inline constexpr Key kBeforeAll = -1;  // when parameters and constants are "made"

// The key of a step before anything is put in.
inline constexpr Key StepKey(Step step) { return static_cast<Key>(step) << kKeyBits; }

// Free keys: first, first + stride, ...
struct FreeKeys {
  Key first;
  Key stride;
  Key operator[](size_t i) const { return first + static_cast<Key>(i) * stride; }
};

class StepKeys {
 public:
  static constexpr size_t kMostInARow = 4096;

  // Starts over: step r has key StepKey(r).
  void Reset(Step num_steps);
  Step num_steps() const { return static_cast<Step>(keys_.size()); }
  Key operator[](Step step) const { return keys_[step]; }
  // The first step whose key is at or after `key`.
  Step AtOrAfter(Key key) const;

  // `count` keys, at most kMostInARow, between `key`, in use, and the one before it.
  FreeKeys Before(Key key, size_t count) const;
  // Takes `key` out of the free ones, before it is that of a step.
  void Reserve(Key key);
  // There may be no room for another row next to one that was reserved.
  bool is_tight() const { return !tight_.empty(); }

  // `inserted`, ascending, are keys of steps now; what else was reserved is free again.
  void Settle(std::span<const Key> inserted);
  // `steps`, ascending, are gone.
  void TakeOut(std::span<const Step> steps);
  // Makes room where it is tight: `moved(first, before)` is called when the steps from `first` on, which had the keys
  // `before`, have others, in between the same neighbours.
  template <typename Visitor>
  void Loosen(const Visitor& moved) {
    std::vector<Step> tight;
    for (Key key : tight_) tight.push_back(AtOrAfter(key));
    std::sort(tight.begin(), tight.end());
    tight_.clear();
    Step done = 0;
    for (Step step : tight) {
      if (step < done || step == num_steps()) continue;
      const auto [begin, end] = Crowded(step);
      const std::vector<Key> before(keys_.begin() + begin, keys_.begin() + end);
      Spread(begin, end);
      moved(begin, std::span<const Key>(before));
      done = end;
    }
  }

 private:
  std::pair<Step, Step> Crowded(Step step) const;
  void Spread(Step begin, Step end);
  Key BeforeStep(Step step) const { return step > 0 ? keys_[step - 1] : kBeforeAll; }
  Key AtStep(Step step) const {
    return step < num_steps() ? keys_[step] : StepKey(static_cast<Step>(first_at_.size()) - 1);
  }
  void Shift(std::span<const Key> keys, Step sign);
  Key KeyBefore(Key key) const;
  Key KeyAfter(Key key) const;

  std::vector<Key> keys_;       // per step, ascending
  std::vector<Step> first_at_;  // per r: the first step whose key is at or after StepKey(r)
  std::vector<Key> reserved_;   // ascending
  std::vector<Key> tight_;      // reserved next to too little room
};

// Puts items[i] before the step at[i], ascending, of a vector with one per step.
template <typename T>
void MergeSteps(std::span<const Step> at, std::span<const T> items, std::vector<T>* per_step) {
  Step end = static_cast<Step>(per_step->size());   // of the steps not yet moved up
  per_step->resize(per_step->size() + items.size());
  const auto begin = per_step->begin();
  for (size_t i = items.size(); i-- > 0;) {
    std::move_backward(begin + at[i], begin + end, begin + end + static_cast<Step>(i) + 1);
    end = at[i];
    begin[end + static_cast<Step>(i)] = items[i];
  }
}

// Takes the entries of `steps`, ascending, out of a vector with one per step.
template <typename T>
void EraseSteps(std::span<const Step> steps, std::vector<T>* per_step) {
  if (steps.empty()) return;
  auto out = per_step->begin() + steps[0];
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto end = i + 1 < steps.size() ? per_step->begin() + steps[i + 1] : per_step->end();
    out = std::copy(per_step->begin() + steps[i] + 1, end, out);
  }
  per_step->erase(out, per_step->end());
}

}  // namespace coopjax
