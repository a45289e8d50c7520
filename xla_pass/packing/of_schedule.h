// What a schedule asks of a packer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/packing.h"
#include "program/step_program.h"

namespace coopjax {

// What becomes of a pair that may share (program/step_program.h) where the input dies at the op. Either way the peak is
// that of ComputeLiveness, and the output lies at the input's own offset or clear of the input.
enum class SharePolicy : uint8_t {
  kAlways = 0,       // the output lies where the input lay, as in XLA
  kWhereNeeded = 1,  // only where both don't fit below the peak; elsewhere the input keeps its buffer to the op's end
};

struct ScheduleBuffers {
  // One per production of a temporary, by step, then one per step with workspace. What is overwritten in place, and
  // what overwrites it, lie at one offset.
  PackingProblem problem;
  std::vector<ValueId> values;  // of each; kNoValue for workspace
};

// `schedule` must be valid. Steps are the time.
ScheduleBuffers BuffersOfSchedule(const StepProgram& program, std::span<const OpId> schedule, SharePolicy policy);

}  // namespace coopjax
