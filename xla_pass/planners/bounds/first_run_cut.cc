#include "planners/bounds/first_run_cut.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/allowance.h"

namespace coopjax {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Marks everything reachable from `op`, itself excluded.
template <typename Side>
void Mark(const Csr& edges, OpId op, Side side, std::vector<Side>* marks) {
  std::vector<OpId> frontier = {op};
  while (!frontier.empty()) {
    const OpId at = frontier.back();
    frontier.pop_back();
    CountSteps(1 + std::ssize(edges[at]) / 2);
    for (OpId next : edges[at]) {
      if ((*marks)[next] != Side::kUnrelated) continue;
      (*marks)[next] = side;
      frontier.push_back(next);
    }
  }
}

// The first runs' order with one edge more.
Csr PredecessorsWith(const StepProgram& program, OpId first, OpId then) {
  const Csr known = FirstRunPredecessors(program);
  if (first == kNoOp) return known;
  Csr before;
  for (OpId op = 0; op < program.num_ops(); ++op) {
    std::vector<OpId> row(known[op].begin(), known[op].end());
    if (op == then) row.push_back(first);
    before.AddRow(row);
  }
  return before;
}

}  // namespace

FirstRunOrder::FirstRunOrder(const StepProgram& program, OpId first, OpId then)
    : before(PredecessorsWith(program, first, then)), after(Transpose(before, program.num_ops())) {}

FirstRunCut::FirstRunCut(const StepProgram& program, const FirstRunOrder& order, const ShareIndex& shares, OpId op)
    : program_(program),
      side_(program.num_ops(), Side::kUnrelated),
      hold_bytes_(program.num_values(), 0),
      value_node_(program.num_values(), -1) {
  CountSteps(program.num_ops() + program.num_values() + std::ssize(program.op_inputs.items));
  FindSides(order, op);
  CountWorkingSet(shares, op);
  FindNeeded();
}

void FirstRunCut::FindSides(const FirstRunOrder& order, OpId op) {
  side_[op] = Side::kSelf;
  Mark(order.before, op, Side::kBefore, &side_);
  Mark(order.after, op, Side::kAfter, &side_);
}

// An input counts in the working set already; holding it costs only the chance to pass its buffer on.
void FirstRunCut::CountWorkingSet(const ShareIndex& shares, OpId op) {
  for (ValueId v = 0; v < program_.num_values(); ++v) {
    if (program_.takes_budget(v)) hold_bytes_[v] = program_.value_bytes[v];
  }
  base_bytes_ = program_.op_workspace_bytes[op];
  for (ValueId v : program_.op_inputs[op]) {
    base_bytes_ += hold_bytes_[v];
    hold_bytes_[v] = 0;
  }
  int64_t by_output = 0, by_input = 0;
  std::vector<ValueId> passable;
  for (const MayShare& share : shares[op]) passable.push_back(share.input);
  std::sort(passable.begin(), passable.end());
  passable.erase(std::unique(passable.begin(), passable.end()), passable.end());
  for (ValueId v : passable) by_input += program_.value_bytes[v];
  for (ValueId w : program_.op_outputs[op]) {
    if (program_.takes_budget(w)) base_bytes_ += program_.value_bytes[w];
    const ValueId overwritten = program_.value_in_place_of[w];
    if (overwritten != kNoValue) {
      if (program_.takes_budget(overwritten)) base_bytes_ -= program_.value_bytes[overwritten];
      hold_bytes_[overwritten] = kForced;
    }
    int64_t largest = 0;
    for (const MayShare& share : shares[op]) {
      if (share.output == w) largest = std::max(largest, program_.value_bytes[share.input]);
    }
    by_output += largest;
  }
  base_bytes_ -= std::min(by_input, by_output);
  if (by_input > by_output) return;
  for (ValueId v : passable) hold_bytes_[v] = program_.value_bytes[v];
}

int32_t FirstRunCut::NodeOf(OpId op) {
  if (op_node_[op] < 0) {
    op_node_[op] = num_nodes_++;
    frontier_.push_back(op);
    const bool is_paid = side_[op] == Side::kBefore;
    const double cost_s = is_paid ? program_.op_cost_s[op] : 0;
    if (is_paid && !MayRunTwice(program_, op)) {
      remakes_.push_back({op_node_[op], kNever});
    } else if (cost_s > 0) {
      remakes_.push_back({op_node_[op], cost_s});
    }
  }
  return op_node_[op];
}

// Takes no room across the op, or is made with it or after it whatever is repeated.
bool FirstRunCut::IsThereAnyway(ValueId v) const {
  const OpId producer = program_.value_producer[v];
  return hold_bytes_[v] == 0 || producer == kNoOp || side_[producer] == Side::kAfter || side_[producer] == Side::kSelf;
}

void FirstRunCut::FindNeeded() {
  for (OpId op = 0; op < program_.num_ops(); ++op) {
    if (side_[op] != Side::kAfter) continue;
    for (ValueId v : program_.op_inputs[op]) {
      if (value_node_[v] == kSource || IsThereAnyway(v)) continue;
      value_node_[v] = kSource;
      needed_.push_back(v);
      held_bytes_ += std::max<int64_t>(hold_bytes_[v], 0);
    }
  }
}

// What is made again at `from` needs `v` after the op: hold it or make it then.
void FirstRunCut::AddHold(int32_t from, ValueId v) {
  if (value_node_[v] == kSource || IsThereAnyway(v)) return;
  if (value_node_[v] < 0) {
    value_node_[v] = num_nodes_++;
    holds_.push_back({value_node_[v], NodeOf(program_.value_producer[v]), hold_bytes_[v]});
  }
  holds_.push_back({from, value_node_[v], kForced});
}

void FirstRunCut::BuildNetwork() {
  has_network_ = true;
  op_node_.assign(program_.num_ops(), -1);
  for (ValueId v : needed_) holds_.push_back({kSource, NodeOf(program_.value_producer[v]), hold_bytes_[v]});
  while (!frontier_.empty()) {
    const OpId op = frontier_.back();
    frontier_.pop_back();
    for (ValueId v : program_.op_inputs[op]) AddHold(op_node_[op], v);
  }
}

FirstRunCut::Line FirstRunCut::Cut(double price, double cost_weight) {
  if (!has_network_) BuildNetwork();
  MinCut network(num_nodes_);
  double largest = 0;
  for (const Hold& hold : holds_) {
    const double capacity = hold.bytes == kForced ? kNever : price * static_cast<double>(hold.bytes);
    if (capacity == 0) continue;
    network.AddEdge(hold.from, hold.to, capacity);
    if (capacity < kNever) largest = std::max(largest, capacity);
  }
  for (const Remake& remake : remakes_) {
    const double capacity = remake.cost_s == kNever ? kNever : remake.cost_s * cost_weight;
    if (capacity == 0) continue;
    network.AddEdge(remake.node, kSink, capacity);
    if (capacity < kNever) largest = std::max(largest, capacity);
  }
  network.SolveAcyclic(kSource, kSink);
  // The flow stops at 1e-12 of the largest capacity an edge, so the cut may be above the least by this much.
  Line line = {0, base_bytes_, 2e-12 * largest * static_cast<double>(holds_.size() + remakes_.size())};
  for (const Remake& remake : remakes_) {
    if (network.IsOnSourceSide(remake.node)) line.cost_s += remake.cost_s;
  }
  for (const Hold& hold : holds_) {
    if (hold.bytes > 0 && network.IsOnSourceSide(hold.from) && !network.IsOnSourceSide(hold.to))
      line.bytes += hold.bytes;
  }
  return line;
}

int64_t FirstRunCut::least_bytes() {
  const Line line = Cut(1, 0);
  return line.bytes - static_cast<int64_t>(line.slack_s);   // bytes, at this price; both sides are whole
}

// The bound is concave in the price: the lines of the cuts on either side of its top meet above it.
FirstRunCut::Best FirstRunCut::OverPrices(int64_t budget_bytes) {
  constexpr int kMostCuts = 16;
  Line cheap = Cut(0, 1);
  Best best = {std::max(cheap.Value(0, budget_bytes), 0.0), 0};
  if (cheap.bytes <= budget_bytes) return best;
  Line small = Cut(1, 0);
  if (small.bytes > budget_bytes) return {kNever, 0};
  for (int i = 0; i < kMostCuts; ++i) {
    const double price = (small.cost_s - cheap.cost_s) / static_cast<double>(cheap.bytes - small.bytes);
    if (!(price > 0)) break;
    const Line line = Cut(price, 1);
    const double value = line.Value(price, budget_bytes), above = cheap.Value(price, budget_bytes);
    if (value > best.cost_s) best = {value, price};
    if (value >= above - 1e-9 * std::abs(above) - line.slack_s) break;
    (line.bytes > budget_bytes ? cheap : small) = line;
  }
  return best;
}

}  // namespace coopjax
