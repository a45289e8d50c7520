// The add-max segment tree of FastSA: bytes per slot, range add, maximum over all slots.
//
// Only differences are stored: per inner node the maximum of its left half minus that of its right
// half, and the maximum of the whole. A range add walks up from both ends of the range to where they
// meet and further only while the maximum changes; nothing is ever pushed down, so that an add is
// undone exactly by adding the negative. O(log slots) per call, 8 bytes per slot.
#pragma once

#include <cstdint>
#include <vector>

namespace coopjax {

class PeakTree {
 public:
  // `num_slots` is a power of two, at least 2. All slots start at 0.
  explicit PeakTree(int32_t num_slots);

  int32_t num_slots() const { return num_slots_; }
  // Adds `bytes` to every slot in [begin, end); the range may be empty.
  void Add(int32_t begin, int32_t end, int64_t bytes);
  int64_t peak() const { return peak_; }
  // The first slot at the peak.
  int32_t PeakSlot() const;
  int64_t At(int32_t slot) const;

 private:
  int32_t num_slots_;
  std::vector<int64_t> left_minus_right_;   // of inner node i, whose children are 2i and 2i + 1
  int64_t peak_ = 0;
};

}  // namespace coopjax
