#include "native/plan_bytes.h"

#include <memory>
#include <utility>

#include "buffers/analysis.h"
#include "hlo/module.h"
#include "pass/recompute_order.h"

namespace coopjax {
namespace {

constexpr Roofline kCpu = {4e11, 2e9, 2e10, 2e-6};  // coopjax.program.cost.CPU

}  // namespace

PlanBytesResult PlanBytes(const std::string& module_bytes, const PlanBytesOptions& options) {
  PlanBytesResult planned;
  const std::unique_ptr<hlo::Module> module = hlo::ParseModule(module_bytes, &planned.error);
  if (module == nullptr) return planned;
  const std::unique_ptr<const HloAnalysis> analysis = AnalyzeHlo(*module, &planned.error);
  if (analysis == nullptr) return planned;
  RecomputeOrderOptions pass_options;
  pass_options.budget_bytes = options.budget_bytes;
  pass_options.roofline = kCpu;
  pass_options.max_steps = options.max_steps;
  pass_options.changes = !options.may_recompute ? RecomputeOrderChanges::kOrder
                         : options.may_reorder  ? RecomputeOrderChanges::kBoth
                                                : RecomputeOrderChanges::kClones;
  RecomputeOrderResult result = RecomputeOrder(*analysis, pass_options);
  planned.bytes = std::move(result.bytes);
  planned.reason = std::move(result.reason);
  planned.error = std::move(result.error);
  planned.temp_bytes = result.after.temp_bytes;
  return planned;
}

}  // namespace coopjax
