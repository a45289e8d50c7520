#include "buffers/analysis.h"

#include "hlo/graph_check.h"

namespace coopjax {

std::unique_ptr<const HloAnalysis> AnalyzeHlo(const HloModule& module, std::string* error) {
  auto analysis = std::make_unique<HloAnalysis>(module);
  *error = CheckHloGraph(analysis->graph);
  if (!error->empty()) return nullptr;
  analysis->dataflow.emplace(analysis->graph);
  analysis->alias.emplace(*analysis->dataflow);
  analysis->ranges = ComputeHloLiveRanges(*analysis->alias);
  return analysis;
}

}  // namespace coopjax
