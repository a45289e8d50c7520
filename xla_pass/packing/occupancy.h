// Which addresses are taken at which times.
//
// A binary tree over the times at which anything begins or ends. Every node keeps two sets of disjoint address
// ranges: what is taken at some time of it and, in the lower half of the tree, what is taken throughout it. Long
// lifetimes enter the nodes of the middle level one by one: that costs O(sqrt n) insertions, but there they lie
// together with all others, and because packed rectangles touch, the sets stay short: a lifetime that overlaps ten
// thousand rectangles sees some hundred ranges.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "packing/blocks.h"

namespace coopjax {

// Disjoint ranges [begin, end) of addresses, sorted; ranges with less than `least_gap` between them are joined.
class AddressSet {
 public:
  using Range = std::pair<int64_t, int64_t>;
  void Add(int64_t begin, int64_t end, int64_t least_gap);
  std::span<const Range> ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

class Occupancy {
 public:
  // For blocks of `blocks`. Gaps too small for the smallest of them are not kept.
  explicit Occupancy(const PackingBlocks& blocks);

  void Place(int32_t block, int64_t offset);

  // The offset for `block` by `rule` among what is placed.
  int64_t Find(int32_t block, FitRule rule);

 private:
  // Offsets first .. last, from which the block being placed may choose.
  struct Choice {
    int64_t first;
    int64_t last;
  };
  // A set that the block meets, and its size there.
  struct Met {
    std::span<const AddressSet::Range> ranges;
    int64_t size;
  };
  void Meet(const PackingSegment& segment);
  void Narrow(const Met& met);
  int32_t IndexOf(int32_t time) const;

  const PackingBlocks& blocks_;
  std::vector<int32_t> times_;
  int32_t width_ = 1;                    // leaves
  int32_t middle_ = 1;                   // nodes of the middle level, [middle_, 2 * middle_)
  int64_t least_gap_ = 1;
  std::vector<AddressSet> throughout_;   // [node]; empty above the middle level
  std::vector<AddressSet> sometimes_;    // [node]; below the middle level, without what an ancestor has throughout
  std::vector<Met> met_;
  std::vector<Choice> choices_, narrowed_;
};

}  // namespace coopjax
