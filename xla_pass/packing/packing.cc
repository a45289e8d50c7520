#include "packing/packing.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include "packing/blocks.h"
#include "packing/occupancy.h"

namespace coopjax {
namespace {

std::string Name(size_t k) { return "buffer " + std::to_string(k); }

std::string CheckBuffer(const PackingProblem& problem, size_t k) {
  const PackingBuffer& buffer = problem.buffers[k];
  if (buffer.upper <= buffer.lower) {
    return Name(k) + " lives from " + std::to_string(buffer.lower) + " to " + std::to_string(buffer.upper) +
           ", which is no time";
  }
  if (buffer.size < 0) return Name(k) + " has the negative size " + std::to_string(buffer.size);
  if (buffer.alignment < 1) return Name(k) + " has the alignment " + std::to_string(buffer.alignment);
  if (buffer.same_offset_as < -1 || buffer.same_offset_as >= static_cast<int64_t>(k)) {
    return Name(k) + " is tied to buffer " + std::to_string(buffer.same_offset_as) + ", which is not an earlier one";
  }
  if (buffer.fixed_offset != kAnyOffset) {
    if (buffer.fixed_offset < 0) return Name(k) + " has the fixed offset " + std::to_string(buffer.fixed_offset);
    if (buffer.fixed_offset % buffer.alignment) return Name(k) + " is fixed off its alignment";
  }
  return "";
}

// Two fixed offsets of one block that differ, or one that another member's alignment forbids.
std::string CheckFixedTies(const PackingProblem& problem, const PackingBlocks& blocks) {
  for (size_t k = 0; k < problem.buffers.size(); ++k) {
    if (blocks.block_of[k] < 0) continue;
    const PackingBlock& block = blocks.blocks[blocks.block_of[k]];
    const int64_t fixed = problem.buffers[k].fixed_offset;
    if (fixed != kAnyOffset && fixed != block.fixed_offset) return Name(k) + " is tied to a buffer fixed elsewhere";
    if (block.fixed_offset != kAnyOffset && block.fixed_offset % block.alignment) {
      return Name(k) + " is tied to a buffer fixed off its alignment";
    }
  }
  return "";
}

struct Placed {
  int32_t block;
  PackingSegment segment;
  int64_t offset;
};

// The first two segments, by time, that share a byte: {-1, -1} if none do. O(n log n).
std::pair<int32_t, int32_t> FirstOverlap(std::vector<Placed> placed) {
  std::ranges::sort(placed, {}, [](const Placed& p) { return std::make_tuple(p.segment.lower, p.offset); });
  std::vector<size_t> by_end(placed.size());
  std::iota(by_end.begin(), by_end.end(), 0);
  std::ranges::sort(by_end, {}, [&](size_t i) { return placed[i].segment.upper; });
  std::set<std::pair<int64_t, size_t>> live;   // offset, index
  size_t ended = 0;
  for (size_t i = 0; i < placed.size(); ++i) {
    for (; placed[by_end[ended]].segment.upper <= placed[i].segment.lower; ++ended) {
      live.erase({placed[by_end[ended]].offset, by_end[ended]});
    }
    const auto above = live.insert({placed[i].offset, i}).first;
    const auto next = std::next(above);
    if (next != live.end() && next->first < placed[i].offset + placed[i].segment.size) {
      return {placed[next->second].block, placed[i].block};
    }
    if (above == live.begin()) continue;
    const Placed& below = placed[std::prev(above)->second];
    if (below.offset + below.segment.size > placed[i].offset) return {below.block, placed[i].block};
  }
  return {-1, -1};
}

std::string OverlapText(const PackingBlocks& blocks, std::pair<int32_t, int32_t> pair) {
  if (pair.first < 0) return "";
  return Name(blocks.blocks[pair.first].first_buffer) + " and " + Name(blocks.blocks[pair.second].first_buffer) +
         " share bytes at the same time";
}

// Larger keys come first.
std::tuple<int64_t, int64_t> KeyOf(PackingOrder order, const PackingBlock& block, int64_t pressure) {
  switch (order) {
    case PackingOrder::kSize:
      return {block.size, block.duration()};
    case PackingOrder::kDuration:
      return {block.duration(), block.size};
    case PackingOrder::kArea:
      return {block.size * block.duration(), block.size};
    case PackingOrder::kLower:
      return {-int64_t{block.lower}, block.size};
    case PackingOrder::kPressure:
      return {pressure, block.size * block.duration()};
  }
  return {};
}

Packing PackBlocks(const PackingProblem& problem, const PackingBlocks& blocks, std::span<const int32_t> sequence,
                   FitRule rule) {
  std::vector<int64_t> offsets(blocks.blocks.size(), kAnyOffset);
  Occupancy occupancy(blocks);
  const auto place = [&](int32_t block, int64_t offset) {
    offsets[block] = offset;
    occupancy.Place(block, offset);
  };
  for (int32_t b = 0; b < std::ssize(blocks.blocks); ++b) {
    if (blocks.blocks[b].fixed_offset != kAnyOffset) place(b, blocks.blocks[b].fixed_offset);
  }
  for (const int32_t b : sequence) {
    if (offsets[b] == kAnyOffset) place(b, occupancy.Find(b, rule));
  }
  return PackingOfBlocks(problem, blocks, offsets);
}

}  // namespace

std::string CheckPackingProblem(const PackingProblem& problem) {
  for (size_t k = 0; k < problem.buffers.size(); ++k) {
    const std::string fault = CheckBuffer(problem, k);
    if (!fault.empty()) return fault;
  }
  const PackingBlocks blocks = MakePackingBlocks(problem);
  const std::string fault = CheckFixedTies(problem, blocks);
  if (!fault.empty()) return fault;
  std::vector<Placed> fixed;
  for (int32_t b = 0; b < std::ssize(blocks.blocks); ++b) {
    if (blocks.blocks[b].fixed_offset == kAnyOffset) continue;
    for (const PackingSegment& segment : blocks.of(b)) fixed.push_back({b, segment, blocks.blocks[b].fixed_offset});
  }
  return OverlapText(blocks, FirstOverlap(std::move(fixed)));
}

int64_t PeakLiveBytes(const PackingProblem& problem) {
  int64_t peak = 0;
  for (const int64_t pressure : PressureOfBlocks(MakePackingBlocks(problem))) peak = std::max(peak, pressure);
  return peak;
}

std::string CheckPacking(const PackingProblem& problem, const Packing& packing) {
  const PackingBlocks blocks = MakePackingBlocks(problem);
  if (packing.offsets.size() != problem.buffers.size()) return "one offset per buffer is needed";
  std::vector<Placed> placed;
  for (size_t k = 0; k < problem.buffers.size(); ++k) {
    const PackingBuffer& buffer = problem.buffers[k];
    const int64_t offset = packing.offsets[k];
    if (offset < 0 || offset % buffer.alignment) return Name(k) + " lies at " + std::to_string(offset);
    if (buffer.fixed_offset != kAnyOffset && offset != buffer.fixed_offset) {
      return Name(k) + " is not where it is fixed";
    }
    if (buffer.same_offset_as >= 0 && offset != packing.offsets[buffer.same_offset_as]) {
      return Name(k) + " does not lie where " + Name(buffer.same_offset_as) + " does";
    }
    if (buffer.size > 0 && offset + buffer.size > packing.heap_bytes) return Name(k) + " lies outside the heap";
  }
  for (int32_t b = 0; b < std::ssize(blocks.blocks); ++b) {
    const int64_t offset = packing.offsets[blocks.blocks[b].first_buffer];
    for (const PackingSegment& segment : blocks.of(b)) placed.push_back({b, segment, offset});
  }
  return OverlapText(blocks, FirstOverlap(std::move(placed)));
}

Packing PackInOrder(const PackingProblem& problem, PackingOrder order, FitRule rule) {
  const PackingBlocks blocks = MakePackingBlocks(problem);
  std::vector<int64_t> pressure(blocks.blocks.size(), 0);
  if (order == PackingOrder::kPressure) pressure = PressureOfBlocks(blocks);
  std::vector<int32_t> sequence(blocks.blocks.size());
  std::iota(sequence.begin(), sequence.end(), 0);
  std::ranges::stable_sort(sequence, std::greater<>(),
                           [&](int32_t b) { return KeyOf(order, blocks.blocks[b], pressure[b]); });
  return PackBlocks(problem, blocks, sequence, rule);
}

Packing PackInSequence(const PackingProblem& problem, std::span<const int32_t> sequence, FitRule rule) {
  const PackingBlocks blocks = MakePackingBlocks(problem);
  std::vector<int32_t> of_blocks;
  for (const int32_t k : sequence) {
    if (blocks.block_of[k] >= 0) of_blocks.push_back(blocks.block_of[k]);
  }
  return PackBlocks(problem, blocks, of_blocks, rule);
}

Packing PackBestFit(const PackingProblem& problem) {
  Packing by_size = PackInOrder(problem, PackingOrder::kSize, FitRule::kBest);
  Packing by_duration = PackInOrder(problem, PackingOrder::kDuration, FitRule::kBest);
  return by_duration.heap_bytes < by_size.heap_bytes ? by_duration : by_size;
}

}  // namespace coopjax
