#include "buffers/analysis.h"

#include "hlo/graph_check.h"

namespace coopjax {

std::unique_ptr<const HloAnalysis> AnalyzeHlo(const hlo::Module& module, std::string* error) {
  auto analysis = std::make_unique<HloAnalysis>(module);
  *error = hlo::CheckGraph(analysis->graph);
  if (!error->empty()) return nullptr;
  analysis->dataflow.emplace(analysis->graph);
  analysis->alias.emplace(*analysis->dataflow);
  analysis->ranges = ComputeHloLiveRanges(*analysis->alias);
  return analysis;
}

}  // namespace coopjax
