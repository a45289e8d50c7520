#include "packing/occupancy.h"

#include <algorithm>

#include "base/allowance.h"

namespace coopjax {

void AddressSet::Add(int64_t begin, int64_t end, int64_t least_gap) {
  // The ranges that touch the new one become part of it.
  const auto first = std::partition_point(ranges_.begin(), ranges_.end(),
                                          [&](const Range& range) { return begin - range.second >= least_gap; });
  auto last = first;
  while (last != ranges_.end() && last->first - end < least_gap) {
    begin = std::min(begin, last->first);
    end = std::max(end, last->second);
    ++last;
  }
  CountSteps(3 + (last - first));
  if (first == last) {
    ranges_.insert(first, {begin, end});
  } else {
    *first = {begin, end};
    ranges_.erase(first + 1, last);
  }
}

Occupancy::Occupancy(const PackingBlocks& blocks) : blocks_(blocks) {
  for (const PackingSegment& segment : blocks.segments) {
    times_.push_back(segment.lower);
    times_.push_back(segment.upper);
  }
  CountSteps(10 * std::ssize(times_));
  std::ranges::sort(times_);
  times_.erase(std::unique(times_.begin(), times_.end()), times_.end());
  for (int level = 0; width_ < std::ssize(times_); ++level) {
    width_ *= 2;
    if (level % 2 == 0) middle_ *= 2;
  }
  throughout_.resize(2 * width_);
  sometimes_.resize(2 * width_);
  for (int32_t b = 0; b < std::ssize(blocks.blocks); ++b) {
    int64_t smallest = blocks.blocks[b].size;
    for (const PackingSegment& segment : blocks.of(b)) smallest = std::min(smallest, segment.size);
    least_gap_ = b == 0 ? smallest : std::min(least_gap_, smallest);
  }
}

int32_t Occupancy::IndexOf(int32_t time) const {
  return static_cast<int32_t>(std::ranges::lower_bound(times_, time) - times_.begin());
}

void Occupancy::Place(int32_t block, int64_t offset) {
  for (const PackingSegment& segment : blocks_.of(block)) {
    const int64_t end = offset + segment.size;
    const auto add = [&](std::vector<AddressSet>* sets, int32_t node) { (*sets)[node].Add(offset, end, least_gap_); };
    int32_t left = IndexOf(segment.lower) + width_, right = IndexOf(segment.upper) + width_;
    int32_t first = left, last = right - 1;
    // The nodes that make up the segment's time, none of them above the middle level.
    const auto add_both = [&](int32_t node) {
      add(&throughout_, node);
      add(&sometimes_, node);
    };
    for (; left < right && left >= 2 * middle_; left /= 2, right /= 2) {
      if (left % 2) add_both(left++);
      if (right % 2) add_both(--right);
    }
    for (int32_t node = left; node < right; ++node) add(&throughout_, node);
    // Those above the ends of it; from the middle level on all that meet it.
    for (; first >= 2 * middle_; first /= 2, last /= 2) {
      add(&sometimes_, first);
      if (last != first) add(&sometimes_, last);
    }
    for (; first >= 1; first /= 2, last /= 2) {
      for (int32_t node = first; node <= last; ++node) add(&sometimes_, node);
    }
  }
}

void Occupancy::Meet(const PackingSegment& segment) {
  const auto meet = [&](const AddressSet& set) {
    if (!set.ranges().empty()) met_.push_back({set.ranges(), segment.size});
  };
  int32_t left = IndexOf(segment.lower) + width_, right = IndexOf(segment.upper) + width_;
  const int32_t first = left, last = right - 1;
  for (; left < right; left /= 2, right /= 2) {
    if (left % 2) meet(sometimes_[left++]);
    if (right % 2) meet(sometimes_[--right]);
  }
  for (int32_t a = first / 2, b = last / 2; a >= middle_; a /= 2, b /= 2) {
    meet(throughout_[a]);
    if (a != b) meet(throughout_[b]);
  }
}

// A range [begin, end) leaves the offsets up to begin - size and from end on.
void Occupancy::Narrow(const Met& met) {
  narrowed_.clear();
  auto range = met.ranges.begin();
  for (const auto& [first, last] : choices_) {
    range = std::partition_point(range, met.ranges.end(), [&](const auto& r) { return r.second <= first; });
    int64_t offset = first;
    for (; range != met.ranges.end() && offset <= last; ++range) {
      const int64_t highest = std::min(last, range->first - met.size);
      if (offset <= highest) narrowed_.push_back({offset, highest});
      offset = range->second;
      if (offset > last) break;   // the range may reach into the next choice
    }
    if (offset <= last) narrowed_.push_back({offset, last});
  }
  CountSteps(1 + 2 * std::ssize(choices_));
  std::swap(choices_, narrowed_);
}

int64_t Occupancy::Find(int32_t block, FitRule rule) {
  constexpr int64_t kTop = INT64_MAX / 2;
  met_.clear();
  for (const PackingSegment& segment : blocks_.of(block)) Meet(segment);
  // The set with the fewest gaps for the block first: what it leaves is all that the others are asked about.
  size_t tightest = 0;
  int64_t fewest = INT64_MAX, steps = 5;
  for (size_t i = 0; i < met_.size(); ++i) {
    int64_t gaps = 0, end = 0;
    steps += 2 + std::ssize(met_[i].ranges);
    for (const auto& range : met_[i].ranges) {
      gaps += range.first - end >= met_[i].size;
      end = range.second;
    }
    if (gaps >= fewest) continue;
    fewest = gaps;
    tightest = i;
  }
  choices_.assign(1, {0, kTop});
  if (!met_.empty()) std::swap(met_[0], met_[tightest]);
  CountSteps(steps);
  for (const Met& met : met_) Narrow(met);
  const int64_t alignment = blocks_.blocks[block].alignment;
  int64_t best = kAnyOffset, least_slack = INT64_MAX;
  for (const auto& [first, last] : choices_) {
    const int64_t offset = AlignUp(first, alignment);
    const int64_t slack = last == kTop ? kTop : last - offset;
    if (slack < 0 || slack >= least_slack) continue;
    if (rule == FitRule::kFirst) return offset;
    best = offset;
    least_slack = slack;
  }
  return best;
}

}  // namespace coopjax
