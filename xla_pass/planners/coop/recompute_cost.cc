#include "planners/coop/recompute_cost.h"

#include <algorithm>
#include <numeric>

#include "base/allowance.h"

namespace coopjax {
namespace {

// A part that so many have counted tells them all, and forgets them: their next cost is asked for early.
constexpr size_t kMostCounting = 4096;

}  // namespace

RecomputeCost::RecomputeCost(const StepProgram& program, const Residency& residency, CostRule rule)
    : program_(program),
      residency_(residency),
      rule_(rule),
      parent_(program.num_values()),
      component_s_(program.num_values(), 0),
      visited_(program.num_ops(), 0),
      counted_by_(rule == CostRule::kNeighbours ? program.num_values() : program.num_ops()),
      may_have_dropped_(program.num_values(), 0) {
  std::iota(parent_.begin(), parent_.end(), 0);
  for (ValueId v = 0; v < program.num_values(); ++v) {
    const OpId producer = program.value_producer[v];
    if (producer != kNoOp) component_s_[v] = program.op_cost_s[producer];
  }
}

int32_t RecomputeCost::Root(ValueId v) {
  int32_t root = v;
  for (; parent_[root] != root; root = parent_[root]) path_.push_back(root);
  for (ValueId u : path_) parent_[u] = root;
  path_.clear();
  return root;
}

void RecomputeCost::OnResident(ValueId v) {
  if (rule_ == CostRule::kOwn) return;
  const OpId producer = program_.value_producer[v];
  if (rule_ == CostRule::kChain) return Drop(producer);
  const int32_t root = Root(v);
  Drop(root);
  component_s_[root] = std::max(0.0, component_s_[root] - program_.op_cost_s[producer]);
  parent_[v] = v;
  component_s_[v] = program_.op_cost_s[producer];
}

void RecomputeCost::OnEvicted(ValueId v) {
  if (rule_ != CostRule::kNeighbours) return;
  auto join = [&](ValueId u) {
    if (u == v || residency_.is_resident(u) || !residency_.is_made(u) || program_.value_producer[u] == kNoOp) return;
    const int32_t other = Root(u), mine = Root(v);
    if (other == mine) return;
    parent_[other] = mine;
    component_s_[mine] += component_s_[other];
    auto& counting = counted_by_[mine];
    if (counting.size() < counted_by_[other].size()) counting.swap(counted_by_[other]);
    for (ValueId w : counted_by_[other]) Count(mine, w);
    counted_by_[other].clear();
  };
  for (ValueId u : program_.op_inputs[program_.value_producer[v]]) join(u);
  for (ValueId u : program_.op_outputs[program_.value_producer[v]]) join(u);
}

void RecomputeCost::Count(int32_t part, ValueId v) {
  auto& counting = counted_by_[part];
  if (!counting.empty() && counting.back() == v) return;
  if (counting.size() == kMostCounting) Drop(part);
  counting.push_back(v);
}

void RecomputeCost::Drop(int32_t part) {
  for (ValueId v : counted_by_[part]) may_have_dropped_[v] = 1;
  counted_by_[part].clear();
}

double RecomputeCost::Neighbours(ValueId v) {
  const OpId producer = program_.value_producer[v];
  double seconds = program_.op_cost_s[producer];
  auto add = [&](ValueId u) {
    const OpId maker = program_.value_producer[u];
    if (u == v || residency_.is_resident(u) || !residency_.is_made(u) || maker == kNoOp) return;
    const int32_t root = Root(u);
    seconds += std::max(component_s_[root], program_.op_cost_s[maker]);
    Count(root, v);
  };
  for (ValueId u : program_.op_inputs[producer]) add(u);
  for (ValueId u : program_.op_outputs[producer]) add(u);
  return seconds;
}

double RecomputeCost::Chain(ValueId v) {
  ++query_;
  double seconds = 0;
  stack_.assign(1, program_.value_producer[v]);
  while (!stack_.empty()) {
    const OpId op = stack_.back();
    stack_.pop_back();
    if (visited_[op] == query_) continue;
    visited_[op] = query_;
    CountSteps(2 + std::ssize(program_.op_inputs[op]));
    seconds += program_.op_cost_s[op];
    Count(op, v);
    for (ValueId u : program_.op_inputs[op]) {
      if (!residency_.is_resident(u)) stack_.push_back(program_.value_producer[u]);
    }
  }
  return seconds;
}

double RecomputeCost::Seconds(ValueId v) {
  may_have_dropped_[v] = 0;
  switch (rule_) {
    case CostRule::kOwn:
      return program_.op_cost_s[program_.value_producer[v]];
    case CostRule::kNeighbours:
      return Neighbours(v);
    case CostRule::kChain:
      return Chain(v);
  }
  return 0;
}

}  // namespace coopjax
