// What a schedule asks of a packer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing.h"
#include "step_program.h"

namespace coopjax {

// What becomes of a pair that may share (step_program.h) where the input dies at the op. Both keep to the bytes of
// ComputeLiveness and to what the op can bear: it may write into the input's buffer, but only the output may, and only
// at the input's own offset.
enum class SharePolicy : uint8_t {
  kAlways = 0,       // the output lies where the input lay, as in XLA
  kWhereNeeded = 1,  // only where the step has no room for both; elsewhere the input keeps its buffer until the op is done
};

struct ScheduleBuffers {
  // One per production of a temporary, by step, then one per step with workspace. What is overwritten in place, and
  // what overwrites it, lie at one offset.
  PackingProblem problem;
  std::vector<ValueId> values;         // of each; kNoValue for workspace
};

// `schedule` must be valid. Steps are the time.
ScheduleBuffers BuffersOfSchedule(const StepProgram& program, std::span<const OpId> schedule, SharePolicy policy);

}  // namespace coopjax
