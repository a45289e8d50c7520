// What it costs to bring an evicted value back, while a schedule is being simulated.
//
// A value is resident (its bytes are there) or not: evicted, died, or not made yet. Three estimates:
//  * kOwn: its own op.
//  * kNeighbours: Coop's and DTR's. Its own op, and for every input and sibling of its op that is not
//    resident the larger of that value's op and of its evicted component. Components are kept in a
//    union-find: eviction joins, remaking subtracts the value's own time and leaves (approximate, as
//    in DTR's h_eq; two inputs in one component count twice, as in OneFlow).
//  * kChain: exact. Its own op and those of all ancestors that must come back first, each once.
#pragma once

#include <cstdint>
#include <vector>

#include "step_program.h"

namespace coopjax {

enum class CostRule : uint8_t { kOwn = 0, kNeighbours = 1, kChain = 2 };

class RecomputeCost {
 public:
  // `program` must outlive this. Parameters and constants start resident.
  RecomputeCost(const StepProgram& program, CostRule rule);

  bool is_resident(ValueId v) const { return is_resident_[v]; }
  void SetResident(ValueId v);
  void SetEvicted(ValueId v);
  // A parameter's storage has been overwritten: nothing can be made from it any more.
  void SetLost(ValueId v);

  // Seconds to make `v` again now, by the rule. Infinite when its op, or one that it needs, may not run
  // twice or reads what has been overwritten.
  double Seconds(ValueId v);
  // Whether it can be done at all.
  bool IsPossible(ValueId v);
  // Whether its own op may run again, whatever the state.
  bool MayRemake(ValueId v) const {
    return program_.value_producer[v] != kNoOp && may_run_twice_[program_.value_producer[v]];
  }

 private:
  int32_t Root(ValueId v);
  double Neighbours(ValueId v);
  // Exact cost of the evicted ancestors and `v` itself; infinite if impossible.
  double Chain(ValueId v);

  const StepProgram& program_;
  const CostRule rule_;
  std::vector<uint8_t> may_run_twice_;   // per op
  std::vector<uint8_t> is_resident_;
  std::vector<uint8_t> is_lost_;
  std::vector<int32_t> parent_;          // union-find over values
  std::vector<double> component_s_;      // at roots: seconds of the evicted component
  std::vector<int32_t> visited_;         // per op: the query that saw it last
  int32_t query_ = 0;
  std::vector<OpId> stack_;
};

}  // namespace coopjax
