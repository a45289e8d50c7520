#include "program/schedule_flow.h"

#include <algorithm>

namespace coopjax {

ScheduleFlow::ScheduleFlow(const StepProgram& program, const Csr& touches, std::span<const OpId> schedule)
    : schedule_(schedule), overwritten_at_(program.num_values(), kNeverStep) {
  std::vector<int32_t> latest(program.num_values(), -1);
  auto make = [&](ValueId v, Step t) {
    latest[v] = num_productions();
    value_.push_back(v);
    made_at_.push_back(t);
    last_read_.push_back(t);
  };
  for (ValueId v = 0; v < program.num_values(); ++v) {
    if (program.value_producer[v] == kNoOp) make(v, -1);
  }
  first_source_.reserve(schedule.size() + 1);
  first_made_.reserve(schedule.size() + 1);
  for (Step t = 0; t < num_steps(); ++t) {
    first_source_.push_back(static_cast<int32_t>(sources_.size()));
    first_made_.push_back(num_productions());
    for (ValueId v : touches[schedule[t]]) {
      sources_.push_back(latest[v]);
      last_read_[latest[v]] = t;
    }
    for (ValueId w : program.op_outputs[schedule[t]]) {
      const ValueId v = program.value_in_place_of[w];
      if (v == kNoValue) continue;
      overwritten_at_[v] = std::min(overwritten_at_[v], t);
      overwrites_ = true;
    }
    for (ValueId w : program.op_outputs[schedule[t]]) make(w, t);
  }
  first_source_.push_back(static_cast<int32_t>(sources_.size()));
  first_made_.push_back(num_productions());
}

Schedule WithoutUnreadRepeats(const StepProgram& program, const Csr& touches, std::span<const OpId> schedule) {
  std::vector<uint8_t> has_run(program.num_ops(), 0), is_repeat(schedule.size()), is_read(program.num_values(), 0);
  for (size_t t = 0; t < schedule.size(); ++t) {
    is_repeat[t] = has_run[schedule[t]];
    has_run[schedule[t]] = 1;
  }
  Schedule kept;
  kept.reserve(schedule.size());
  for (size_t t = schedule.size(); t-- > 0;) {
    const auto outputs = program.op_outputs[schedule[t]];
    const bool is_wanted = std::any_of(outputs.begin(), outputs.end(), [&](ValueId w) { return is_read[w] != 0; });
    if (is_repeat[t] && !is_wanted) continue;
    for (ValueId w : outputs) is_read[w] = 0;
    for (ValueId v : touches[schedule[t]]) is_read[v] = 1;
    kept.push_back(schedule[t]);
  }
  std::reverse(kept.begin(), kept.end());
  return kept;
}

}  // namespace coopjax
