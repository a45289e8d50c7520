#include "planners/orders/list_scheduler.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>

#include "base/allowance.h"
#include "program/dependences.h"
#include "program/liveness.h"

namespace coopjax {
namespace {

// Runs ops one by one, in program order or from its end, always the ready op of highest priority.
// "Ahead" is the direction of travel: forwards an op frees inputs and makes outputs, backwards it ends
// outputs and revives inputs.
class ListScheduler {
 public:
  ListScheduler(const StepProgram& program, bool is_backward)
      : program_(program),
        is_backward_(is_backward),
        readers_(ValueReaders(program)),
        position_(program.num_ops()),
        waits_for_(program.num_ops()),
        unread_(program.num_values()),
        version_(program.num_ops(), 0),
        is_ready_(program.num_ops(), 0) {
    const Csr predecessors = OpPredecessors(program);
    const Csr successors = Transpose(predecessors, program.num_ops());
    ahead_ = is_backward ? predecessors : successors;
    const Csr& behind = is_backward ? successors : predecessors;
    for (OpId op = 0; op < program.num_ops(); ++op) waits_for_[op] = static_cast<int32_t>(behind[op].size());
    for (Step t = 0; t < program.num_ops(); ++t) {
      position_[program.schedule[t]] = is_backward ? program.num_ops() - t : t;
    }
    for (ValueId v = 0; v < program.num_values(); ++v) unread_[v] = static_cast<int32_t>(readers_[v].size());
  }

  Schedule Run(bool is_patient, bool looks_ahead) {
    is_patient_ = is_patient;
    looks_ahead_ = looks_ahead;
    Schedule schedule;
    for (OpId op = 0; op < program_.num_ops(); ++op) {
      if (waits_for_[op] == 0) MakeReady(op);
    }
    while (!queue_.empty()) {
      const Entry top = queue_.top();
      queue_.pop();
      if (top.version != version_[top.op] || !is_ready_[top.op]) continue;
      is_ready_[top.op] = 0;
      schedule.push_back(top.op);
      Advance(top.op);
    }
    if (is_backward_) std::reverse(schedule.begin(), schedule.end());
    return schedule;
  }

 private:
  struct Entry {
    int64_t net_bytes;    // freed by running it now, minus made
    int64_t made_bytes;
    int32_t position;
    OpId op;
    int32_t version;
    bool operator<(const Entry& other) const {
      return std::tie(net_bytes, other.made_bytes, other.position) < std::tie(other.net_bytes, made_bytes, position);
    }
  };

  int64_t Bytes(ValueId v) const { return program_.takes_budget(v) ? program_.value_bytes[v] : 0; }

  bool OverwritesTemporary(ValueId w) const {
    const ValueId v = program_.value_in_place_of[w];
    return v != kNoValue && program_.takes_budget(v);
  }

  int64_t NetBytes(OpId op) const {
    int64_t net = 0;
    if (is_backward_) {
      for (ValueId w : program_.op_outputs[op]) net += Bytes(w);
      for (ValueId v : program_.op_inputs[op]) {
        if (unread_[v] == static_cast<int32_t>(readers_[v].size())) net -= Bytes(v);
      }
      return net;
    }
    for (ValueId v : program_.op_inputs[op]) {
      if (unread_[v] == 1) net += Bytes(v);
    }
    for (ValueId w : program_.op_outputs[op]) net -= readers_[w].empty() ? 0 : Bytes(w);
    return net;
  }

  // Of ops of the same net, one that makes more takes more while it runs.
  int64_t MadeBytes(OpId op) const {
    int64_t made = 0;
    for (ValueId w : program_.op_outputs[op]) made += Bytes(w);
    return made;
  }

  // The best running sum of net bytes along the chain op, its sole reader, the reader's sole reader ...
  // as long as nothing else stands in the way.
  int64_t ChainNetBytes(OpId op) const {
    int64_t net = NetBytes(op), best = net;
    OpId last = op;
    for (int depth = 0; depth < kMaxLookAhead; ++depth) {
      OpId next = kNoOp;
      for (OpId candidate : ahead_[last]) {
        if (waits_for_[candidate] != 1) continue;
        if (next == kNoOp || position_[candidate] < position_[next]) next = candidate;
      }
      if (next == kNoOp) break;
      net += NetBytes(next);
      // Forwards, what `last` made for `next` alone is freed there and NetBytes sees it; nothing to add.
      best = std::max(best, net);
      last = next;
    }
    return best;
  }

  void Enqueue(OpId op) {
    CountSteps(looks_ahead_ ? 40 : 15);
    int64_t net = looks_ahead_ ? ChainNetBytes(op) : NetBytes(op);
    // Patient: an op that grows memory waits for its turn in the given order, behind those that do not.
    if (is_patient_ && net < 0) net = -1;
    queue_.push({net, is_patient_ ? 0 : MadeBytes(op), position_[op], op, ++version_[op]});
  }

  void MakeReady(OpId op) {
    is_ready_[op] = 1;
    Enqueue(op);
  }

  void Advance(OpId op) {
    for (ValueId v : program_.op_inputs[op]) {
      const int32_t before = unread_[v]--;
      const bool changes_others = is_backward_ ? before == static_cast<int32_t>(readers_[v].size()) : before == 2;
      if (!changes_others) continue;
      for (OpId reader : readers_[v]) {
        if (is_ready_[reader]) Enqueue(reader);
      }
    }
    for (OpId next : ahead_[op]) {
      if (--waits_for_[next] == 0) MakeReady(next);
    }
  }

  static constexpr int kMaxLookAhead = 4;

  const StepProgram& program_;
  const bool is_backward_;
  const Csr readers_;
  Csr ahead_;
  std::vector<int32_t> position_;
  std::vector<int32_t> waits_for_;   // ops that must run first, in the direction of travel
  std::vector<int32_t> unread_;      // readers that have not run yet
  std::vector<int32_t> version_;
  std::vector<uint8_t> is_ready_;
  std::priority_queue<Entry> queue_;
  bool is_patient_ = false;
  bool looks_ahead_ = false;
};

}  // namespace

Schedule ScheduleByRule(const StepProgram& program, OrderRule rule) {
  if (rule == OrderRule::kGiven) return program.schedule;
  const bool is_backward = rule == OrderRule::kBackward || rule == OrderRule::kLateBackward;
  const bool is_patient = rule == OrderRule::kFreeFirst || rule == OrderRule::kLateBackward;
  return ListScheduler(program, is_backward).Run(is_patient, rule == OrderRule::kLookAhead);
}

Schedule ScheduleForMemory(const StepProgram& program) {
  Schedule best;
  std::tuple<int64_t, double> best_score;
  for (int rule = 0; rule < kNumOrderRules; ++rule) {
    Schedule schedule = ScheduleByRule(program, static_cast<OrderRule>(rule));
    const Liveness liveness = ComputeLiveness(program, schedule);
    const double sum = std::accumulate(liveness.live_bytes.begin(), liveness.live_bytes.end(), 0.0);
    const std::tuple<int64_t, double> score = {liveness.peak_bytes, sum};
    if (rule == 0 || score < best_score) {
      best = std::move(schedule);
      best_score = score;
    }
  }
  return best;
}

}  // namespace coopjax
