// Modules that are made on the way to a plan, and the programs that planners see of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "bridge/hlo_program.h"
#include "buffers/analysis.h"
#include "buffers/heap.h"

namespace coopjax {

// A module with what was derived from it.
struct ReadModule {
  std::unique_ptr<const hlo::Module> module;
  std::unique_ptr<const HloAnalysis> analysis;

  HeapResult Heap() const { return AssignBuffers(*analysis->alias, analysis->ranges); }
};

// Nothing, and a sentence in `error`, when the bytes are no such module.
std::optional<ReadModule> ReadBytes(std::string bytes, std::string* error);

// Reads computations as planners may see them.
struct ProgramReader {
  Roofline roofline;
  std::string kept_scope = "";    // ops with this name in their scope are not recomputed
  bool keeps_order = false;       // every op's first run comes right after that of the op before it

  // As BuildHloProgram.
  std::string Read(const HloAnalysis& analysis, HloProgram* hlo, int32_t computation = hlo::kEntryComputation) const;
};

}  // namespace coopjax
