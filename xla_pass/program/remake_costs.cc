#include "program/remake_costs.h"

#include <algorithm>
#include <numeric>

#include "base/allowance.h"
#include "program/dependences.h"

namespace coopjax {
namespace {

class ChainWalker {
 public:
  ChainWalker(const StepProgram& program, std::span<const OpId> order)
      : program_(program),
        made_at_(program.num_values(), -1),
        read_until_(program.num_values(), -1),
        overwritten_at_(program.num_values(), std::numeric_limits<Step>::max()),
        visited_(program.num_ops(), kNoValue) {
    may_run_twice_.reserve(program.num_ops());
    for (OpId op = 0; op < program.num_ops(); ++op) may_run_twice_.push_back(MayRunTwice(program, op));
    for (Step t = 0; t < static_cast<Step>(order.size()); ++t) {
      for (ValueId v : program.op_inputs[order[t]]) read_until_[v] = t;
      for (ValueId w : program.op_outputs[order[t]]) {
        made_at_[w] = t;
        const ValueId v = program.value_in_place_of[w];
        if (v != kNoValue) overwritten_at_[v] = t;
      }
    }
  }

  // Seconds to make `v` again right before its last read.
  double Seconds(ValueId v) {
    const OpId maker = program_.value_producer[v];
    const Step when = std::max(read_until_[v], made_at_[v]);
    double seconds = 0;
    stack_.assign(1, maker);
    visited_[maker] = v;
    for (int32_t num_ops = 0; !stack_.empty(); ++num_ops) {
      const OpId op = stack_.back();
      stack_.pop_back();
      if (!may_run_twice_[op] || num_ops == kLongestChain) return kNeverRemade;
      seconds += program_.op_cost_s[op];
      for (ValueId u : program_.op_inputs[op]) {
        if (IsThere(u, when)) continue;
        const OpId other = program_.value_producer[u];
        if (other == kNoOp) return kNeverRemade;   // a donated parameter that has been overwritten
        if (visited_[other] == v) continue;
        visited_[other] = v;
        stack_.push_back(other);
      }
    }
    return seconds;
  }

 private:
  bool IsThere(ValueId u, Step when) const {
    if (overwritten_at_[u] < when) return false;
    return !program_.takes_budget(u) || read_until_[u] >= when;
  }

  const StepProgram& program_;
  std::vector<uint8_t> may_run_twice_;
  std::vector<Step> made_at_, read_until_, overwritten_at_;
  std::vector<ValueId> visited_;   // per op: the value for which it was last counted
  std::vector<OpId> stack_;
};

double PerByte(const StepProgram& program, const RemakeCosts& costs, ValueId v) {
  return costs.seconds[v] / static_cast<double>(std::max<int64_t>(program.value_bytes[v], 1));
}

}  // namespace

RemakeCosts ComputeRemakeCosts(const StepProgram& program, std::span<const OpId> order) {
  CountSteps(20 * std::ssize(order));
  RemakeCosts costs;
  costs.seconds.assign(program.num_values(), kNeverRemade);
  costs.rank.assign(program.num_values(), -1);
  ChainWalker walker(program, order);
  std::vector<ValueId> ranked;
  for (ValueId v = 0; v < program.num_values(); ++v) {
    if (!program.takes_budget(v) || program.value_producer[v] == kNoOp) continue;
    costs.seconds[v] = walker.Seconds(v);
    if (costs.seconds[v] < kNeverRemade) ranked.push_back(v);
  }
  std::ranges::stable_sort(ranked, {}, [&](ValueId v) { return PerByte(program, costs, v); });
  for (int32_t rank = 0; rank < std::ssize(ranked); ++rank) costs.rank[ranked[rank]] = rank;
  return costs;
}

std::vector<uint8_t> ExpensiveOps(const StepProgram& program, const RemakeCosts& costs) {
  std::vector<ValueId> by_rank(program.num_values(), kNoValue);
  int64_t total_bytes = 0;
  for (ValueId v = 0; v < program.num_values(); ++v) {
    if (program.takes_budget(v)) total_bytes += program.value_bytes[v];
    if (costs.rank[v] >= 0) by_rank[costs.rank[v]] = v;
  }
  std::vector<uint8_t> is_expensive(program.num_ops(), 1);
  for (int64_t cheap_bytes = 0; const ValueId v : by_rank) {
    if (v == kNoValue) break;
    cheap_bytes += program.value_bytes[v];
    if (2 * cheap_bytes > total_bytes) break;
    is_expensive[program.value_producer[v]] = 0;
  }
  return is_expensive;
}

}  // namespace coopjax
