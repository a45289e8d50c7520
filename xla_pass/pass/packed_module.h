// A scheduled module whose entry, or what runs inside its loops, branches and calls, is in an order that XLA packs well
// (planners/orders/packed_order.h). `computation` is an index into HloModule::computations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bridge/hlo_program.h"
#include "buffers/analysis.h"
#include "buffers/heap.h"
#include "planners/orders/packed_order.h"

namespace coopjax {

// The module's heap, were the computation in this order of the same instructions.
HeapResult HeapInOrder(const HloAnalysis& analysis, const std::vector<int64_t>& op_instruction_ids,
                       const Schedule& order, int32_t computation = hlo::kEntryComputation);

// Which runs of `schedule` the ops of a computation are that carries it out: all but those that XLA removes, because a
// barrier alone keeps them: first runs, whose readers all come after another one. Empty where others are removed, or
// where the computation has work that is not of the schedule.
std::vector<int32_t> RunsOfOps(const hlo::Graph& graph, int32_t computation, const Schedule& schedule);

// As SearchPackedOrder, with fewer trials than `options` says in a module of many instructions, and none in a large
// one.
PackedOrder PackOrderOf(const HloAnalysis& analysis, const HloProgram& hlo, const Schedule& start,
                        PackedOrderOptions options, int32_t computation = hlo::kEntryComputation);

// The same for a module whose computation carries `schedule` out of another one: its clones are ops like others. Every
// read stays with the production that it has, so that what comes out is a schedule, too.
struct PackedSchedule {
  Schedule schedule;  // of the ops that `schedule` names; as it came where nothing packs better
  std::string bytes;  // the module; empty where nothing does
};
PackedSchedule PackScheduleOf(const hlo::Module& module, const Roofline& roofline, const Schedule& schedule,
                              const PackedOrderOptions& options, int32_t computation = hlo::kEntryComputation);

}  // namespace coopjax
