#include "planners/peak/hold_cut.h"

#include <algorithm>
#include <limits>

#include "base/allowance.h"
#include "base/min_cut.h"
#include "program/dependences.h"

namespace coopjax {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

HoldCut::HoldCut(const StepProgram& program, std::span<const OpId> order, std::span<const Step> cut_steps)
    : program_(program),
      order_(order.begin(), order.end()),
      readers_(ValueReaders(program)),
      may_repeat_(program.num_ops()),
      step_of_(program.num_ops(), 0) {
  for (OpId op = 0; op < program.num_ops(); ++op) {
    may_repeat_[op] = MayRunTwice(program, op);
    for (ValueId w : program.op_outputs[op]) may_repeat_[op] &= program.value_in_place_of[w] == kNoValue;
  }
  for (Step t = 0; t < static_cast<Step>(order_.size()); ++t) step_of_[order_[t]] = t;
  for (Step step : cut_steps) cuts_.push_back(CutAt(step));
}

HoldCut::Cut HoldCut::CutAt(Step step) const {
  Cut cut = {step,
             {},
             std::vector<Step>(program_.num_values(), 0),
             std::vector<Step>(program_.num_values(), -1),
             std::vector<uint8_t>(program_.num_values(), 1)};
  for (Step t = 0; t < step; ++t) {
    for (ValueId v : program_.op_inputs[order_[t]]) cut.hold_from[v] = t;
    for (ValueId w : program_.op_outputs[order_[t]]) {
      cut.hold_from[w] = t;
      if (program_.value_in_place_of[w] != kNoValue) cut.may_hold[program_.value_in_place_of[w]] = 0;
    }
  }
  std::vector<uint8_t> is_wanted(program_.num_values(), 0);
  for (Step t = step; t < static_cast<Step>(order_.size()); ++t) {
    for (ValueId v : program_.op_inputs[order_[t]]) {
      const OpId producer = program_.value_producer[v];
      if (producer == kNoOp || step_of_[producer] >= step || is_wanted[v]) continue;
      cut.needed_at[v] = t;
      cut.wanted.push_back(v);
      is_wanted[v] = 1;
    }
  }
  // What is only read early is needed when the first thing made from it is.
  for (Step t = step - 1; t >= 0; --t) {
    Step first = -1;
    for (ValueId w : program_.op_outputs[order_[t]]) {
      if (cut.needed_at[w] >= 0 && (first < 0 || cut.needed_at[w] < first)) first = cut.needed_at[w];
    }
    if (first < 0) continue;
    for (ValueId v : program_.op_inputs[order_[t]]) {
      if (!is_wanted[v] && (cut.needed_at[v] < 0 || first < cut.needed_at[v])) cut.needed_at[v] = first;
    }
  }
  return cut;
}

// `price_before[t]` is the sum of the prices of the steps before t.
std::vector<OpId> HoldCut::OpsToRepeat(const Cut& cut, std::span<const double> price_before) const {
  CountSteps(program_.num_values() + program_.num_ops());
  const int32_t source = 0, sink = 1;
  std::vector<int32_t> value_node(program_.num_values(), -1), op_node(program_.num_ops(), -1);
  std::vector<ValueId> values = cut.wanted;
  std::vector<OpId> ops;
  int32_t num_nodes = 2;
  for (ValueId v : values) value_node[v] = num_nodes++;
  for (size_t i = 0; i < values.size(); ++i) {
    const OpId producer = program_.value_producer[values[i]];
    if (op_node[producer] >= 0) continue;
    op_node[producer] = num_nodes++;
    ops.push_back(producer);
    for (ValueId v : program_.op_inputs[producer]) {
      if (value_node[v] >= 0 || program_.value_producer[v] == kNoOp) continue;
      value_node[v] = num_nodes++;
      values.push_back(v);
    }
  }
  MinCut network(num_nodes);
  for (ValueId v : cut.wanted) network.AddEdge(source, value_node[v], kNever);
  for (ValueId v : values) {
    double hold_s = cut.may_hold[v] ? 0 : kNever;
    if (cut.may_hold[v] && program_.takes_budget(v)) {
      const double price = price_before[cut.needed_at[v]] - price_before[cut.hold_from[v] + 1];
      hold_s = static_cast<double>(program_.value_bytes[v]) * price;
    }
    network.AddEdge(value_node[v], op_node[program_.value_producer[v]], hold_s);
  }
  for (OpId op : ops) {
    bool may_repeat = may_repeat_[op];
    for (ValueId v : program_.op_inputs[op]) {
      if (program_.value_producer[v] == kNoOp) {
        may_repeat = may_repeat && cut.may_hold[v];
      } else {
        network.AddEdge(op_node[op], value_node[v], kNever);
      }
    }
    network.AddEdge(op_node[op], sink, may_repeat ? program_.op_cost_s[op] : kNever);
  }
  network.Solve(source, sink);
  std::erase_if(ops, [&](OpId op) { return !network.IsOnSourceSide(op_node[op]); });
  return ops;
}

Schedule HoldCut::Choose(std::span<const double> price) const {
  CountSteps(4 * std::ssize(order_));
  std::vector<double> price_before(price.size() + 1, 0);
  for (size_t t = 0; t < price.size(); ++t) price_before[t + 1] = price_before[t] + price[t];
  std::vector<uint8_t> to_repeat(program_.num_ops(), 0);
  Schedule schedule;
  std::vector<OpId> chain;
  auto need = [&](OpId op) {
    if (op == kNoOp || !to_repeat[op]) return;
    to_repeat[op] = 0;
    chain.push_back(op);
  };
  size_t next_cut = 0;
  for (Step t = 0; t < static_cast<Step>(order_.size()); ++t) {
    for (; next_cut < cuts_.size() && cuts_[next_cut].step <= t; ++next_cut) {
      for (OpId op : OpsToRepeat(cuts_[next_cut], price_before)) to_repeat[op] = 1;
    }
    chain.clear();
    for (ValueId v : program_.op_inputs[order_[t]]) need(program_.value_producer[v]);
    // The last chance to read what this op overwrites.
    for (ValueId w : program_.op_outputs[order_[t]]) {
      if (program_.value_in_place_of[w] == kNoValue) continue;
      for (OpId reader : readers_[program_.value_in_place_of[w]]) need(reader);
    }
    for (size_t i = 0; i < chain.size(); ++i) {
      for (ValueId v : program_.op_inputs[chain[i]]) need(program_.value_producer[v]);
    }
    std::sort(chain.begin(), chain.end(), [this](OpId a, OpId b) { return step_of_[a] < step_of_[b]; });
    schedule.insert(schedule.end(), chain.begin(), chain.end());
    schedule.push_back(order_[t]);
  }
  return schedule;
}

}  // namespace coopjax
