// The blocks of a packing problem: what moves along the byte axis as one.
//
// Buffers at one offset form one block, a flat-bottomed outline of segments whose height may change with
// time. Back to back segments of one height are joined: a value and what overwrites it in place are
// one rectangle. Empty buffers have no block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/packing.h"

namespace coopjax {

struct PackingSegment {
  int32_t lower = 0;                   // [lower, upper)
  int32_t upper = 0;
  int64_t size = 0;

  bool overlaps(const PackingSegment& other) const { return lower < other.upper && other.lower < upper; }
};

struct PackingBlock {
  int32_t first_segment = 0;           // PackingBlocks::segments[first_segment .. end_segment)
  int32_t end_segment = 0;
  int32_t lower = 0;                   // of all segments together
  int32_t upper = 0;
  int64_t size = 0;                    // of the largest segment
  int64_t alignment = 1;               // least common multiple of the members'
  int64_t fixed_offset = kAnyOffset;
  int32_t first_buffer = 0;            // the first member

  int64_t duration() const { return int64_t{upper} - lower; }
};

struct PackingBlocks {
  std::vector<PackingBlock> blocks;    // by first member
  std::vector<PackingSegment> segments;  // of each block by time, disjoint
  std::vector<int32_t> block_of;       // [buffer]; -1 for an empty one

  std::span<const PackingSegment> of(int32_t block) const {
    return {segments.data() + blocks[block].first_segment, segments.data() + blocks[block].end_segment};
  }
};

PackingBlocks MakePackingBlocks(const PackingProblem& problem);

// The packing that places each block at `block_offsets[block]`.
Packing PackingOfBlocks(const PackingProblem& problem, const PackingBlocks& blocks,
                        std::span<const int64_t> block_offsets);

// Bytes that no packing avoids, by the steps of time: all that is live, sizes rounded up to the alignment that
// all blocks share, but for the one on top.
int64_t PackingLowerBound(const PackingBlocks& blocks);

// Live bytes seen by each block: the most that are live at any time of its lifetime, itself included.
std::vector<int64_t> PressureOfBlocks(const PackingBlocks& blocks);

inline int64_t AlignUp(int64_t offset, int64_t alignment) { return (offset + alignment - 1) / alignment * alignment; }

}  // namespace coopjax
