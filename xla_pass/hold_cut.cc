#include "hold_cut.h"

#include <algorithm>
#include <limits>

#include "dependences.h"
#include "min_cut.h"

namespace coopjax {

HoldCut::HoldCut(const StepProgram& program, std::span<const OpId> order, Step cut_step)
    : program_(program),
      order_(order.begin(), order.end()),
      cut_step_(cut_step),
      hold_from_(program.num_values(), 0),
      needed_at_(program.num_values(), -1),
      is_early_(program.num_ops(), 0),
      may_hold_(program.num_values(), 1),
      step_of_(program.num_ops(), 0),
      readers_(ValueReaders(program)) {
  std::vector<uint8_t> is_wanted(program.num_values(), 0);
  for (Step t = 0; t < static_cast<Step>(order_.size()); ++t) step_of_[order_[t]] = t;
  for (Step t = 0; t < cut_step; ++t) {
    is_early_[order_[t]] = 1;
    for (ValueId v : program.op_inputs[order_[t]]) hold_from_[v] = t;
    for (ValueId w : program.op_outputs[order_[t]]) {
      hold_from_[w] = t;
      if (program.value_in_place_of[w] != kNoValue) may_hold_[program.value_in_place_of[w]] = 0;
    }
  }
  for (Step t = cut_step; t < static_cast<Step>(order_.size()); ++t) {
    for (ValueId v : program.op_inputs[order_[t]]) {
      const OpId producer = program.value_producer[v];
      if (producer == kNoOp || !is_early_[producer] || needed_at_[v] >= 0) continue;
      needed_at_[v] = t;
      wanted_.push_back(v);
      is_wanted[v] = 1;
    }
  }
  // What is only read early is needed when the first thing made from it is.
  for (Step t = cut_step - 1; t >= 0; --t) {
    Step first = -1;
    for (ValueId w : program.op_outputs[order_[t]]) {
      if (needed_at_[w] >= 0 && (first < 0 || needed_at_[w] < first)) first = needed_at_[w];
    }
    if (first < 0) continue;
    for (ValueId v : program.op_inputs[order_[t]]) {
      if (!is_wanted[v] && (needed_at_[v] < 0 || first < needed_at_[v])) needed_at_[v] = first;
    }
  }
}

std::vector<uint8_t> HoldCut::OpsToRepeat(std::span<const double> price) const {
  std::vector<double> sum(price.size() + 1, 0);
  for (size_t t = 0; t < price.size(); ++t) sum[t + 1] = sum[t] + price[t];
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const int32_t source = 0, sink = 1;
  std::vector<int32_t> value_node(program_.num_values(), -1), op_node(program_.num_ops(), -1);
  std::vector<ValueId> values = wanted_;
  int32_t num_nodes = 2;
  for (ValueId v : wanted_) value_node[v] = num_nodes++;
  for (size_t i = 0; i < values.size(); ++i) {
    const OpId producer = program_.value_producer[values[i]];
    if (op_node[producer] >= 0) continue;
    op_node[producer] = num_nodes++;
    for (ValueId v : program_.op_inputs[producer]) {
      if (value_node[v] >= 0 || program_.value_producer[v] == kNoOp) continue;
      value_node[v] = num_nodes++;
      values.push_back(v);
    }
  }
  MinCut cut(num_nodes);
  for (ValueId v : wanted_) cut.AddEdge(source, value_node[v], kNever);
  std::vector<uint8_t> is_done(program_.num_ops(), 0);
  for (ValueId v : values) {
    const OpId producer = program_.value_producer[v];
    const double hold = !may_hold_[v] ? kNever
                        : !program_.takes_budget(v)
                            ? 0
                            : static_cast<double>(program_.value_bytes[v]) * (sum[needed_at_[v]] - sum[hold_from_[v] + 1]);
    cut.AddEdge(value_node[v], op_node[producer], hold);
    if (is_done[producer]) continue;
    is_done[producer] = 1;
    bool may_repeat = MayRunTwice(program_, producer);
    for (ValueId w : program_.op_outputs[producer]) {
      may_repeat = may_repeat && program_.value_in_place_of[w] == kNoValue;
    }
    for (ValueId u : program_.op_inputs[producer]) {
      if (program_.value_producer[u] == kNoOp) {
        may_repeat = may_repeat && may_hold_[u];
      } else {
        cut.AddEdge(op_node[producer], value_node[u], kNever);
      }
    }
    cut.AddEdge(op_node[producer], sink, may_repeat ? program_.op_cost_s[producer] : kNever);
  }
  cut.Solve(source, sink);
  std::vector<uint8_t> repeats(program_.num_ops(), 0);
  for (OpId op = 0; op < program_.num_ops(); ++op) repeats[op] = op_node[op] >= 0 && cut.IsOnSourceSide(op_node[op]);
  return repeats;
}

Schedule HoldCut::Choose(std::span<const double> price) const {
  std::vector<uint8_t> to_repeat = OpsToRepeat(price);
  Schedule schedule(order_.begin(), order_.begin() + cut_step_);
  std::vector<OpId> chain;
  auto need = [&](OpId op) {
    if (op == kNoOp || !to_repeat[op]) return;
    to_repeat[op] = 0;
    chain.push_back(op);
  };
  for (Step t = cut_step_; t < static_cast<Step>(order_.size()); ++t) {
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
