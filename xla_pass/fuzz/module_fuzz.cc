// The module view and all that reads it, on modules with one and more mutated fields.
//
// What parses is emitted again to the byte, and no analysis fails on it: sizes, costs, live ranges,
// the heap, the order of buffers, the program.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <string_view>

#include "bridge/cost.h"
#include "bridge/hlo_program.h"
#include "buffers/analysis.h"
#include "buffers/buffer_assignment.h"
#include "buffers/heap.h"
#include "fuzz/proto_mutator.h"
#include "hlo/emit.h"
#include "hlo/module.h"
#include "program/liveness.h"
#include "verify/buffer_order.h"

using namespace coopjax;

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  std::mt19937_64 random(seed);
  if (random() % 16 == 0) return LLVMFuzzerMutate(data, size, max_size);
  return fuzz::MutateMessage({reinterpret_cast<const char*>(data), size}, random)
      .copy(reinterpret_cast<char*>(data), max_size);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  BufferAssignment assignment;
  ParseBufferAssignment(BufferAssignmentOfHloProto(bytes), &assignment);
  std::string error;
  const std::unique_ptr<hlo::Module> module = hlo::ParseModule(bytes, &error);
  if (module == nullptr) {
    if (error.empty()) std::abort();
    return 0;
  }
  if (hlo::EmitModule(*module, {}) != bytes) std::abort();
  verify::CheckBufferOrder(*module);
  const std::unique_ptr<const HloAnalysis> analysis = AnalyzeHlo(*module, &error);
  if (analysis == nullptr) return 0;
  const HeapResult heap = AssignBuffers(*analysis->alias, analysis->ranges);
  if (heap.temp_bytes < 0 || heap.heap_bytes < heap.peak_live_bytes) std::abort();
  CostModel(analysis->graph, /*count_iterations=*/true).ComputationCost(module->entry);
  HloProgram program;
  if (!BuildHloProgram(*analysis, Roofline{1e11, 1e10, 1e10, 1e-6}, &program).empty()) return 0;
  if (CheckSchedule(program.program, program.program.schedule).empty()) {
    ComputeLiveness(program.program, program.program.schedule);
  }
  return 0;
}
