#include "program/step_program.h"

#include <algorithm>
#include <cmath>

#include "program/dependences.h"
#include "program/liveness.h"

namespace coopjax {
namespace {

std::string OpText(OpId op) { return std::string("op ") + std::to_string(op); }
std::string ValueText(ValueId v) { return std::string("value ") + std::to_string(v); }

// Rows in order, ids in [0, limit).
std::string CheckLists(const Csr& lists, int32_t num_rows, int32_t limit, const char* what, const char* item) {
  if (lists.num_rows() != num_rows || lists.offsets.front() != 0 ||
      lists.offsets.back() != static_cast<int32_t>(lists.items.size()) ||
      !std::is_sorted(lists.offsets.begin(), lists.offsets.end())) {
    return std::string("the offsets of ") + what + " are not those of one row per op";
  }
  for (OpId op = 0; op < num_rows; ++op) {
    for (int32_t id : lists[op]) {
      if (id < 0 || id >= limit) {
        return OpText(op) + ": " + what + " names the unknown " + item + " " + std::to_string(id);
      }
    }
  }
  return "";
}

std::string CheckArrays(const StepProgram& p) {
  const size_t num_ops = p.op_inputs.num_rows(), num_values = p.value_bytes.size();
  if (p.op_cost_s.size() != num_ops || p.op_flops.size() != num_ops || p.op_workspace_bytes.size() != num_ops ||
      p.op_can_recompute.size() != num_ops) {
    return "the arrays of ops differ in length from op_inputs (" + std::to_string(num_ops) + " ops)";
  }
  if (p.value_producer.size() != num_values || p.value_kind.size() != num_values ||
      p.value_in_place_of.size() != num_values) {
    return "the arrays of values differ in length from value_bytes (" + std::to_string(num_values) + " values)";
  }
  for (OpId op = 0; op < p.num_ops(); ++op) {
    for (double number : {p.op_cost_s[op], p.op_flops[op]}) {
      if (!std::isfinite(number) || number < 0) return OpText(op) + " has a negative or non-finite cost";
    }
    if (p.op_workspace_bytes[op] < 0) return OpText(op) + " has a negative workspace size";
  }
  for (ValueId v = 0; v < p.num_values(); ++v) {
    if (p.value_bytes[v] < 0) return ValueText(v) + " has a negative size";
    if (p.value_kind[v] > ValueKind::kOutput) return ValueText(v) + " has an unknown kind";
  }
  std::string fault = CheckLists(p.op_inputs, p.num_ops(), p.num_values(), "op_inputs", "value");
  if (fault.empty()) fault = CheckLists(p.op_outputs, p.num_ops(), p.num_values(), "op_outputs", "value");
  if (fault.empty()) fault = CheckLists(p.op_control, p.num_ops(), p.num_ops(), "op_control", "op");
  return fault;
}

std::string CheckProducers(const StepProgram& p) {
  std::vector<OpId> made_by(p.num_values(), kNoOp), read_by(p.num_values(), kNoOp);
  for (OpId op = 0; op < p.num_ops(); ++op) {
    for (ValueId v : p.op_inputs[op]) {
      if (read_by[v] == op) return OpText(op) + " lists " + ValueText(v) + " twice among its inputs";
      read_by[v] = op;
    }
    for (ValueId v : p.op_outputs[op]) {
      if (made_by[v] != kNoOp) return ValueText(v) + " has two producers";
      made_by[v] = op;
    }
  }
  for (ValueId v = 0; v < p.num_values(); ++v) {
    if (p.value_producer[v] != made_by[v]) return ValueText(v) + ": value_producer disagrees with op_outputs";
    const bool is_given = p.value_kind[v] == ValueKind::kParameter || p.value_kind[v] == ValueKind::kConstant;
    if (is_given != (made_by[v] == kNoOp)) {
      return ValueText(v) + (is_given ? " is a parameter or constant but has a producer" : " has no producer");
    }
  }
  return "";
}

std::string CheckStorage(const StepProgram& p) {
  auto contains = [](std::span<const int32_t> row, int32_t id) {
    return std::find(row.begin(), row.end(), id) != row.end();
  };
  for (ValueId w = 0; w < p.num_values(); ++w) {
    const ValueId v = p.value_in_place_of[w];
    if (v == kNoValue) continue;
    if (v < 0 || v >= p.num_values()) return ValueText(w) + " is in place of an unknown value";
    // What a donated parameter's buffer receives may be made by an op that does not read the parameter.
    const OpId writer = p.value_producer[w];
    if (writer == kNoOp || (p.takes_budget(v) && !contains(p.op_inputs[writer], v))) {
      return ValueText(w) + " is in place of " + ValueText(v) + ", which its producer does not read";
    }
    if (p.value_kind[v] == ValueKind::kConstant) return ValueText(w) + " is in place of a constant";
    for (ValueId other : p.op_outputs[p.value_producer[w]]) {
      if (other != w && p.value_in_place_of[other] == v) return ValueText(v) + " is overwritten twice by one op";
    }
  }
  for (const MayShare& share : p.may_share) {
    if (share.op < 0 || share.op >= p.num_ops() || !contains(p.op_inputs[share.op], share.input) ||
        !contains(p.op_outputs[share.op], share.output)) {
      return "may_share names an op, input and output that do not belong together (" + OpText(share.op) + ", " +
             ValueText(share.input) + ", " + ValueText(share.output) + ")";
    }
  }
  return "";
}

// Kahn's algorithm over data and control edges; names an op on or behind a cycle.
std::string CheckAcyclic(const StepProgram& p) {
  std::vector<std::vector<OpId>> successors(p.num_ops());
  std::vector<int32_t> missing(p.num_ops(), 0);
  const Csr touches = OpTouches(p);
  auto add_edge = [&](OpId from, OpId to) {
    successors[from].push_back(to);
    ++missing[to];
  };
  for (OpId op = 0; op < p.num_ops(); ++op) {
    for (ValueId v : touches[op]) {
      if (p.value_producer[v] != kNoOp) add_edge(p.value_producer[v], op);
    }
    for (OpId before : p.op_control[op]) add_edge(before, op);
  }
  std::vector<OpId> ready;
  for (OpId op = 0; op < p.num_ops(); ++op) {
    if (missing[op] == 0) ready.push_back(op);
  }
  for (size_t i = 0; i < ready.size(); ++i) {
    for (OpId next : successors[ready[i]]) {
      if (--missing[next] == 0) ready.push_back(next);
    }
  }
  for (OpId op = 0; op < p.num_ops(); ++op) {
    if (missing[op] > 0) return "the program has a cycle: " + OpText(op) + " waits for itself";
  }
  return "";
}

}  // namespace

std::string CheckProgram(const StepProgram& program) {
  std::string fault = CheckArrays(program);
  if (fault.empty()) fault = CheckProducers(program);
  if (fault.empty()) fault = CheckStorage(program);
  if (fault.empty()) fault = CheckAcyclic(program);
  if (fault.empty() && static_cast<int32_t>(program.schedule.size()) != program.num_ops()) {
    fault = "the given schedule has " + std::to_string(program.schedule.size()) + " steps for " +
            std::to_string(program.num_ops()) + " ops";
  }
  if (fault.empty()) fault = CheckSchedule(program, program.schedule);
  return fault;
}

}  // namespace coopjax
