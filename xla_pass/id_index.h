// Where things stand, by their ids.
//
// A module has ids by the ten thousands and looks one up for every operand: an open-addressed table, whose entries lie
// in one piece of memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace coopjax {

class IdIndex {
 public:
  // -1 when there is no such id.
  int32_t Find(int64_t id) const { return slots_.empty() ? -1 : slots_[SlotOf(id)].index; }
  bool contains(int64_t id) const { return Find(id) >= 0; }

  // False, and nothing changes, when the id is there. `index` is not negative.
  bool Add(int64_t id, int32_t index) {
    Reserve(size_ + 1);
    Slot& slot = slots_[SlotOf(id)];
    if (slot.index >= 0) return false;
    slot = {id, index};
    ++size_;
    return true;
  }

  void Reserve(size_t num_ids) {
    if (2 * num_ids <= slots_.size()) return;
    std::vector<Slot> old(std::bit_ceil(std::max(kMinSlots, 2 * num_ids)));
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.index >= 0) slots_[SlotOf(slot.id)] = slot;
    }
  }

 private:
  struct Slot {
    int64_t id = 0;
    int32_t index = -1;  // -1: the slot is free
  };
  static constexpr size_t kMinSlots = 16;

  // The slot that holds the id, or the free one that is to.
  size_t SlotOf(int64_t id) const {
    const uint64_t hash = static_cast<uint64_t>(id) * 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio
    size_t slot = hash >> (std::countl_zero(slots_.size()) + 1);           // its highest bits
    while (slots_[slot].index >= 0 && slots_[slot].id != id) slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  }

  std::vector<Slot> slots_;  // a power of two, at most half of them taken
  size_t size_ = 0;
};

}  // namespace coopjax
