#include "packing/core.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace coopjax {
namespace {

// Sums and counts of segments by a time of theirs, under removal: a Fenwick tree.
class TimeSums {
 public:
  explicit TimeSums(std::vector<int32_t> times) : times_(std::move(times)) {
    std::ranges::sort(times_);
    bytes_.assign(times_.size() + 1, 0);
    counts_.assign(times_.size() + 1, 0);
  }

  void Add(int32_t time, int64_t bytes, int64_t count) {
    size_t i = std::ranges::lower_bound(times_, time) - times_.begin() + 1;
    for (; i < bytes_.size(); i += i & -i) {
      bytes_[i] += bytes;
      counts_[i] += count;
    }
  }

  // (bytes, count) of the segments whose time is below `time`.
  std::pair<int64_t, int64_t> Before(int32_t time) const {
    std::pair<int64_t, int64_t> sum = {0, 0};
    for (size_t i = std::ranges::lower_bound(times_, time) - times_.begin(); i > 0; i -= i & -i) {
      sum.first += bytes_[i];
      sum.second += counts_[i];
    }
    return sum;
  }

 private:
  std::vector<int32_t> times_;
  std::vector<int64_t> bytes_, counts_;
};

// The segments that have not been put aside.
class Remaining {
 public:
  Remaining(const PackingBlocks& blocks, std::span<const int32_t> members, int64_t alignment)
      : blocks_(blocks), alignment_(alignment), begins_(Times(members, true)), ends_(Times(members, false)) {
    for (const int32_t b : members) Add(b, 1);
  }

  void Remove(int32_t block) { Add(block, -1); }

  // (bytes, count) of the segments that overlap the block's lifetime, its own included.
  std::pair<int64_t, int64_t> Overlapping(int32_t b) const {
    const auto begun = begins_.Before(blocks_.blocks[b].upper);
    const auto ended = ends_.Before(blocks_.blocks[b].lower + 1);
    return {begun.first - ended.first, begun.second - ended.second};
  }

 private:
  std::vector<int32_t> Times(std::span<const int32_t> members, bool begins) const {
    std::vector<int32_t> times;
    for (const int32_t b : members) {
      for (const PackingSegment& segment : blocks_.of(b)) times.push_back(begins ? segment.lower : segment.upper);
    }
    return times;
  }

  void Add(int32_t b, int64_t sign) {
    for (const PackingSegment& segment : blocks_.of(b)) {
      const int64_t bytes = sign * AlignUp(segment.size, alignment_);
      begins_.Add(segment.lower, bytes, sign);
      ends_.Add(segment.upper, bytes, sign);
    }
  }

  const PackingBlocks& blocks_;
  const int64_t alignment_;
  TimeSums begins_, ends_;
};

// Steps between a begin and the next end: (time, time) of each.
std::vector<int32_t> SectionTimes(const PackingBlocks& blocks, const std::vector<int32_t>& members) {
  std::vector<std::pair<int32_t, bool>> changes;  // time, begins; ends first
  for (const int32_t b : members) {
    for (const PackingSegment& segment : blocks.of(b)) {
      changes.emplace_back(segment.lower, true);
      changes.emplace_back(segment.upper, false);
    }
  }
  std::ranges::sort(changes);
  std::vector<int32_t> times;
  for (size_t i = 0; i + 1 < changes.size(); ++i) {
    if (changes[i].second && !changes[i + 1].second) times.push_back(changes[i].first);
  }
  return times;
}

void AddSections(const PackingBlocks& blocks, PackingCore* core) {
  const std::vector<int32_t> times = SectionTimes(blocks, core->members);
  std::vector<std::vector<PackingCore::InSection>> by_section(times.size());
  core->section_starts.push_back(0);
  for (int32_t m = 0; m < core->size(); ++m) {
    for (const PackingSegment& segment : blocks.of(core->members[m])) {
      auto s = static_cast<int32_t>(std::ranges::lower_bound(times, segment.lower) - times.begin());
      for (; s < std::ssize(times) && times[s] < segment.upper; ++s) {
        core->sections.push_back({s, segment.size});
        by_section[s].push_back({m, segment.size});
      }
    }
    core->section_starts.push_back(static_cast<int32_t>(core->sections.size()));
  }
  core->member_starts.push_back(0);
  for (const auto& list : by_section) {
    core->section_members.insert(core->section_members.end(), list.begin(), list.end());
    core->member_starts.push_back(static_cast<int32_t>(core->section_members.size()));
  }
}

// The most that `below` reaches above its offset while a segment of `above` lives; 0 if they don't meet.
int64_t HeightBelow(std::span<const PackingSegment> below, std::span<const PackingSegment> above) {
  int64_t height = 0;
  for (size_t i = 0, j = 0; i < below.size() && j < above.size();) {
    if (below[i].overlaps(above[j])) height = std::max(height, below[i].size);
    below[i].upper < above[j].upper ? ++i : ++j;
  }
  return height;
}

void AddConflicts(const PackingBlocks& blocks, PackingCore* core) {
  std::vector<std::vector<PackingCore::Conflict>> lists(core->size());
  std::vector<int32_t> live;
  for (int32_t m = 0; m < core->size(); ++m) {
    std::erase_if(live, [&](int32_t other) { return core->block(other).upper <= core->block(m).lower; });
    for (const int32_t other : live) {
      const auto segments = blocks.of(core->members[m]), others = blocks.of(core->members[other]);
      const int64_t height = HeightBelow(segments, others), other_height = HeightBelow(others, segments);
      if (height == 0) continue;
      lists[m].push_back({other, height, other_height});
      lists[other].push_back({m, other_height, height});
    }
    live.push_back(m);
  }
  core->conflict_starts.push_back(0);
  for (const auto& list : lists) {
    core->conflicts.insert(core->conflicts.end(), list.begin(), list.end());
    core->conflict_starts.push_back(static_cast<int32_t>(core->conflicts.size()));
  }
}

void AddObstacles(const PackingBlocks& blocks, std::span<const int32_t> fixed, PackingCore* core) {
  if (fixed.empty()) return;
  core->obstacles.resize(core->size());
  for (int32_t m = 0; m < core->size(); ++m) {
    const auto segments = blocks.of(core->members[m]);
    for (const int32_t b : fixed) {
      const int64_t height = HeightBelow(blocks.of(b), segments), own = HeightBelow(segments, blocks.of(b));
      const int64_t offset = blocks.blocks[b].fixed_offset;
      if (height > 0) core->obstacles[m].emplace_back(offset - own, offset + height);
    }
    std::ranges::sort(core->obstacles[m]);
  }
}

int64_t CommonAlignment(const PackingBlocks& blocks, std::span<const int32_t> members) {
  int64_t alignment = 0;
  for (const int32_t b : members) alignment = std::gcd(alignment, blocks.blocks[b].alignment);
  return std::max<int64_t>(alignment, 1);
}

}  // namespace

// In units of the common alignment, a segment of s units forbids a block of b units s + b - 1 offsets, and
// the block has capacity - b + 1 to choose from. (Offsets that are no multiple of a larger alignment of its own
// are lost as well, so such blocks are never called easy.)
PeeledBlocks PeelBlocks(const PackingBlocks& blocks, std::span<const int32_t> candidates, int64_t capacity) {
  const int64_t unit = CommonAlignment(blocks, candidates);
  Remaining remaining(blocks, candidates, unit);
  const auto is_easy = [&](int32_t b) {
    const PackingBlock& block = blocks.blocks[b];
    if (block.alignment != unit || block.fixed_offset != kAnyOffset || block.size > capacity) return false;
    const int64_t size = (block.size + unit - 1) / unit;
    auto [bytes, count] = remaining.Overlapping(b);
    for (const PackingSegment& own : blocks.of(b)) {
      bytes -= AlignUp(own.size, unit);
      --count;
    }
    const int64_t choices = (capacity - block.size) / unit + 1;
    return bytes / unit + count * (size - 1) < choices;
  };
  PeeledBlocks result;
  result.hard.assign(candidates.begin(), candidates.end());
  while (true) {
    std::vector<int32_t> kept;
    for (const int32_t b : result.hard) {
      if (!is_easy(b)) {
        kept.push_back(b);
        continue;
      }
      remaining.Remove(b);
      result.easy.push_back(b);
    }
    const bool is_done = kept.size() == result.hard.size();
    result.hard = std::move(kept);
    if (is_done) break;
  }
  std::ranges::reverse(result.easy);
  return result;
}

std::vector<std::vector<int32_t>> TimeComponents(const PackingBlocks& blocks, std::span<const int32_t> members) {
  std::vector<int32_t> sorted(members.begin(), members.end());
  std::ranges::stable_sort(sorted, {}, [&](int32_t b) { return blocks.blocks[b].lower; });
  std::vector<std::vector<int32_t>> components;
  int32_t end = std::numeric_limits<int32_t>::min();
  for (const int32_t b : sorted) {
    if (components.empty() || blocks.blocks[b].lower >= end) components.emplace_back();
    components.back().push_back(b);
    end = std::max(end, blocks.blocks[b].upper);
  }
  return components;
}

PackingCore MakePackingCore(const PackingBlocks& blocks, std::span<const int32_t> members) {
  PackingCore core;
  core.blocks = &blocks;
  std::vector<int32_t> fixed;
  for (const int32_t b : members) (blocks.blocks[b].fixed_offset == kAnyOffset ? core.members : fixed).push_back(b);
  AddSections(blocks, &core);
  AddConflicts(blocks, &core);
  AddObstacles(blocks, fixed, &core);
  return core;
}

int64_t CountConflicts(const PackingBlocks& blocks, std::span<const int32_t> members) {
  std::vector<int32_t> lowers, uppers;
  for (const int32_t b : members) {
    lowers.push_back(blocks.blocks[b].lower);
    uppers.push_back(blocks.blocks[b].upper);
  }
  std::ranges::sort(lowers);
  std::ranges::sort(uppers);
  int64_t pairs = 0;
  for (size_t i = 0; i < lowers.size(); ++i) {   // those that began before and have not ended
    const auto ended = std::ranges::upper_bound(uppers, lowers[i]) - uppers.begin();
    pairs += static_cast<int64_t>(i) - ended;
  }
  return pairs;
}

void SearchEffort::LimitTo(int64_t steps) { limit_ = std::min(limit_, spent_ + steps); }

}  // namespace coopjax
