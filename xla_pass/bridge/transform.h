// Carries a Schedule into a computation of a scheduled HLO module: the entry, or one that a loop, a
// conditional or a call runs.
//
// Ops are instructions that do work; everything else in the computation is glue
// (parameter, constant, bitcast, tuple, get-tuple-element, ...), which no schedule mentions. The
// rewrite follows the semantics of program/step_program.h:
//
//  * The first occurrence of an op is the original instruction. Each later one is a clone: a new id,
//    the name with a suffix ".coop_remat<n>", every other field as it came. A computation has one
//    caller, so a clone brings clones of the computations it calls, and of those they call.
//  * An operand refers to the most recent production. Where that is reached through glue over a
//    clone, the glue is cloned too, once for each combination of productions.
//  * Glue runs right before its first use, parameters and constants at the start. Glue that nobody
//    uses runs as soon as its operands have, so that it prolongs no live range. So does what XLA
//    removes with the barriers (hlo::Graph::is_dropped), once: it is neither an op nor cloned.
//  * The root refers to the last productions.
//  * Originals keep their control predecessors. Clones have none: a clone runs after its original in
//    a total order, so whatever had to precede the one precedes the other.
//
// Where everything stands is decided first (bridge/placement.h), then the bytes are written.
//
// The rewrite checks that the schedule can be carried out, not that it is safe: see verify/verify.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hlo/module.h"
#include "program/step_program.h"

namespace coopjax {

struct TransformResult {
  std::string bytes;        // the new module; empty on error
  std::string error;        // one sentence; empty when all went well
  int32_t num_clones = 0;   // of ops; cloned glue is not counted
};

// `op_instruction_ids[op]` is the id of the op's instruction in the computation, an index into
// HloModule::computations.
TransformResult ApplySchedule(const hlo::Module& module, const std::vector<int64_t>& op_instruction_ids,
                              const Schedule& schedule, int32_t computation = hlo::kEntryComputation);

// The same for several computations at once, each named once. What an op's clone brings along it has as the module
// came.
struct ComputationSchedule {
  int32_t computation = hlo::kEntryComputation;
  std::vector<int64_t> op_instruction_ids;
  Schedule schedule;
};
TransformResult ApplySchedules(const hlo::Module& module, std::span<const ComputationSchedule> schedules);

// The computation's instructions, as indices into HloModule::instructions, in the order that ApplySchedule gives them,
// for a schedule without repeats; empty where it can't be carried out. No bytes are written (bridge/placement.h).
std::vector<int32_t> SequenceOf(const hlo::Module& module, const std::vector<int64_t>& op_instruction_ids,
                                const Schedule& order, int32_t computation = hlo::kEntryComputation);

}  // namespace coopjax
