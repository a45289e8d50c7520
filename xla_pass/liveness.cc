#include "liveness.h"

#include <algorithm>

#include "dependences.h"

namespace coopjax {
namespace {

// Which range each value's latest production opened; -1 before the first.
class CurrentRanges {
 public:
  explicit CurrentRanges(const StepProgram& program) : latest_(program.num_values(), -1) {}
  int32_t of(ValueId v) const { return latest_[v]; }
  void Produce(ValueId v) { latest_[v] = next_++; }

 private:
  std::vector<int32_t> latest_;
  int32_t next_ = 0;
};

// Opens a range per production and extends it over its reads. An in-place writer ends it a step early.
std::vector<LiveRange> RangesWithoutSharing(const StepProgram& program, std::span<const OpId> schedule) {
  std::vector<LiveRange> ranges;
  CurrentRanges current(program);
  for (Step t = 0; t < static_cast<Step>(schedule.size()); ++t) {
    const OpId op = schedule[t];
    for (ValueId v : program.op_inputs[op]) {
      if (current.of(v) >= 0) ranges[current.of(v)].end = t + 1;
    }
    for (ValueId w : program.op_outputs[op]) {
      const ValueId overwritten = program.value_in_place_of[w];
      if (overwritten != kNoValue && current.of(overwritten) >= 0) ranges[current.of(overwritten)].end = t;
    }
    for (ValueId w : program.op_outputs[op]) {
      current.Produce(w);
      ranges.push_back({w, t, t + 1});
    }
  }
  return ranges;
}

// Ends the range of each input that dies where an output may take its buffer over.
void ApplySharing(const StepProgram& program, std::span<const OpId> schedule, std::vector<LiveRange>* ranges) {
  const ShareIndex shares(program);
  CurrentRanges current(program);
  std::vector<ValueId> taken;
  for (Step t = 0; t < static_cast<Step>(schedule.size()); ++t) {
    const OpId op = schedule[t];
    taken.clear();
    for (const MayShare& share : shares[op]) {
      const int32_t range = current.of(share.input);
      if (range < 0 || (*ranges)[range].end != t + 1) continue;
      if (std::find(taken.begin(), taken.end(), share.output) != taken.end()) continue;
      (*ranges)[range].end = t;
      taken.push_back(share.output);
    }
    for (ValueId w : program.op_outputs[op]) current.Produce(w);
  }
}

}  // namespace

Liveness ComputeLiveness(const StepProgram& program, std::span<const OpId> schedule) {
  Liveness result;
  result.ranges = RangesWithoutSharing(program, schedule);
  ApplySharing(program, schedule, &result.ranges);
  std::vector<int64_t> change(schedule.size() + 1, 0);
  for (LiveRange& range : result.ranges) {
    if (program.value_kind[range.value] == ValueKind::kOutput) {
      range.end = static_cast<Step>(schedule.size());
    } else {
      change[range.begin] += program.value_bytes[range.value];
      change[range.end] -= program.value_bytes[range.value];
    }
  }
  result.live_bytes.resize(schedule.size());
  int64_t live = 0;
  for (Step t = 0; t < static_cast<Step>(schedule.size()); ++t) {
    live += change[t];
    result.live_bytes[t] = live + program.op_workspace_bytes[schedule[t]];
    if (result.peak_step < 0 || result.live_bytes[t] > result.peak_bytes) {
      result.peak_bytes = result.live_bytes[t];
      result.peak_step = t;
    }
  }
  return result;
}

std::string CheckSchedule(const StepProgram& program, std::span<const OpId> schedule) {
  enum : uint8_t { kNotMade, kReadable, kOverwritten };
  const Csr touches = OpTouches(program);
  std::vector<uint8_t> state(program.num_values(), kNotMade);
  for (ValueId v = 0; v < program.num_values(); ++v) {
    if (program.value_producer[v] == kNoOp) state[v] = kReadable;
  }
  std::vector<uint8_t> has_run(program.num_ops(), 0);
  int32_t num_run = 0;
  for (size_t t = 0; t < schedule.size(); ++t) {
    const OpId op = schedule[t];
    const std::string where = "step " + std::to_string(t) + " (op " + std::to_string(op) + ")";
    if (op < 0 || op >= program.num_ops()) return where + " is not an op of the program";
    if (has_run[op] && !MayRunTwice(program, op)) return where + " repeats an op that may run only once";
    for (ValueId v : touches[op]) {
      if (state[v] == kReadable) continue;
      return where + " reads or overwrites value " + std::to_string(v) +
             (state[v] == kNotMade ? " before it is made" : " after its storage was overwritten");
    }
    for (OpId before : program.op_control[op]) {
      if (!has_run[before]) return where + " runs before its control predecessor op " + std::to_string(before);
    }
    for (ValueId w : program.op_outputs[op]) {
      if (program.value_in_place_of[w] != kNoValue) state[program.value_in_place_of[w]] = kOverwritten;
    }
    for (ValueId w : program.op_outputs[op]) state[w] = kReadable;
    num_run += has_run[op] ? 0 : 1;
    has_run[op] = 1;
  }
  if (num_run == program.num_ops()) return "";
  const auto missing = std::find(has_run.begin(), has_run.end(), 0);
  return "op " + std::to_string(missing - has_run.begin()) + " is missing";
}

RecomputeTotals CountRecompute(const StepProgram& program, std::span<const OpId> schedule) {
  RecomputeTotals totals;
  std::vector<uint8_t> has_run(program.num_ops(), 0);
  for (OpId op : schedule) {
    if (has_run[op]) {
      totals.cost_s += program.op_cost_s[op];
      totals.flops += program.op_flops[op];
      ++totals.num_ops;
    }
    has_run[op] = 1;
  }
  return totals;
}

LowerBound ComputeLowerBound(const StepProgram& program) {
  const ShareIndex shares(program);
  LowerBound bound;
  std::vector<uint8_t> is_absorbed(program.num_values(), 0);
  for (OpId op = 0; op < program.num_ops(); ++op) {
    // An input counts unless its storage may pass to an output: sharing at its best, so a lower bound.
    for (ValueId w : program.op_outputs[op]) {
      if (program.value_in_place_of[w] != kNoValue) is_absorbed[program.value_in_place_of[w]] = 1;
    }
    for (const MayShare& share : shares[op]) is_absorbed[share.input] = 1;
    int64_t bytes = program.op_workspace_bytes[op];
    for (ValueId v : program.op_inputs[op]) {
      if (program.takes_budget(v) && !is_absorbed[v]) bytes += program.value_bytes[v];
      is_absorbed[v] = 0;
    }
    for (ValueId w : program.op_outputs[op]) {
      if (program.takes_budget(w)) bytes += program.value_bytes[w];
    }
    if (bound.op == kNoOp || bytes > bound.bytes) bound = {bytes, op};
  }
  return bound;
}

}  // namespace coopjax
