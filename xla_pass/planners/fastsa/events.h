// The productions, reads and overwrites of one value, in slot order: FastSA's per-value sets of times.
//
// Most values have a handful of events, so they lie sorted inside the object, on one cache line; what
// outgrows it moves to the heap. Finding is a binary search, inserting and erasing shift what follows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "planners/fastsa/node_groups.h"

namespace coopjax {

using Slot = int32_t;
inline constexpr Slot kNoSlot = -1;

// A slot and what happens there, ordered by slot. The production of a given value is at slot -1.
class Event {
 public:
  Event() = default;
  Event(Slot slot, TouchKind kind) : key_(slot * 4 + static_cast<int32_t>(kind)) {}
  Slot slot() const { return key_ >> 2; }
  TouchKind kind() const { return static_cast<TouchKind>(key_ & 3); }
  bool is_use() const { return kind() != TouchKind::kMake; }
  bool leaves_readable() const { return kind() != TouchKind::kOverwrite; }

 private:
  int32_t key_ = 0;
};

class alignas(64) EventList {
 public:
  int32_t size() const { return size_; }
  const Event& operator[](int32_t i) const { return data()[i]; }

  // Index of the first event at or after `slot`.
  int32_t LowerBound(Slot slot) const {
    const Event* const events = data();
    int32_t first = 0, count = size_;
    while (count > 0) {
      const int32_t half = count >> 1;
      const bool is_before = events[first + half].slot() < slot;
      first = is_before ? first + half + 1 : first;
      count = is_before ? count - half - 1 : half;
    }
    return first;
  }

  void Insert(int32_t i, Event event) {
    if (size_ == kInline && heap_.empty()) heap_.assign(inline_, inline_ + kInline);
    if (heap_.empty()) {
      std::copy_backward(inline_ + i, inline_ + size_, inline_ + size_ + 1);
      inline_[i] = event;
    } else {
      heap_.insert(heap_.begin() + i, event);
    }
    ++size_;
  }

  void Erase(int32_t i) {
    if (heap_.empty()) {
      std::copy(inline_ + i + 1, inline_ + size_, inline_ + i);
    } else {
      heap_.erase(heap_.begin() + i);
    }
    --size_;
  }

 private:
  static constexpr int32_t kInline = 9;
  const Event* data() const { return heap_.empty() ? inline_ : heap_.data(); }

  int32_t size_ = 0;
  Event inline_[kInline];
  std::vector<Event> heap_;   // all events, once they outgrew `inline_`; never empty again
};
static_assert(sizeof(EventList) == 64);

}  // namespace coopjax
