// The switches of the Coop planner and what it counts.
#pragma once

#include <cstdint>
#include <vector>

#include "planners/coop/recompute_cost.h"

namespace coopjax {

enum class EvictionRule : uint8_t {
  kWindow = 0,   // Coop: a contiguous window, cost / staleness
  kDtr = 1,      // DTR: one value at a time, cost / (staleness x size)
  kDte = 2,      // MegTaiChi's DTE: as DTR, with the holes beside the value counted into its size
};

struct CoopOptions {
  EvictionRule eviction = EvictionRule::kWindow;
  CostRule cost = CostRule::kNeighbours;
  int num_groups = 2;  // planners/coop/arena_groups.h; 1: cheap and expensive values are not kept apart
  double cheap_below_s_per_byte = 0;  // cost density of cheap ops; 0: the program's median, by bytes
  std::vector<uint8_t> op_is_expensive = {};  // not empty: the classes, instead of by density
  bool recomputes_in_place = true;  // off: a value that is overwritten or overwrites is never evicted
  bool evicts_eagerly = true;  // off: what was remade only to remake stays until its bytes are needed
  bool knows_future = false;  // ours; off: as the paper
  bool reuses_costs = true;  // off: every search evaluates every candidate
  int64_t alignment_bytes = 64;  // XLA:CPU's; 512 in OneFlow
  int64_t small_piece_bytes = 10 << 10;  // requests up to it go to the small area
  int64_t num_small_pieces = 0;  // the size of that area, in such pieces; 0: none
  double max_overhead = 4;  // recompute over the program's own cost: beyond it, give up

  bool IsSmall(int64_t bytes) const { return num_small_pieces > 0 && bytes <= small_piece_bytes; }
};

struct CoopCounters {
  int64_t evictions = 0;  // values evicted to make room
  int64_t searches = 0;  // failed allocations (kWindow), evicted values (kDtr, kDte)
  int64_t candidates = 0;  // costs evaluated, with the evicted neighbours that the rule counts
  int64_t scanned = 0;  // candidates looked at: by a cost evaluated, or only by a bound from an earlier one
  double search_s = 0;  // wall-clock time of making room
  double fragmentation = 0;  // Coop's: mean over evicting allocations of free bytes / arena, after eviction and
                             // before the hole is taken
  int64_t heap_bytes = 0;  // highest address used, plus one
};

}  // namespace coopjax
