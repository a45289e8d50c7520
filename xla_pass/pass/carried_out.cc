#include "pass/carried_out.h"

#include <optional>
#include <utility>

#include "bridge/read_module.h"
#include "bridge/transform.h"

namespace coopjax {

bool IsPacked(const HeapResult& heap) {
  return static_cast<double>(heap.temp_bytes) <= kNearlyPacked * static_cast<double>(heap.least_temp_bytes);
}

bool CarryOut(const HloAnalysis& analysis, const HloProgram& hlo, CarriedOut* carried_out, std::string* fault) {
  TransformResult changed = ApplySchedule(analysis.graph.module(), hlo.op_instruction_ids, carried_out->plan.schedule);
  *fault = changed.error;
  if (!fault->empty()) return false;
  std::optional<ReadModule> read = ReadBytes(std::move(changed.bytes), fault);
  if (!read) return false;
  carried_out->op_workspace_bytes = hlo.program.op_workspace_bytes;
  carried_out->heap = read->Heap();
  carried_out->module = std::move(read->module);
  return true;
}

}  // namespace coopjax
