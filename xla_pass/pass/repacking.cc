#include "pass/repacking.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "pass/packed_module.h"
#include "program/liveness.h"

namespace coopjax {

std::optional<CarriedOut> Repacked(const CarriedOut& loose, const StepProgram& entry, const ProgramReader& reader,
                                   const PackedOrderOptions& options, std::string* fault) {
  CarriedOut result = loose;
  std::unique_ptr<const HloAnalysis> moved;
  const auto move = [&](Schedule* schedule, int32_t computation) {
    PackedSchedule packed = PackScheduleOf(*result.module, reader.roofline, *schedule, options, computation);
    std::optional<ReadModule> read;
    if (!packed.bytes.empty()) read = ReadBytes(std::move(packed.bytes), fault);
    if (!read) return;
    *schedule = std::move(packed.schedule);
    result.heap = read->Heap();
    result.module = std::move(read->module);
    moved = std::move(read->analysis);
  };
  if (result.inner) {
    std::vector<InnerPlan> inner = *result.inner;
    for (InnerPlan& each : inner) {
      move(&each.plan.schedule, result.module->by_id(each.hlo.op_instruction_ids[0]).computation);
      each.plan.peak_bytes = ComputeLiveness(each.hlo.program, each.plan.schedule).peak_bytes;
    }
    result.inner = std::make_shared<const std::vector<InnerPlan>>(std::move(inner));
  }
  move(&result.plan.schedule, hlo::kEntryComputation);
  HloProgram runs;
  if (!moved || !reader.Read(*moved, &runs).empty()) return std::nullopt;
  const Schedule& schedule = result.plan.schedule;
  const std::vector<int32_t> run_of_op = RunsOfOps(moved->graph, result.module->entry, schedule);
  if (std::ssize(run_of_op) != runs.program.num_ops()) return std::nullopt;
  for (OpId op = 0; op < runs.program.num_ops(); ++op) {
    result.op_workspace_bytes[schedule[run_of_op[op]]] = runs.program.op_workspace_bytes[op];
  }
  StepProgram program = entry;
  program.op_workspace_bytes = result.op_workspace_bytes;
  result.plan.limit_bytes = options.target_bytes;
  result.plan.peak_bytes = ComputeLiveness(program, schedule).peak_bytes;
  return result;
}

}  // namespace coopjax
