#include "recompute_cost.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "dependences.h"

namespace coopjax {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();

}  // namespace

RecomputeCost::RecomputeCost(const StepProgram& program, CostRule rule)
    : program_(program),
      rule_(rule),
      may_run_twice_(program.num_ops()),
      is_resident_(program.num_values(), 0),
      is_lost_(program.num_values(), 0),
      parent_(program.num_values()),
      component_s_(program.num_values(), 0),
      visited_(program.num_ops(), 0) {
  std::iota(parent_.begin(), parent_.end(), 0);
  for (OpId op = 0; op < program.num_ops(); ++op) may_run_twice_[op] = MayRunTwice(program, op);
  for (ValueId v = 0; v < program.num_values(); ++v) is_resident_[v] = program.value_producer[v] == kNoOp;
}

int32_t RecomputeCost::Root(ValueId v) {
  while (parent_[v] != v) v = parent_[v] = parent_[parent_[v]];
  return v;
}

void RecomputeCost::SetResident(ValueId v) {
  if (is_resident_[v]) return;
  is_resident_[v] = 1;
  const int32_t root = Root(v);
  component_s_[root] = std::max(0.0, component_s_[root] - program_.op_cost_s[program_.value_producer[v]]);
}

void RecomputeCost::SetEvicted(ValueId v) {
  if (!is_resident_[v]) return;
  is_resident_[v] = 0;
  const OpId producer = program_.value_producer[v];
  if (producer == kNoOp) return;
  // A node left by an earlier remake may still be a root of others, so it joins instead of starting anew.
  const int32_t root = Root(v);
  component_s_[root] += program_.op_cost_s[producer];
  auto join = [&](ValueId u) {
    if (u == v || is_resident_[u] || program_.value_producer[u] == kNoOp) return;
    const int32_t other = Root(u), mine = Root(v);
    if (other == mine) return;
    parent_[other] = mine;
    component_s_[mine] += component_s_[other];
  };
  for (ValueId u : program_.op_inputs[producer]) join(u);
  for (ValueId u : program_.op_outputs[producer]) join(u);
}

void RecomputeCost::SetLost(ValueId v) {
  is_resident_[v] = 0;
  is_lost_[v] = 1;
}

double RecomputeCost::Neighbours(ValueId v) {
  const OpId producer = program_.value_producer[v];
  double seconds = program_.op_cost_s[producer];
  auto add = [&](ValueId u) {
    const OpId maker = program_.value_producer[u];
    if (u == v || is_resident_[u] || maker == kNoOp) return;
    seconds += std::max(component_s_[Root(u)], program_.op_cost_s[maker]);
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
    if (!may_run_twice_[op]) return kImpossible;
    seconds += program_.op_cost_s[op];
    for (ValueId u : program_.op_inputs[op]) {
      if (is_resident_[u]) continue;
      if (is_lost_[u]) return kImpossible;
      stack_.push_back(program_.value_producer[u]);
    }
  }
  return seconds;
}

bool RecomputeCost::IsPossible(ValueId v) {
  return program_.value_producer[v] != kNoOp && Chain(v) < kImpossible;
}

double RecomputeCost::Seconds(ValueId v) {
  if (program_.value_producer[v] == kNoOp) return kImpossible;
  const double chain_s = Chain(v);
  if (chain_s == kImpossible || rule_ == CostRule::kChain) return chain_s;
  return rule_ == CostRule::kOwn ? program_.op_cost_s[program_.value_producer[v]] : Neighbours(v);
}

}  // namespace coopjax
