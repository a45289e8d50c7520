#include "planners/coop/residency.h"

#include "program/dependences.h"

namespace coopjax {

Residency::Residency(const StepProgram& program)
    : program_(program),
      readers_(ValueReaders(program)),
      may_run_twice_(program.num_ops()),
      is_resident_(program.num_values()),
      is_lost_(program.num_values(), 0),
      is_blocked_(program.num_values(), 0),
      reads_left_(program.num_values()),
      num_blocked_(program.num_ops(), 0),
      num_wanted_(program.num_ops(), 0),
      num_wanting_(program.num_values(), 0),
      visited_(program.num_values(), 0) {
  for (OpId op = 0; op < program.num_ops(); ++op) may_run_twice_[op] = MayRunTwice(program, op);
  for (ValueId v = 0; v < program.num_values(); ++v) {
    is_resident_[v] = program.value_producer[v] == kNoOp;
    reads_left_[v] = static_cast<int32_t>(readers_[v].size());
  }
  is_made_ = is_resident_;
}

void Residency::SetResident(ValueId v) {
  if (is_resident_[v]) return;
  const bool was_wanted = IsWanted(v);
  is_resident_[v] = is_made_[v] = 1;
  if (is_blocked_[v]) SetBlocked(v, false);
  if (was_wanted) Unwant(program_.value_producer[v]);
}

void Residency::SetEvicted(ValueId v) {
  if (is_resident_[v]) Leave(v);
}

void Residency::SetLost(ValueId v) {
  is_lost_[v] = 1;
  if (is_resident_[v]) Leave(v);
}

void Residency::Leave(ValueId v) {
  is_resident_[v] = 0;
  if (is_lost_[v] || !CanRemake(v)) SetBlocked(v, true);
  if (IsWanted(v) && program_.value_producer[v] != kNoOp) Want(program_.value_producer[v]);
}

void Residency::CountRead(ValueId v) {
  const bool was_wanted = IsWanted(v);
  --reads_left_[v];
  if (was_wanted && !IsWanted(v) && program_.value_producer[v] != kNoOp) Unwant(program_.value_producer[v]);
}

// What is evicted and made from a blocked value only is blocked with it.
void Residency::SetBlocked(ValueId v, bool is_blocked) {
  std::vector<ValueId> changed = {v};
  while (!changed.empty()) {
    const ValueId u = changed.back();
    changed.pop_back();
    is_blocked_[u] = is_blocked;
    for (OpId reader : readers_[u]) {
      const bool could_run = CanRun(reader);
      num_blocked_[reader] += is_blocked ? 1 : -1;
      if (CanRun(reader) == could_run) continue;
      for (ValueId w : program_.op_outputs[reader]) {
        if (is_made_[w] && !is_resident_[w] && !is_lost_[w] && is_blocked_[w] != is_blocked) changed.push_back(w);
      }
    }
  }
}

// An output of `op` is evicted and will be needed: so will be what it is made from.
void Residency::Want(OpId op) {
  std::vector<OpId> wanted = {op};
  while (!wanted.empty()) {
    const OpId maker = wanted.back();
    wanted.pop_back();
    if (num_wanted_[maker]++ > 0) continue;
    for (ValueId u : program_.op_inputs[maker]) {
      const bool was_wanted = IsWanted(u);
      ++num_wanting_[u];
      if (!was_wanted && IsWanted(u) && program_.value_producer[u] != kNoOp)
        wanted.push_back(program_.value_producer[u]);
    }
  }
}

void Residency::Unwant(OpId op) {
  std::vector<OpId> unwanted = {op};
  while (!unwanted.empty()) {
    const OpId maker = unwanted.back();
    unwanted.pop_back();
    if (--num_wanted_[maker] > 0) continue;
    for (ValueId u : program_.op_inputs[maker]) {
      const bool was_wanted = IsWanted(u);
      if (--num_wanting_[u] == 0 && is_resident_[u]) former_sources_.push_back(u);
      if (was_wanted && !IsWanted(u) && program_.value_producer[u] != kNoOp)
        unwanted.push_back(program_.value_producer[u]);
    }
  }
}

std::vector<ValueId> Residency::NeededFrom(ValueId v) {
  std::vector<ValueId> found = {v}, needed;
  ++query_;
  for (size_t i = 0; i < found.size(); ++i) {
    if (!IsSource(found[i])) continue;
    for (OpId reader : readers_[found[i]]) {
      if (num_wanted_[reader] == 0) continue;
      for (ValueId u : program_.op_outputs[reader]) {
        if (visited_[u] == query_ || !IsWanted(u)) continue;
        visited_[u] = query_;
        found.push_back(u);
        if (reads_left_[u] > 0) needed.push_back(u);
      }
    }
  }
  return needed;
}

}  // namespace coopjax
