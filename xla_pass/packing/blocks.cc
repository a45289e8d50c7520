#include "packing/blocks.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/allowance.h"

namespace coopjax {
namespace {

// Cuts the members' lifetimes at each other's ends; the largest member counts where several are live.
std::vector<PackingSegment> Outline(const PackingProblem& problem, const std::vector<int32_t>& members) {
  std::vector<int32_t> times;
  for (const int32_t k : members) {
    times.push_back(problem.buffers[k].lower);
    times.push_back(problem.buffers[k].upper);
  }
  std::ranges::sort(times);
  times.erase(std::unique(times.begin(), times.end()), times.end());
  std::vector<int64_t> heights(times.size(), 0);
  for (const int32_t k : members) {
    const PackingBuffer& buffer = problem.buffers[k];
    const auto first = std::ranges::lower_bound(times, buffer.lower) - times.begin();
    for (auto i = first; times[i] < buffer.upper; ++i) heights[i] = std::max(heights[i], buffer.size);
  }
  std::vector<PackingSegment> outline;
  for (size_t i = 0; i + 1 < times.size(); ++i) {
    if (heights[i] == 0) continue;
    if (!outline.empty() && outline.back().upper == times[i] && outline.back().size == heights[i]) {
      outline.back().upper = times[i + 1];
    } else {
      outline.push_back({times[i], times[i + 1], heights[i]});
    }
  }
  return outline;
}

void AddBlock(const PackingProblem& problem, const std::vector<int32_t>& members, PackingBlocks* result) {
  const auto outline = Outline(problem, members);
  if (outline.empty()) return;
  PackingBlock block;
  block.first_segment = static_cast<int32_t>(result->segments.size());
  result->segments.insert(result->segments.end(), outline.begin(), outline.end());
  block.end_segment = static_cast<int32_t>(result->segments.size());
  block.lower = outline.front().lower;
  block.upper = outline.back().upper;
  block.first_buffer = members[0];
  for (const PackingSegment& segment : outline) block.size = std::max(block.size, segment.size);
  for (const int32_t k : members) {
    block.alignment = std::lcm(block.alignment, problem.buffers[k].alignment);
    if (block.fixed_offset == kAnyOffset) block.fixed_offset = problem.buffers[k].fixed_offset;
    result->block_of[k] = static_cast<int32_t>(result->blocks.size());
  }
  result->blocks.push_back(block);
}

// What begins (positive) and ends (negative) at each time, ends first.
struct Change {
  int32_t time;
  int64_t bytes;
  int64_t slack;                       // lost to alignment above the segment
};

std::vector<Change> ChangesOf(const PackingBlocks& blocks, int64_t alignment) {
  std::vector<Change> changes;
  for (const PackingSegment& segment : blocks.segments) {
    const int64_t bytes = AlignUp(segment.size, alignment);
    changes.push_back({segment.lower, bytes, bytes - segment.size});
    changes.push_back({segment.upper, -bytes, bytes - segment.size});
  }
  std::ranges::sort(
      changes, [](const Change& a, const Change& b) { return a.time != b.time ? a.time < b.time : a.bytes < b.bytes; });
  return changes;
}

}  // namespace

PackingBlocks MakePackingBlocks(const PackingProblem& problem) {
  CountSteps(20 * std::ssize(problem.buffers));
  const auto num_buffers = static_cast<int32_t>(problem.buffers.size());
  std::vector<int32_t> root(num_buffers);
  std::vector<std::vector<int32_t>> members(num_buffers);
  for (int32_t k = 0; k < num_buffers; ++k) {
    const int32_t same = problem.buffers[k].same_offset_as;
    root[k] = same < 0 ? k : root[same];
    members[root[k]].push_back(k);
  }
  PackingBlocks result;
  result.block_of.assign(num_buffers, -1);
  for (int32_t k = 0; k < num_buffers; ++k) {
    if (root[k] == k) AddBlock(problem, members[k], &result);
  }
  return result;
}

Packing PackingOfBlocks(const PackingProblem& problem, const PackingBlocks& blocks,
                        std::span<const int64_t> block_offsets) {
  Packing packing{0, std::vector<int64_t>(problem.buffers.size(), 0)};
  for (size_t k = 0; k < problem.buffers.size(); ++k) {
    const PackingBuffer& buffer = problem.buffers[k];
    if (blocks.block_of[k] >= 0) {
      packing.offsets[k] = block_offsets[blocks.block_of[k]];
    } else if (buffer.fixed_offset != kAnyOffset) {
      packing.offsets[k] = buffer.fixed_offset;
    }
    if (buffer.size > 0) packing.heap_bytes = std::max(packing.heap_bytes, packing.offsets[k] + buffer.size);
  }
  return packing;
}

int64_t PackingLowerBound(const PackingBlocks& blocks) {
  int64_t alignment = 0, bound = 0, live = 0;
  for (const PackingBlock& block : blocks.blocks) {
    alignment = std::gcd(alignment, block.alignment);
    if (block.fixed_offset != kAnyOffset) bound = std::max(bound, block.fixed_offset + block.size);
  }
  std::multiset<int64_t> slacks;
  for (const Change& change : ChangesOf(blocks, std::max<int64_t>(alignment, 1))) {
    live += change.bytes;
    if (change.bytes > 0) {
      slacks.insert(change.slack);
      bound = std::max(bound, live - *slacks.rbegin());
    } else {
      slacks.erase(slacks.find(change.slack));
    }
  }
  return bound;
}

std::vector<int64_t> PressureOfBlocks(const PackingBlocks& blocks) {
  std::vector<int32_t> times;
  std::vector<int64_t> live;           // from times[i] on
  for (const Change& change : ChangesOf(blocks, 1)) {
    if (times.empty() || times.back() != change.time) {
      times.push_back(change.time);
      live.push_back(live.empty() ? 0 : live.back());
    }
    live.back() += change.bytes;
  }
  const size_t width = times.size();
  std::vector<int64_t> most(2 * width, 0);
  std::ranges::copy(live, most.begin() + static_cast<int64_t>(width));
  for (size_t node = width; node-- > 1;) most[node] = std::max(most[2 * node], most[2 * node + 1]);
  std::vector<int64_t> pressure;
  for (const PackingBlock& block : blocks.blocks) {
    size_t left = std::ranges::lower_bound(times, block.lower) - times.begin() + width;
    size_t right = std::ranges::lower_bound(times, block.upper) - times.begin() + width;
    int64_t largest = 0;
    for (; left < right; left /= 2, right /= 2) {
      if (left & 1) largest = std::max(largest, most[left++]);
      if (right & 1) largest = std::max(largest, most[--right]);
    }
    pressure.push_back(largest);
  }
  return pressure;
}

}  // namespace coopjax
