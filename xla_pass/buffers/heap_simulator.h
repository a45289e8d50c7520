// Steps 2 and 3 of buffers/heap.h: the events of the heap, and their packing.
#pragma once

#include <cstdint>
#include <vector>

#include "buffers/alias.h"
#include "buffers/live_range.h"
#include "packing/packing.h"

namespace coopjax {

// Step 2. Intervals count heap events (allocations and frees), not flattened time.
struct HeapInterval {
  int32_t value = 0;
  int64_t bytes = 0;
  int32_t start = 0;
  int32_t end = 0;                   // inclusive
  int32_t shared_with = -1;          // index of the interval whose memory this one reuses
  int32_t start_time = 0;            // the same range in flattened time, inclusive
  int32_t end_time = 0;
  int32_t rank = 0;                  // what ties go by: XLA numbers the values so
};
std::vector<HeapInterval> SimulateHeap(const HloAlias& alias, const HloLiveRanges& ranges,
                                       const std::vector<uint8_t>& is_in_heap);

// The most bytes that are live at any event; memory that several intervals share counts once.
int64_t PeakLiveBytes(const std::vector<HeapInterval>& intervals);

// The same with all but the one on top rounded up to the alignment: no heap is smaller.
int64_t LeastHeapBytes(const std::vector<HeapInterval>& intervals, int64_t alignment);

// Step 3: an offset per interval, and the heap's size.
Packing PackHeap(const std::vector<HeapInterval>& intervals, const HeapRules& rules);

}  // namespace coopjax
