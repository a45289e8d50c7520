#include "planners/coop/eviction_cost.h"

#include <algorithm>

namespace coopjax {
namespace {

constexpr double kTickShare = 1e-9;   // of the order's seconds

}  // namespace

EvictionCost::EvictionCost(const StepProgram& program, std::span<const OpId> order, const Residency& residency,
                           CostRule rule, bool knows_future)
    : program_(program),
      residency_(residency),
      recompute_(program, residency, rule),
      next_need_(program, order, /*counts_recompute=*/knows_future),
      knows_future_(knows_future),
      tick_s_(std::max(kTickShare * next_need_.total_s(), std::numeric_limits<double>::min())),
      last_access_s_(program.num_values(), 0),
      recompute_s_(program.num_values(), 0) {}

// Seconds that the recompute cost is divided by.
double EvictionCost::Distance(ValueId v) const {
  return std::max(knows_future_ ? next_need_.SecondsFrom(step_, v) : now_s_ - last_access_s_[v], tick_s_);
}

double EvictionCost::Of(ValueId v) {
  ++num_evaluations_;
  recompute_s_[v] = recompute_.Seconds(v);
  return recompute_s_[v] / Distance(v);
}

double EvictionCost::AtLeast(ValueId v) const {
  const double own_s = program_.op_cost_s[program_.value_producer[v]];
  return (recompute_.MayHaveDropped(v) ? own_s : std::max(own_s, recompute_s_[v])) / Distance(v);
}

Step EvictionCost::NextNeedStep(ValueId v) const {
  return knows_future_ || residency_.reads_left(v) > 0 ? next_need_.StepFrom(step_, v) : NextNeed::kNoStep;
}

}  // namespace coopjax
