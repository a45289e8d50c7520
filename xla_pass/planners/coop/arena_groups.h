// Where in an arena cheap and expensive values go (Coop's cheap tensor partitioning, with OneFlow's groups).
//
// The arena is divided into equal regions. With an even number of groups every region hosts two: a "left"
// one, whose values grow from its low end, and a "right" one, from its high end; with an odd number one
// each. Groups are expensive or cheap in turns (E C | C E | E C), so neighbours across a border agree and
// windows of cheap values form. A class uses one of its groups until that turns a request down, then the
// next: the outputs of one op stay together. One group: everything grows from the low end.
//
// Differs from OneFlow: both ends of a region count for the rule of the half (there only the one it grows
// from), and three groups work (there they fail a check).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace coopjax {

enum class Side : uint8_t { kLow, kHigh };
enum class CostClass : uint8_t { kExpensive, kCheap };

struct Group {
  int64_t begin;   // of the region
  int64_t end;
  Side side;

  // Where a request lies in the hole [hole_begin, hole_end), which is large enough: as far to the group's
  // side as its region allows. Nothing if less than half of the request would lie in the region.
  std::optional<int64_t> Place(int64_t hole_begin, int64_t hole_end, int64_t bytes) const;
};

class ArenaGroups {
 public:
  // `num_groups` is 1, 2, 3, 4 or 6; region borders are multiples of `alignment`.
  ArenaGroups(int num_groups, int64_t arena_bytes, int64_t alignment);

  // The groups of a class, the one in use first.
  std::span<const Group> of(CostClass cost_class) const { return groups_[static_cast<size_t>(cost_class)]; }
  // From now on the class uses its i-th group.
  void Use(CostClass cost_class, size_t i);

 private:
  std::array<std::vector<Group>, 2> groups_;
};

// True for the numbers of groups that there are.
bool IsNumGroups(int num_groups);

}  // namespace coopjax
