// Where things stand, by their ids.
//
// A module has ids by the ten thousands and looks one up for every operand. They come in runs: a hash table leads to
// pages of neighbouring ids, so that the lookups of a computation stay in few lines of the cache.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace coopjax {

class IdIndex {
 public:
  // -1 when there is no such id.
  int32_t Find(int64_t id) const {
    if (slots_.empty()) return -1;
    const Slot& slot = slots_[SlotOf(id >> kPageBits)];
    return slot.page < 0 ? -1 : pages_[slot.page][Offset(id)];
  }
  bool contains(int64_t id) const { return Find(id) >= 0; }

  // False, and nothing changes, when the id is there. `index` is not negative.
  bool Add(int64_t id, int32_t index) {
    if (2 * pages_.size() >= slots_.size()) Grow();
    Slot& slot = slots_[SlotOf(id >> kPageBits)];
    if (slot.page < 0) {
      slot = {id >> kPageBits, static_cast<int32_t>(pages_.size())};
      pages_.emplace_back().fill(-1);
    }
    int32_t& place = pages_[slot.page][Offset(id)];
    if (place >= 0) return false;
    place = index;
    return true;
  }

 private:
  static constexpr int kPageBits = 4;
  static constexpr size_t kMinSlots = 16;
  using Page = std::array<int32_t, 1 << kPageBits>;  // one line of the cache
  struct Slot {
    int64_t key = 0;    // the highest bits of the page's ids
    int32_t page = -1;  // -1: the slot is free
  };

  static size_t Offset(int64_t id) { return static_cast<size_t>(id) % (1 << kPageBits); }

  // The slot that holds the key, or the free one that is to. Ids are `computation << 32 | number`, mostly with small
  // numbers on both sides: all bits have to count in all bits.
  size_t SlotOf(int64_t key) const {
    constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio
    uint64_t hash = static_cast<uint64_t>(key) * kMultiplier;
    hash = (hash ^ hash >> 32) * kMultiplier;
    size_t slot = hash >> (std::countl_zero(slots_.size()) + 1);  // its highest bits
    while (slots_[slot].page >= 0 && slots_[slot].key != key) slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  }

  void Grow() {
    std::vector<Slot> old(std::max(kMinSlots, 2 * slots_.size()));
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.page >= 0) slots_[SlotOf(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;  // a power of two, at most half of them taken
  std::vector<Page> pages_;
};

}  // namespace coopjax
