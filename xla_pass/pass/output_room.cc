#include "pass/output_room.h"

#include <algorithm>
#include <vector>

#include "program/liveness.h"

namespace coopjax {
namespace {

// What is worth counting: a part of the temporaries, and of that room a part that is used.
constexpr int64_t kLeastRoom = 100, kLeastUsed = 8;

// An output with a buffer of its own, or a value before it in that buffer.
struct OwnOutput {
  ValueId value;
  int64_t bytes;   // of the largest temporary that fits
  bool is_last;    // in the buffer
};

std::vector<OwnOutput> OwnOutputs(const StepProgram& program) {
  std::vector<uint8_t> is_own(program.num_values(), 0), is_overwritten(program.num_values(), 0);
  for (OpId op : program.schedule) {   // what is overwritten is made before
    for (ValueId w : program.op_outputs[op]) {
      const ValueId before = program.value_in_place_of[w];
      is_own[w] = program.value_kind[w] == ValueKind::kOutput && (before == kNoValue || is_own[before]);
      if (before != kNoValue) is_overwritten[before] = 1;
    }
  }
  std::vector<int64_t> sizes;
  for (ValueId v = 0; v < program.num_values(); ++v) {
    if (program.takes_budget(v)) sizes.push_back(program.value_bytes[v]);
  }
  std::ranges::sort(sizes);
  std::vector<OwnOutput> found;
  for (ValueId w = 0; w < program.num_values(); ++w) {
    if (!is_own[w]) continue;
    const auto above = std::ranges::upper_bound(sizes, program.value_bytes[w]);
    found.push_back({w, above == sizes.begin() ? 0 : *(above - 1), !is_overwritten[w]});
  }
  return found;
}

int64_t RoomBytes(std::span<const OwnOutput> outputs) {
  int64_t bytes = 0;
  for (const OwnOutput& output : outputs) bytes += output.is_last ? output.bytes : 0;
  return bytes;
}

}  // namespace

CountedOutputs CountOutputs(const HloProgram& hlo) {
  CountedOutputs counted = {.hlo = hlo};
  StepProgram& program = counted.hlo.program;
  const std::vector<OwnOutput> outputs = OwnOutputs(hlo.program);
  counted.bytes = RoomBytes(outputs);
  std::vector<ValueId> last;
  for (const OwnOutput& output : outputs) {
    program.value_kind[output.value] = ValueKind::kTemporary;
    program.value_bytes[output.value] = output.bytes;
    program.op_can_recompute[program.value_producer[output.value]] = 0;
    if (output.is_last) last.push_back(output.value);
  }
  // Nothing comes after the last op.
  std::vector<uint8_t> is_needed(program.num_ops(), 0);
  for (OpId op = 0; op < program.num_ops(); ++op) {
    for (OpId before : program.op_control[op]) is_needed[before] = 1;
    for (ValueId v : program.op_inputs[op]) {
      if (program.value_producer[v] != kNoOp) is_needed[program.value_producer[v]] = 1;
    }
  }
  std::vector<OpId> ends;
  for (OpId op = 0; op < program.num_ops(); ++op) {
    if (!is_needed[op]) ends.push_back(op);
  }
  const OpId last_op = program.num_ops();
  program.op_inputs.AddRow(last);
  program.op_outputs.AddRow({});
  program.op_control.AddRow(ends);
  program.op_cost_s.push_back(0);
  program.op_flops.push_back(0);
  program.op_workspace_bytes.push_back(0);
  program.op_can_recompute.push_back(0);
  program.schedule.push_back(last_op);
  counted.hlo.op_instruction_ids.push_back(-1);
  counted.hlo.op_names.push_back("outputs");
  counted.hlo.op_kinds.push_back("outputs");
  counted.hlo.op_scopes.emplace_back();
  counted.hlo.op_sources.emplace_back();
  return counted;
}

bool UsesOutputRoom(const HloProgram& hlo, int64_t temp_bytes) {
  const int64_t room_bytes = RoomBytes(OwnOutputs(hlo.program));
  if (room_bytes < temp_bytes / kLeastRoom) return false;
  const int64_t unseen_bytes = ComputeLiveness(hlo.program, hlo.program.schedule).peak_bytes - temp_bytes;
  return unseen_bytes > room_bytes / kLeastUsed;
}

Schedule WithLastOp(const CountedOutputs& counted, std::span<const OpId> schedule) {
  Schedule longer(schedule.begin(), schedule.end());
  if (!longer.empty()) longer.push_back(counted.hlo.program.num_ops() - 1);
  return longer;
}

Schedule WithoutLastOp(const CountedOutputs& counted, Schedule schedule) {
  std::erase(schedule, counted.hlo.program.num_ops() - 1);
  return schedule;
}

}  // namespace coopjax
