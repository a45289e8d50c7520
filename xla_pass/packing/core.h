// The hard part of a packing problem, indexed for search.
//
// Three reductions, none of which loses a packing within the capacity that is asked for:
//  * Peeling. A block fits into `capacity` whatever the others do, when all that lives at its time, and the
//    gaps that are too small for it, leave room for it. Such a block is put aside and placed last; without it
//    others may become as easy.
//  * Components. Blocks that no chain of overlapping lifetimes connects are packed apart.
//  * Sections. Of the steps of time only those matter at which the live blocks are not a part of the live
//    blocks of another step.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/allowance.h"
#include "packing/blocks.h"

namespace coopjax {

struct PeeledBlocks {
  std::vector<int32_t> hard;           // blocks to search for, by lower
  std::vector<int32_t> easy;           // to be placed after them, in this order, at the first gap
};

// Which of `candidates`, a set of blocks that are alone in their time, need a search to fit into `capacity`.
PeeledBlocks PeelBlocks(const PackingBlocks& blocks, std::span<const int32_t> candidates, int64_t capacity);

// Groups of blocks that are alone in their time, each by lower.
std::vector<std::vector<int32_t>> TimeComponents(const PackingBlocks& blocks, std::span<const int32_t> members);

// One component. Indices below count its members, the blocks that may move; blocks with a fixed offset are obstacles.
struct PackingCore {
  using Range = std::pair<int64_t, int64_t>;
  struct Conflict {
    int32_t other;
    int64_t height;                    // how far above this block's offset the other one begins at least, if above
    int64_t other_height;              // the same with the roles changed
  };
  struct InSection {
    int32_t index;                     // the section by a block's list, the block by a section's
    int64_t size;
  };

  const PackingBlocks* blocks = nullptr;
  std::vector<int32_t> members;        // by lower; blocks
  std::vector<int32_t> conflict_starts;  // [member + 1]
  std::vector<Conflict> conflicts;
  std::vector<int32_t> section_starts;   // [member + 1]
  std::vector<InSection> sections;       // of each member, by time
  std::vector<int32_t> member_starts;    // [section + 1]
  std::vector<InSection> section_members;
  std::vector<std::vector<Range>> obstacles;  // [member]: offsets (begin, end) that are forbidden, sorted; or empty

  int32_t size() const { return static_cast<int32_t>(members.size()); }
  int32_t num_sections() const { return static_cast<int32_t>(member_starts.size()) - 1; }
  const PackingBlock& block(int32_t member) const { return blocks->blocks[members[member]]; }
  std::span<const Conflict> conflicts_of(int32_t member) const {
    return {conflicts.data() + conflict_starts[member], conflicts.data() + conflict_starts[member + 1]};
  }
  std::span<const InSection> sections_of(int32_t member) const {
    return {sections.data() + section_starts[member], sections.data() + section_starts[member + 1]};
  }
  std::span<const InSection> members_of(int32_t section) const {
    return {section_members.data() + member_starts[section], section_members.data() + member_starts[section + 1]};
  }

  // The lowest aligned offset from `offset` on that no obstacle is in the way of.
  int64_t LowestFrom(int32_t member, int64_t offset) const {
    const int64_t alignment = block(member).alignment;
    if (alignment > 1) offset = AlignUp(offset, alignment);
    if (obstacles.empty()) return offset;
    for (const auto& [begin, end] : obstacles[member]) {
      if (begin < offset && offset < end) offset = AlignUp(end, alignment);
    }
    return offset;
  }
};

// The core of `members`, by lower. O(members log members + conflicts + entries of sections).
PackingCore MakePackingCore(const PackingBlocks& blocks, std::span<const int32_t> members);

// How many pairs of `members` overlap in time, without listing them. O(members log members).
int64_t CountConflicts(const PackingBlocks& blocks, std::span<const int32_t> members);

// Effort of a search, in elementary steps (a conflicting block looked at), and its limits.
class SearchEffort {
 public:
  explicit SearchEffort(int64_t steps) : limit_(steps) {}

  // Counts `steps`; false once the limit is reached.
  bool Spend(int64_t steps) {
    spent_ += steps;
    CountSteps(steps);
    if (thread_work.fuse.IsBlown()) limit_ = 0;
    return spent_ < limit_;
  }
  bool is_over() const { return spent_ >= limit_; }
  int64_t spent() const { return spent_; }

  // Lowers the limit to `steps` more, or restores one that was read with limit().
  void LimitTo(int64_t steps);
  int64_t limit() const { return limit_; }
  void RestoreLimit(int64_t limit) { limit_ = limit; }

 private:
  int64_t limit_;
  int64_t spent_ = 0;
};

}  // namespace coopjax
