// What differs between XLA's backends in how a scheduled module gets its memory.
//
// A module does not say what it was compiled for, but only XLA:GPU marks what it is about to schedule and gives
// instructions an operation queue (not to each, and to few where it tunes no kernels), only XLA:TPU tiles the layouts
// of the entry computation. The rules below were
// read off buffer assignments that XLA dumped (JAX 0.11.2 and 0.12, H100 and TPU v5e), where public source is silent.
#pragma once

#include <cstdint>

#include "hlo/module.h"

namespace coopjax {

enum class HloPlatform : uint8_t { kCpu, kGpu, kTpu };

HloPlatform PlatformOf(const hlo::Module& module);

struct HeapRules {
  HloPlatform platform = HloPlatform::kCpu;
  int64_t alignment = 64;              // of every buffer in the heap, and of temporary allocations
  int64_t granule_bytes = 1;           // sizes are rounded up to a multiple of this
  bool can_reuse_allocations = true;   // temporaries may lie in the allocations of outputs and donated parameters
  bool makes_synchronous = false;      // what is synchronous by its schedule (buffers/synchronous.h), after it
  bool packs_as_it_runs = false;       // each value takes of what is free when it is made (buffers/running_heap.h)
  // memory_analysis() adds what is lost between buffers to the heap, which holds it already, and says 0 where nothing
  // but tables is left. For lost it takes, too, what a loop carries and fills part by part, in place: a scan's stacks.
  bool counts_fragmentation_twice = false;

  // Whether a value of this shape (of a tuple, its table) lies in the device's main memory: not on TPU in a small
  // memory, nor, but for CPUs, on the host.
  bool IsInMainMemory(const hlo::Shape& shape) const;
  // What it takes there.
  int64_t Bytes(const hlo::Shape& shape) const;
};

HeapRules RulesFor(HloPlatform platform);

inline int64_t RoundUp(int64_t bytes, int64_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

}  // namespace coopjax
