#include "planners/coop/next_need.h"

#include <algorithm>

namespace coopjax {

NextNeed::NextNeed(const StepProgram& program, std::span<const OpId> order, bool counts_recompute)
    : time_s_(order.size()), steps_(program.num_values()) {
  std::vector<std::vector<Step>> reads(program.num_values());
  for (Step t = 0; t < static_cast<Step>(order.size()); ++t) {
    time_s_[t] = total_s_;
    total_s_ += program.op_cost_s[order[t]];
    for (ValueId v : program.op_inputs[order[t]]) reads[v].push_back(t);
  }
  steps_ = reads;
  for (OpId op = 0; counts_recompute && op < program.num_ops(); ++op) {
    for (ValueId v : program.op_inputs[op]) {
      for (ValueId w : program.op_outputs[op]) {
        if (program.value_bytes[w] < program.value_bytes[v]) continue;   // cheaper to keep w itself
        steps_[v].insert(steps_[v].end(), reads[w].begin(), reads[w].end());
      }
    }
  }
  for (auto& steps : steps_) std::sort(steps.begin(), steps.end());
}

Step NextNeed::StepFrom(Step step, ValueId v) const {
  const auto next = std::upper_bound(steps_[v].begin(), steps_[v].end(), step);
  return next == steps_[v].end() ? kNoStep : *next;
}

double NextNeed::SecondsFrom(Step step, ValueId v) const {
  const Step next = StepFrom(step, v);
  return next == kNoStep ? kNever : time_s_[next] - time_s_[step];
}

}  // namespace coopjax
