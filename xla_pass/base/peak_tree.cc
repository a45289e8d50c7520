#include "base/peak_tree.h"

#include <algorithm>

namespace coopjax {

PeakTree::PeakTree(int32_t num_slots) : num_slots_(num_slots), left_minus_right_(num_slots, 0) {}

void PeakTree::Add(int32_t begin, int32_t end, int64_t bytes) {
  if (begin >= end || bytes == 0) return;
  int64_t* const differences = left_minus_right_.data();
  // Two nodes that climb in step: all of the range below the parent of `left` lies right of it, and
  // left of `right`. `left_change` and `right_change` say how far their maxima rose.
  uint32_t left = static_cast<uint32_t>(num_slots_ + begin);
  uint32_t right = static_cast<uint32_t>(num_slots_ + end - 1);
  int64_t left_change = bytes, right_change = bytes;
  auto risen = [](int64_t difference, int64_t old_difference) {
    return std::max<int64_t>(difference, 0) - std::max<int64_t>(old_difference, 0);
  };
  if (left != right) {
    while ((left ^ right) != 1) {
      const bool left_is_right_child = left & 1, right_is_right_child = right & 1;
      int64_t& at_left = differences[left >>= 1];
      const int64_t old_left = at_left;
      at_left += left_is_right_child ? -left_change : left_change - bytes;
      left_change = (left_is_right_child ? left_change : bytes) + risen(at_left, old_left);
      int64_t& at_right = differences[right >>= 1];
      const int64_t old_right = at_right;
      at_right += right_is_right_child ? bytes - right_change : right_change;
      right_change = (right_is_right_child ? right_change : 0) + risen(at_right, old_right);
    }
    int64_t& meeting = differences[left >>= 1];
    const int64_t old = meeting;
    meeting += left_change - right_change;
    left_change = right_change + risen(meeting, old);
  }
  while (left > 1 && left_change != 0) {
    const bool is_right_child = left & 1;
    int64_t& parent = differences[left >>= 1];
    const int64_t old = parent;
    parent += is_right_child ? -left_change : left_change;
    left_change = (is_right_child ? left_change : 0) + risen(parent, old);
  }
  peak_ += left_change;
}

int32_t PeakTree::PeakSlot() const {
  int32_t node = 1;
  while (node < num_slots_) node = 2 * node + (left_minus_right_[node] < 0 ? 1 : 0);
  return node - num_slots_;
}

int64_t PeakTree::At(int32_t slot) const {
  int64_t below_peak = 0;
  for (int32_t node = slot + num_slots_; node > 1; node >>= 1) {
    const int64_t difference = left_minus_right_[node >> 1];
    below_peak += std::max<int64_t>(0, node & 1 ? difference : -difference);
  }
  return peak_ - below_peak;
}

}  // namespace coopjax
