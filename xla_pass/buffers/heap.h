// What XLA's buffer assignment will do with a scheduled module, without XLA.
//
// Three steps, after xla/service/buffer_assignment.cc and heap_simulator/heap_simulator.cc:
//  1. Alias buffers by size: constants, entry parameters and tuples get allocations of their own; others
//     may go into an allocation that is free at the time (outputs and donated parameters serve as
//     scratch); live-out ones get an allocation; the rest is temporary.
//  2. A simulated heap over the flattened schedule: a value may take over the buffer of an operand that
//     dies at that instruction (HloAlias::CanShareOperandBuffer).
//  3. Best fit by decreasing size, and again by decreasing duration; the smaller heap wins.
// What differs between backends stands in buffers/platform.h. Values outside the device's main memory take no part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "buffers/alias.h"
#include "buffers/live_range.h"

namespace coopjax {

enum class AllocationKind : uint8_t { kTemporary = 0, kParameter = 1, kConstant = 2, kOutput = 3, kTuple = 4 };

// One value (a "logical buffer" in XLA's words) and where it lies.
struct HeapBuffer {
  int32_t value = 0;                 // HloDataflow's id
  int64_t instruction_id = 0;
  std::vector<int64_t> shape_index;
  int64_t bytes = 0;
  int64_t offset = 0;                // in its allocation
  int32_t allocation = -1;
  AllocationKind kind = AllocationKind::kTemporary;
  int32_t start = 0;                 // [start, end) in flattened time
  int32_t end = 0;
};

struct HeapResult {
  int64_t temp_bytes = 0;            // memory_analysis().temp_size_in_bytes
  int64_t argument_bytes = 0;
  int64_t output_bytes = 0;
  int64_t alias_bytes = 0;
  int64_t heap_bytes = 0;            // of the simulated heap alone (temp less tuple tables)
  int64_t peak_live_bytes = 0;       // the heap's size if nothing were lost to fragmentation
  int64_t least_temp_bytes = 0;      // no packing of this schedule's buffers takes less: offsets are aligned
  std::vector<HeapBuffer> buffers;   // by value id
};

HeapResult AssignBuffers(const HloAlias& alias, const HloLiveRanges& ranges);

}  // namespace coopjax
