#include "planners/coop/arena_groups.h"

#include <algorithm>

namespace coopjax {
namespace {

// The order in which the groups' numbers are tried; group 2r is the left and 2r + 1 the right one of region r.
std::span<const int> Sequence(int num_groups) {
  static constexpr int kSix[] = {3, 1, 0, 5, 4, 2}, kFour[] = {0, 1, 3, 2}, kOthers[] = {0, 1, 2};
  if (num_groups == 6) return kSix;
  if (num_groups == 4) return kFour;
  return std::span<const int>(kOthers).first(static_cast<size_t>(num_groups));
}

bool IsExpensive(int group) { return group / 2 % 2 == group % 2; }

}  // namespace

bool IsNumGroups(int num_groups) { return (num_groups >= 1 && num_groups <= 4) || num_groups == 6; }

std::optional<int64_t> Group::Place(int64_t hole_begin, int64_t hole_end, int64_t bytes) const {
  int64_t at;
  if (side == Side::kLow) {
    const bool reaches_region = begin > hole_begin && begin + bytes <= hole_end;
    at = reaches_region ? begin : hole_begin;
  } else {
    const bool reaches_region = end < hole_end && end - bytes >= hole_begin;
    at = (reaches_region ? end : hole_end) - bytes;
  }
  const int64_t inside = std::min(at + bytes, end) - std::max(at, begin);
  if (2 * inside < bytes) return std::nullopt;
  return at;
}

ArenaGroups::ArenaGroups(int num_groups, int64_t arena_bytes, int64_t alignment) {
  const bool has_sides = num_groups % 2 == 0;
  const int num_regions = has_sides ? num_groups / 2 : num_groups;
  const int64_t region_bytes = arena_bytes / num_regions / alignment * alignment;
  for (int group : Sequence(num_groups)) {
    const int region = has_sides ? group / 2 : group;
    const int64_t end = region + 1 == num_regions ? arena_bytes : (region + 1) * region_bytes;
    const Group made = {region * region_bytes, end, has_sides && group % 2 == 1 ? Side::kHigh : Side::kLow};
    for (CostClass cost_class : {CostClass::kExpensive, CostClass::kCheap}) {
      const bool is_for_it = IsExpensive(group) == (cost_class == CostClass::kExpensive);
      if (is_for_it || num_groups == 1) groups_[static_cast<size_t>(cost_class)].push_back(made);
    }
  }
}

void ArenaGroups::Use(CostClass cost_class, size_t i) {
  auto& groups = groups_[static_cast<size_t>(cost_class)];
  std::rotate(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(i), groups.end());
}

}  // namespace coopjax
