// Bytes from an arena that is full: what to evict, by Coop's window, DTR or DTE.
#pragma once

#include <cstdint>
#include <span>

#include "planners/coop/arena_groups.h"
#include "planners/coop/eviction_cost.h"
#include "planners/coop/memory.h"
#include "planners/coop/options.h"

namespace coopjax {

class CoopEviction {
 public:
  // All must outlive this.
  CoopEviction(const CoopOptions& options, CoopMemory* memory, EvictionCost* cost);

  // A piece of `bytes` > 0 for `owner`, after evicting what it takes; kNoPiece when nothing helps. Small
  // requests go to the small area while that has room. Then the groups of the class are tried as they are,
  // then what eviction can do for them, reserved values last, and then the whole arena as one group.
  Arena::PieceId Allocate(int64_t bytes, CostClass cost_class, Arena::Owner owner);

  CoopCounters counters() const;

 private:
  Arena::PieceId AllocateAsIs(int64_t bytes, CostClass cost_class, Arena::Owner owner);
  Arena::PieceId AllocateByEviction(int64_t bytes, CostClass cost_class, Arena::Owner owner);
  bool Evict(int64_t bytes, std::span<const Group> groups, bool spares_reserved);
  bool EvictWindow(int64_t bytes, std::span<const Group> groups, bool spares_reserved);
  bool EvictOneByOne(int64_t bytes, std::span<const Group> groups, bool spares_reserved);
  // The value that DTR or DTE evicts next, or kNoValue.
  ValueId CheapestValue(bool spares_reserved);
  int64_t SizeWithHoles(Arena::PieceId id) const;
  void Release(ValueId v);

  const CoopOptions& options_;
  CoopMemory& memory_;
  EvictionCost& cost_;
  ArenaGroups groups_;
  CoopCounters counters_;
  double sum_free_share_ = 0;
  int64_t num_holes_ = 0;
};

}  // namespace coopjax
