// What the heap model and the program builder both read off a module, derived once.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "buffers/alias.h"
#include "buffers/live_range.h"
#include "hlo/metadata.h"

namespace coopjax {

struct HloAnalysis {
  explicit HloAnalysis(const hlo::Module& module) : metadata(module), graph(module) {}

  const hlo::MetadataReader metadata;
  hlo::Graph graph;
  std::optional<HloDataflow> dataflow;  // of `graph`
  std::optional<HloAlias> alias;        // of `dataflow`
  HloLiveRanges ranges;                 // of `alias`
};

// nullptr, and one sentence in `error`, when the module's graph is not one that these rules understand.
// `module` must outlive the result.
std::unique_ptr<const HloAnalysis> AnalyzeHlo(const hlo::Module& module, std::string* error);

}  // namespace coopjax
