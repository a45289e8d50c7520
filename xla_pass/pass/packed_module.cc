#include "pass/packed_module.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <unordered_map>
#include <utility>

#include "bridge/transform.h"
#include "program/dependences.h"

namespace coopjax {
namespace {

constexpr int64_t kMaxWork = 300'000;        // scheduled instructions that the judge looks at
constexpr int64_t kLeastTrials = 50;         // fewer seldom find anything

int32_t MaxTrials(const hlo::Module& module) {
  int64_t num_scheduled = 1;
  for (const hlo::Computation& computation : module.computations) num_scheduled += std::ssize(computation.sequence);
  const int64_t num_trials = kMaxWork / num_scheduled;
  return num_trials < kLeastTrials ? 0 : static_cast<int32_t>(num_trials);
}

OrderHeap HeapAbove(const HeapResult& heap, int64_t target_bytes) {
  OrderHeap result = {heap.temp_bytes, heap.least_temp_bytes};
  for (const HeapBuffer& buffer : heap.buffers) {
    if (buffer.kind != AllocationKind::kTemporary) continue;
    result.over_bytes += std::clamp<int64_t>(buffer.offset + buffer.bytes - target_bytes, 0, buffer.bytes);
    result.height += static_cast<double>(buffer.bytes) * static_cast<double>(buffer.offset);
  }
  return result;
}

// The instructions of a sequence that do work.
std::vector<int32_t> WorkOf(const hlo::Module& module, std::vector<int32_t> sequence) {
  std::erase_if(sequence, [&](int32_t i) { return hlo::IsGlue(module.instructions[i].info.op); });
  return sequence;
}

std::vector<int32_t> WorkOf(const hlo::Module& module, int32_t computation) {
  std::vector<int32_t> sequence;
  for (const int64_t id : module.computations[computation].sequence) {
    sequence.push_back(module.instruction_index.Find(id));
  }
  return WorkOf(module, std::move(sequence));
}

// All uses of a run's results come before the next run of the same op. `op_of_run[k]` is the op that run k is of, and
// what `program` calls op k.
void SeparateRuns(const Schedule& op_of_run, StepProgram* program) {
  const Csr readers = ValueReaders(*program);
  std::vector<OpId> last_run(op_of_run.empty() ? 0 : *std::ranges::max_element(op_of_run) + 1, kNoOp);
  Csr control;
  for (OpId run = 0; run < program->num_ops(); ++run) {
    std::vector<OpId> before(program->op_control[run].begin(), program->op_control[run].end());
    if (const OpId last = std::exchange(last_run[op_of_run[run]], run); last != kNoOp) {
      before.push_back(last);
      for (const ValueId v : program->op_outputs[last]) {
        before.insert(before.end(), readers[v].begin(), readers[v].end());
      }
    }
    std::ranges::sort(before);
    before.erase(std::ranges::unique(before).begin(), before.end());
    control.AddRow(before);
  }
  program->op_control = std::move(control);
}

}  // namespace

HeapResult HeapInOrder(const HloAnalysis& analysis, const std::vector<int64_t>& op_instruction_ids,
                       const Schedule& order, int32_t computation) {
  const hlo::Module& module = analysis.graph.module();
  if (computation == hlo::kEntryComputation) computation = module.entry;
  std::vector<int32_t> sequence;
  for (const int32_t i : SequenceOf(module, op_instruction_ids, order, computation)) {
    if (!analysis.graph.is_dropped(i)) sequence.push_back(i);
  }
  return AssignBuffers(*analysis.alias, ComputeHloLiveRanges(*analysis.alias, computation, sequence));
}

std::vector<int32_t> RunsOfOps(const hlo::Graph& graph, int32_t computation, const Schedule& schedule) {
  const std::vector<int32_t> work = WorkOf(graph.module(), computation);
  if (work.size() != schedule.size()) return {};
  std::vector<int32_t> runs;
  for (int32_t run = 0; run < std::ssize(work); ++run) {
    if (!graph.is_dropped(work[run])) {
      runs.push_back(run);
      continue;
    }
    const auto before = std::span(schedule).first(run);
    if (std::ranges::find(before, schedule[run]) != before.end()) return {};
  }
  return runs;
}

PackedOrder PackOrderOf(const HloAnalysis& analysis, const HloProgram& hlo, const Schedule& start,
                        PackedOrderOptions options, int32_t computation) {
  options.max_trials = std::min(options.max_trials, MaxTrials(analysis.graph.module()));
  const HeapJudge judge = [&](const Schedule& order, int64_t target_bytes) {
    return HeapAbove(HeapInOrder(analysis, hlo.op_instruction_ids, order, computation), target_bytes);
  };
  return SearchPackedOrder(hlo.program, start, judge, options);
}

PackedSchedule PackScheduleOf(const hlo::Module& module, const Roofline& roofline, const Schedule& schedule,
                              const PackedOrderOptions& options, int32_t computation) {
  PackedSchedule result = {schedule, ""};
  if (MaxTrials(module) == 0) return result;
  if (computation == hlo::kEntryComputation) computation = module.entry;
  HloProgram hlo;
  std::string error;
  const auto analysis = AnalyzeHlo(module, &error);
  if (analysis == nullptr || !BuildHloProgram(*analysis, roofline, &hlo, computation).empty()) return result;
  Schedule op_of_run;
  for (const int32_t run : RunsOfOps(analysis->graph, computation, schedule)) {
    op_of_run.push_back(schedule[run]);
  }
  if (hlo.program.num_ops() != std::ssize(op_of_run)) return result;
  SeparateRuns(op_of_run, &hlo.program);
  const Schedule order = PackOrderOf(*analysis, hlo, hlo.program.schedule, options, computation).order;
  if (order == hlo.program.schedule) return result;
  // Runs that are no ops move with what they read.
  const std::vector<int32_t> work = WorkOf(module, computation);
  std::unordered_map<int32_t, OpId> op_of;
  for (size_t run = 0; run < work.size(); ++run) op_of[work[run]] = schedule[run];
  result.schedule.clear();
  for (const int32_t i : WorkOf(module, SequenceOf(module, hlo.op_instruction_ids, order, computation))) {
    result.schedule.push_back(op_of.at(i));
  }
  result.bytes = ApplySchedule(module, hlo.op_instruction_ids, order, computation).bytes;
  return result;
}

}  // namespace coopjax
