#include "program/dependences.h"

#include <algorithm>
#include <iterator>

namespace coopjax {

bool MayRunTwice(const StepProgram& program, OpId op) {
  if (!program.op_can_recompute[op]) return false;
  for (ValueId w : program.op_outputs[op]) {
    if (program.value_kind[w] == ValueKind::kOutput) return false;
    const ValueId overwritten = program.value_in_place_of[w];
    if (overwritten != kNoValue && !program.takes_budget(overwritten)) return false;
  }
  return true;
}

Csr Transpose(const Csr& lists, int32_t num_rows) {
  Csr result;
  result.offsets.assign(num_rows + 1, 0);
  for (int32_t id : lists.items) ++result.offsets[id + 1];
  for (int32_t row = 0; row < num_rows; ++row) result.offsets[row + 1] += result.offsets[row];
  result.items.resize(lists.items.size());
  std::vector<int32_t> next(result.offsets.begin(), result.offsets.end() - 1);
  for (int32_t row = 0; row < lists.num_rows(); ++row) {
    for (int32_t id : lists[row]) result.items[next[id]++] = row;
  }
  return result;
}

Csr ValueReaders(const StepProgram& program) { return Transpose(program.op_inputs, program.num_values()); }

Csr OpTouches(const StepProgram& program) {
  Csr result;
  std::vector<ValueId> row;
  for (OpId op = 0; op < program.num_ops(); ++op) {
    row.assign(program.op_inputs[op].begin(), program.op_inputs[op].end());
    for (ValueId w : program.op_outputs[op]) {
      const ValueId overwritten = program.value_in_place_of[w];
      if (overwritten != kNoValue && std::find(row.begin(), row.end(), overwritten) == row.end()) {
        row.push_back(overwritten);
      }
    }
    result.AddRow(row);
  }
  return result;
}

Csr OpTouchesOfMade(const StepProgram& program) {
  std::vector<uint8_t> is_made(program.num_values());
  for (ValueId v = 0; v < program.num_values(); ++v) {
    is_made[v] |= program.value_producer[v] != kNoOp || program.takes_budget(v);
    if (program.value_in_place_of[v] != kNoValue) is_made[program.value_in_place_of[v]] = 1;
  }
  const Csr touches = OpTouches(program);
  Csr result;
  std::vector<ValueId> row;
  for (OpId op = 0; op < program.num_ops(); ++op) {
    row.clear();
    std::ranges::copy_if(touches[op], std::back_inserter(row), [&](ValueId v) { return is_made[v]; });
    result.AddRow(row);
  }
  return result;
}

static Csr Predecessors(const StepProgram& program, bool may_repeat) {
  const Csr readers = ValueReaders(program), touches = OpTouches(program);
  Csr result;
  std::vector<OpId> row;
  for (OpId op = 0; op < program.num_ops(); ++op) {
    row.assign(program.op_control[op].begin(), program.op_control[op].end());
    for (ValueId v : touches[op]) {
      if (program.value_producer[v] != kNoOp) row.push_back(program.value_producer[v]);
    }
    for (ValueId w : program.op_outputs[op]) {
      const ValueId overwritten = program.value_in_place_of[w];
      if (overwritten == kNoValue) continue;
      const OpId producer = program.value_producer[overwritten];
      if (may_repeat && producer != kNoOp && MayRunTwice(program, producer)) continue;
      for (OpId reader : readers[overwritten]) {
        if (reader != op) row.push_back(reader);
      }
    }
    std::sort(row.begin(), row.end());
    row.erase(std::unique(row.begin(), row.end()), row.end());
    result.AddRow(row);
  }
  return result;
}

Csr OpPredecessors(const StepProgram& program) { return Predecessors(program, /*may_repeat=*/false); }

Csr FirstRunPredecessors(const StepProgram& program) { return Predecessors(program, /*may_repeat=*/true); }

ShareIndex::ShareIndex(const StepProgram& program) : offsets_(program.num_ops() + 1, 0) {
  auto acts = [&program](const MayShare& share) {
    if (!program.takes_budget(share.input) || program.value_in_place_of[share.output] != kNoValue) return false;
    const auto outputs = program.op_outputs[share.op];
    return std::none_of(outputs.begin(), outputs.end(),
                        [&](ValueId w) { return program.value_in_place_of[w] == share.input; });
  };
  for (const MayShare& share : program.may_share) {
    if (acts(share)) shares_.push_back(share);
  }
  std::stable_sort(shares_.begin(), shares_.end(), [](const MayShare& a, const MayShare& b) { return a.op < b.op; });
  for (const MayShare& share : shares_) ++offsets_[share.op + 1];
  for (OpId op = 0; op < program.num_ops(); ++op) offsets_[op + 1] += offsets_[op];
}

}  // namespace coopjax
