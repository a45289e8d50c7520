#include "program/liveness.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/allowance.h"
#include "program/dependences.h"

namespace coopjax {
namespace {

// Which range each value's latest production opened; -1 before the first.
class CurrentRanges {
 public:
  explicit CurrentRanges(const StepProgram& program) : latest_(program.num_values(), -1) {}
  int32_t of(ValueId v) const { return latest_[v]; }
  int32_t next() const { return next_; }   // of the next production
  void Produce(ValueId v) { latest_[v] = next_++; }

 private:
  std::vector<int32_t> latest_;
  int32_t next_ = 0;
};

// Opens a range per production and extends it over its reads.
std::vector<LiveRange> RangesOfReads(const StepProgram& program, std::span<const OpId> schedule) {
  size_t num_ranges = 0;
  for (OpId op : schedule) num_ranges += program.op_outputs[op].size();
  std::vector<LiveRange> ranges;
  ranges.reserve(num_ranges);
  CurrentRanges current(program);
  for (Step t = 0; t < static_cast<Step>(schedule.size()); ++t) {
    const OpId op = schedule[t];
    for (ValueId v : program.op_inputs[op]) {
      if (current.of(v) >= 0) ranges[current.of(v)].end = t + 1;
    }
    for (ValueId w : program.op_outputs[op]) {
      current.Produce(w);
      ranges.push_back({w, t, t + 1});
    }
  }
  return ranges;
}

// Ends a step early the range of each input that an output overwrites, or that dies where an output may
// take its buffer over.
void PassBuffersOn(const StepProgram& program, std::span<const OpId> schedule, std::vector<LiveRange>* ranges) {
  const ShareIndex shares(program);
  CurrentRanges current(program);
  std::vector<ValueId> taken;
  const auto pass_on = [&](int32_t range, Step t, size_t output) {
    (*ranges)[range].end = t;
    (*ranges)[range].heir = current.next() + static_cast<int32_t>(output);
  };
  for (Step t = 0; t < static_cast<Step>(schedule.size()); ++t) {
    const OpId op = schedule[t];
    taken.clear();
    const auto outputs = program.op_outputs[op];
    for (size_t k = 0; k < outputs.size(); ++k) {
      const ValueId overwritten = program.value_in_place_of[outputs[k]];
      if (overwritten == kNoValue || current.of(overwritten) < 0) continue;
      pass_on(current.of(overwritten), t, k);
    }
    for (const MayShare& share : shares[op]) {
      const int32_t range = current.of(share.input);
      if (range < 0 || (*ranges)[range].end != t + 1) continue;
      if (std::find(taken.begin(), taken.end(), share.output) != taken.end()) continue;
      pass_on(range, t, std::find(outputs.begin(), outputs.end(), share.output) - outputs.begin());
      taken.push_back(share.output);
    }
    for (ValueId w : program.op_outputs[op]) current.Produce(w);
  }
}

// How many bytes of its inputs an op may pass on to its outputs, at best: what it overwrites, and one
// shared input per output. `is_held` values are needed afterwards and pass nothing on.
int64_t MostBytesPassedOn(const StepProgram& program, const ShareIndex& shares, OpId op,
                          const std::vector<uint8_t>& is_held) {
  int64_t in_place = 0, by_output = 0, by_input = 0;
  for (ValueId w : program.op_outputs[op]) {
    const ValueId v = program.value_in_place_of[w];
    if (v != kNoValue && program.takes_budget(v)) in_place += program.value_bytes[v];
    int64_t largest = 0;
    for (const MayShare& share : shares[op]) {
      if (share.output == w && !is_held[share.input]) largest = std::max(largest, program.value_bytes[share.input]);
    }
    by_output += largest;
  }
  std::vector<ValueId> inputs;
  for (const MayShare& share : shares[op]) {
    if (!is_held[share.input]) inputs.push_back(share.input);
  }
  std::sort(inputs.begin(), inputs.end());
  inputs.erase(std::unique(inputs.begin(), inputs.end()), inputs.end());
  for (ValueId v : inputs) by_input += program.value_bytes[v];
  return in_place + std::min(by_output, by_input);
}

// What came before a step at which a set of values is live: one of them was made last, by an op that ran while the
// others were live already; and before that its inputs and the others were. Whichever it was, bytes were needed.
class LastMade {
 public:
  LastMade(const StepProgram& program, const ShareIndex& shares)
      : program_(program), shares_(shares), is_held_(program.num_values(), 0) {}

  // The least peak, over all choices of what was made last, of a few steps before `op` runs; `floor` if it is no more.
  int64_t LeastPeakBefore(OpId op, int64_t floor) {
    num_visits_ = 0;
    held_.clear();
    for (ValueId v : program_.op_inputs[op]) Hold(v);
    const int64_t peak = Search(0, floor);
    CountSteps(10 * num_visits_ * (1 + std::ssize(program_.op_inputs[op])));
    while (!held_.empty()) Release();
    return peak;
  }

 private:
  static constexpr int kMostSteps = 8, kMostVisits = 200;

  void Hold(ValueId v) {
    if (!program_.takes_budget(v) || is_held_[v]) return;
    is_held_[v] = 1;
    held_.push_back(v);
  }
  void Release() {
    is_held_[held_.back()] = 0;
    held_.pop_back();
  }

  // Bytes live while `op` makes the last of the held values.
  int64_t BytesAt(OpId op) const {
    int64_t bytes = program_.op_workspace_bytes[op] - MostBytesPassedOn(program_, shares_, op, is_held_);
    for (ValueId v : held_) bytes += program_.value_bytes[v];
    for (ValueId w : program_.op_outputs[op]) {
      if (program_.takes_budget(w) && !is_held_[w]) bytes += program_.value_bytes[w];
    }
    for (ValueId v : program_.op_inputs[op]) {
      if (program_.takes_budget(v) && !is_held_[v]) bytes += program_.value_bytes[v];
    }
    return bytes;
  }

  int64_t Search(int depth, int64_t floor) {
    if (depth == kMostSteps || held_.empty() || ++num_visits_ > kMostVisits) return floor;
    const std::vector<ValueId> held = held_;
    std::vector<OpId> makers;
    for (ValueId v : held) makers.push_back(program_.value_producer[v]);
    std::sort(makers.begin(), makers.end());
    makers.erase(std::unique(makers.begin(), makers.end()), makers.end());
    int64_t least = std::numeric_limits<int64_t>::max();
    for (OpId maker : makers) {
      int64_t peak = BytesAt(maker);
      if (peak < least) {
        while (!held_.empty()) Release();
        for (ValueId v : held) {
          if (program_.value_producer[v] != maker) Hold(v);
        }
        for (ValueId v : program_.op_inputs[maker]) Hold(v);
        peak = std::max(peak, Search(depth + 1, floor));
        while (!held_.empty()) Release();
        for (ValueId v : held) Hold(v);
      }
      least = std::min(least, peak);
      if (least <= floor) return floor;
    }
    return least;
  }

  const StepProgram& program_;
  const ShareIndex& shares_;
  std::vector<uint8_t> is_held_;     // per value
  std::vector<ValueId> held_;
  int num_visits_ = 0;
};

// Marks with `stamp` what is reachable from the ops in `*frontier`, themselves excluded unless reached.
void MarkReachable(const Csr& edges, std::vector<OpId>* frontier, int32_t stamp, std::vector<int32_t>* mark) {
  while (!frontier->empty()) {
    const OpId op = frontier->back();
    frontier->pop_back();
    CountSteps(1 + std::ssize(edges[op]) / 2);
    for (OpId next : edges[op]) {
      if ((*mark)[next] == stamp) continue;
      (*mark)[next] = stamp;
      frontier->push_back(next);
    }
  }
}

// Per op, the bytes of values that can be made only once, were made by something the op depends on, and
// are read by something that depends on it: live at the op's first run, though it does not read them.
std::vector<int64_t> BytesHeldAcross(const StepProgram& program) {
  constexpr int64_t kMostValues = 512;   // each costs a search of the graph
  constexpr int64_t kMostWork = 100'000'000;   // edges looked at
  std::vector<ValueId> values;
  for (ValueId v = 0; v < program.num_values(); ++v) {
    if (program.takes_budget(v) && program.value_bytes[v] > 0 && !MayRunTwice(program, program.value_producer[v])) {
      values.push_back(v);
    }
  }
  std::stable_sort(values.begin(), values.end(),
                   [&](ValueId a, ValueId b) { return program.value_bytes[a] > program.value_bytes[b]; });
  const int64_t work =
      1 + program.num_ops() + std::ssize(program.op_inputs.items) + std::ssize(program.op_control.items);
  values.resize(std::min<size_t>(values.size(), std::clamp<int64_t>(kMostWork / work, 1, kMostValues)));
  std::vector<int64_t> held(program.num_ops(), 0);
  if (values.empty()) return held;
  Csr before;
  std::vector<OpId> row;
  for (OpId op = 0; op < program.num_ops(); ++op) {
    row.assign(program.op_control[op].begin(), program.op_control[op].end());
    for (ValueId v : program.op_inputs[op]) {
      if (program.value_producer[v] != kNoOp) row.push_back(program.value_producer[v]);
    }
    before.AddRow(row);
  }
  const Csr after = Transpose(before, program.num_ops());
  const Csr readers = ValueReaders(program);
  std::vector<int32_t> is_after(program.num_ops(), -1), is_before(program.num_ops(), -1);
  for (ValueId v : values) {
    std::vector<OpId> frontier = {program.value_producer[v]};
    MarkReachable(after, &frontier, v, &is_after);
    frontier.assign(readers[v].begin(), readers[v].end());
    MarkReachable(before, &frontier, v, &is_before);
    for (OpId reader : readers[v]) is_before[reader] = -1;   // counts `v` among its inputs
    CountSteps(program.num_ops());
    for (OpId op = 0; op < program.num_ops(); ++op) {
      if (is_after[op] == v && is_before[op] == v) held[op] += program.value_bytes[v];
    }
  }
  return held;
}

}  // namespace

Liveness ComputeLiveness(const StepProgram& program, std::span<const OpId> schedule) {
  Liveness result;
  result.ranges = RangesOfReads(program, schedule);
  PassBuffersOn(program, schedule, &result.ranges);
  CountSteps(2 * std::ssize(schedule) + 4 * std::ssize(result.ranges));
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
  CountSteps(4 * std::ssize(schedule) + std::ssize(touches.items));
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
  CountSteps(std::ssize(schedule) / 4);
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
  constexpr int64_t kMostSteps = 40'000'000;   // looking back from the ops of most bytes
  const ShareIndex shares(program);
  const std::vector<int64_t> held = BytesHeldAcross(program);
  const std::vector<uint8_t> is_held(program.num_values(), 0);
  LowerBound bound;
  std::vector<std::pair<int64_t, OpId>> by_bytes;
  for (OpId op = 0; op < program.num_ops(); ++op) {
    int64_t bytes = program.op_workspace_bytes[op] + held[op] - MostBytesPassedOn(program, shares, op, is_held);
    for (ValueId v : program.op_inputs[op]) bytes += program.takes_budget(v) ? program.value_bytes[v] : 0;
    for (ValueId w : program.op_outputs[op]) bytes += program.takes_budget(w) ? program.value_bytes[w] : 0;
    if (bound.op == kNoOp || bytes > bound.bytes) bound = {bytes, op};
    by_bytes.emplace_back(-bytes, op);
  }
  std::ranges::sort(by_bytes);
  LastMade last_made(program, shares);
  const Allowance allowance(kMostSteps);
  for (const auto& [_, op] : by_bytes) {
    if (allowance.Spent() > kMostSteps) break;
    const int64_t bytes = last_made.LeastPeakBefore(op, bound.bytes);
    if (bytes > bound.bytes) bound = {bytes, op};
  }
  return bound;
}

}  // namespace coopjax
