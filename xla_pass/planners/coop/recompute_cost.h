// What it costs to bring an evicted value back, while a schedule is being simulated. Three estimates:
//  * kOwn: its own op.
//  * kNeighbours: Coop's and DTR's. Its own op, and for every evicted input and sibling of its op the
//    larger of that value's op and of its evicted component. Components are kept in a union-find: eviction
//    joins, remaking subtracts the value's own time and makes it a component of its own (approximate, as
//    DTR's h_eq; as in OneFlow, two neighbours in one component count twice, and what had been joined to
//    the value leaves with it). O(fan-in + fan-out), nearly.
//  * kChain: exact. Its own op and those of all ancestors that must come back first, each once.
#pragma once

#include <cstdint>
#include <vector>

#include "planners/coop/residency.h"
#include "program/step_program.h"

namespace coopjax {

enum class CostRule : uint8_t { kOwn = 0, kNeighbours = 1, kChain = 2 };

class RecomputeCost {
 public:
  // Both must outlive this.
  RecomputeCost(const StepProgram& program, const Residency& residency, CostRule rule);

  // Follow every change of residency of a value that has a producer, after it.
  void OnResident(ValueId v);
  void OnEvicted(ValueId v);

  // Seconds to make `v` again now, by the rule, if Residency::CanRemake.
  double Seconds(ValueId v);
  // Whether Seconds(v) may have gone down since it was last asked for. (It may have gone up unnoticed.)
  bool MayHaveDropped(ValueId v) const { return may_have_dropped_[v]; }

 private:
  int32_t Root(ValueId v);
  double Neighbours(ValueId v);
  double Chain(ValueId v);
  void Count(int32_t part, ValueId v);
  void Drop(int32_t part);

  const StepProgram& program_;
  const Residency& residency_;
  const CostRule rule_;
  std::vector<int32_t> parent_;          // union-find over values
  std::vector<double> component_s_;      // at roots: seconds of the evicted component
  std::vector<int32_t> visited_;         // per op: the query that saw it last
  int32_t query_ = 0;
  std::vector<OpId> stack_;
  std::vector<ValueId> path_;
  // Who counted a part (kNeighbours: a component, by its root; kChain: an op), to be told when it gets cheaper.
  std::vector<std::vector<ValueId>> counted_by_;
  std::vector<uint8_t> may_have_dropped_;
};

}  // namespace coopjax
