#include "packing/of_schedule.h"

#include "program/liveness.h"

namespace coopjax {

ScheduleBuffers BuffersOfSchedule(const StepProgram& program, std::span<const OpId> schedule, SharePolicy policy) {
  Liveness liveness = ComputeLiveness(program, schedule);
  ScheduleBuffers result;
  std::vector<int32_t> buffer_of(liveness.ranges.size(), -1);
  std::vector<int32_t> giver(liveness.ranges.size(), -1);    // [range]: the range whose buffer it takes over
  for (size_t k = 0; k < liveness.ranges.size(); ++k) {      // givers come before their heirs
    const LiveRange& range = liveness.ranges[k];
    if (!program.takes_budget(range.value)) continue;
    const int64_t bytes = program.value_bytes[range.value];
    buffer_of[k] = static_cast<int32_t>(result.problem.buffers.size());
    result.values.push_back(range.value);
    result.problem.buffers.push_back(
        {range.begin, range.end, bytes, 1, kAnyOffset, giver[k] < 0 ? -1 : buffer_of[giver[k]]});
    if (range.heir < 0) continue;
    const ValueId heir = liveness.ranges[range.heir].value;
    const bool is_shared = program.value_in_place_of[heir] != range.value;
    int64_t& live = liveness.live_bytes[range.end];
    if (policy == SharePolicy::kWhereNeeded && is_shared && live + bytes <= liveness.peak_bytes) {
      live += bytes;
      ++result.problem.buffers.back().upper;
    } else if (program.takes_budget(heir)) {
      giver[range.heir] = static_cast<int32_t>(k);
    }
  }
  for (Step t = 0; t < static_cast<Step>(schedule.size()); ++t) {
    const int64_t bytes = program.op_workspace_bytes[schedule[t]];
    if (bytes == 0) continue;
    result.values.push_back(kNoValue);
    result.problem.buffers.push_back({t, t + 1, bytes});
  }
  return result;
}

}  // namespace coopjax
