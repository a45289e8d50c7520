// What evicting a value costs now: recompute seconds over staleness (Coop, DTR), or over the distance to
// its next need when the future of the order is known. And a lower bound on it that looks at no neighbours.
//
// Time is a logical clock: it advances by the modelled seconds of every op that runs. A value is touched
// when it is read or made, before the op's seconds pass. Where a touched value has infinite cost in the
// paper (its staleness is 0), it is merely dear here: the clock has a smallest tick.
//
// Bounds: recompute seconds that were evaluated once fall only when one of the value's evicted neighbours
// is remade; those of its own op are always a part of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planners/coop/next_need.h"
#include "planners/coop/recompute_cost.h"
#include "planners/coop/residency.h"
#include "program/step_program.h"

namespace coopjax {

class EvictionCost {
 public:
  // All must outlive this. `order` has no repeats.
  EvictionCost(const StepProgram& program, std::span<const OpId> order, const Residency& residency, CostRule rule,
               bool knows_future);

  RecomputeCost& recompute() { return recompute_; }
  void SetStep(Step step) { step_ = step; }
  Step step() const { return step_; }
  void Touch(ValueId v) { last_access_s_[v] = now_s_; }
  void Advance(double seconds) { now_s_ += seconds; }
  double now_s() const { return now_s_; }
  // Of the order, without recomputes.
  double total_s() const { return next_need_.total_s(); }

  // Of a resident value with Residency::CanRemake.
  double Of(ValueId v);
  // At most Of(v), from what earlier calls found out.
  double AtLeast(ValueId v) const;
  // The first step after the current one that wants `v`: by a read of the order or, when the future is
  // known, to remake what was made from it. NextNeed::kNoStep: none.
  Step NextNeedStep(ValueId v) const;
  int64_t num_evaluations() const { return num_evaluations_; }

 private:
  double Distance(ValueId v) const;

  const StepProgram& program_;
  const Residency& residency_;
  RecomputeCost recompute_;
  const NextNeed next_need_;
  const bool knows_future_;
  const double tick_s_;
  double now_s_ = 0;
  Step step_ = 0;
  std::vector<double> last_access_s_;
  std::vector<double> recompute_s_;   // as evaluated last; 0: never
  int64_t num_evaluations_ = 0;
};

}  // namespace coopjax
