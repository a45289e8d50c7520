// The memory that XLA's own BufferAssigner gives a scheduled module, set up as XLA:CPU sets it up: what our model of it
// (buffers/heap.h) has to agree with, to the byte.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "xla/hlo/ir/hlo_module.h"

namespace coopjax {

struct BufferSizes {
  int64_t temp = 0;  // CompiledMemoryStats' names: memory_analysis() in JAX
  int64_t argument = 0;
  int64_t output = 0;
  int64_t alias = 0;
};

// Removes the module's optimization barriers, as XLA:CPU does between the scheduler and buffer assignment.
absl::StatusOr<BufferSizes> AssignCpuBuffers(xla::HloModule* module);

}  // namespace coopjax
