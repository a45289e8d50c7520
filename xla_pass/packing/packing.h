// Offsets for buffers whose live ranges are fixed: dynamic storage allocation, or "packing".
//
// A problem is a list of rectangles, lifetime by bytes, that may move along the byte axis only. Two buffers
// that live at the same time must not share a byte, unless they share an offset by decree
// (`same_offset_as`: an in-place writer and what it overwrites). The heap is as large as the highest used
// address; it can't be smaller than the bytes that are live together (`PeakLiveBytes`), and what it has above
// them is fragmentation.
//
// Here: the problem, its check, and the greedy packers, O(n log n) sets of addresses looked at for n buffers
// (packing/occupancy.h). packing/search.h looks further.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace coopjax {

inline constexpr int64_t kAnyOffset = -1;
inline constexpr int64_t kNoCapacity = -1;

struct PackingBuffer {
  int32_t lower = 0;                   // live in [lower, upper)
  int32_t upper = 0;
  int64_t size = 0;                    // bytes
  int64_t alignment = 1;               // the offset is a multiple of it
  int64_t fixed_offset = kAnyOffset;   // where the buffer must lie, if that is settled
  int32_t same_offset_as = -1;         // an earlier buffer at whose offset this one lies, or -1
};

struct PackingProblem {
  std::vector<PackingBuffer> buffers;
  int64_t capacity = kNoCapacity;      // bytes; a packing above it does not fit
};

struct Packing {
  int64_t heap_bytes = 0;
  std::vector<int64_t> offsets;        // by buffer
};

// Empty when `problem` is well formed; otherwise one sentence that names the first faulty buffer: an empty
// lifetime, a negative size, an alignment below 1, a fixed offset that is off the alignment or in the way of
// another one, a buffer tied to a later one.
std::string CheckPackingProblem(const PackingProblem& problem);

// The most bytes that are live at any time; buffers at one offset count as the largest of them. O(n log n).
int64_t PeakLiveBytes(const PackingProblem& problem);

// Empty when `packing` is valid for `problem`; otherwise the first pair of buffers, or the buffer, at fault.
std::string CheckPacking(const PackingProblem& problem, const Packing& packing);

// Which buffers come first; what shares an offset comes together. Ties go by lifetime, size, then by position.
enum class PackingOrder : uint8_t {
  kSize = 0,       // larger first: XLA's kSpatial
  kDuration = 1,   // longer first: XLA's kTemporal
  kArea = 2,       // bytes times duration
  kLower = 3,      // as they come to live
  kPressure = 4,   // those that see the most live bytes first
};
inline constexpr int kNumPackingOrders = 5;

enum class FitRule : uint8_t {
  kBest = 0,       // into the smallest gap that fits, the lowest among equals; on top if none does
  kFirst = 1,      // into the lowest gap
};

// Places the buffers one after the other, never to move them again; those with a fixed offset first. The
// problem must be well formed.
Packing PackInOrder(const PackingProblem& problem, PackingOrder order, FitRule rule);

// The same in the order of `sequence`, which names at least one buffer of each offset.
Packing PackInSequence(const PackingProblem& problem, std::span<const int32_t> sequence, FitRule rule);

// What XLA does for temporaries (GlobalDecreasingSizeBestFitHeap, heap_simulator.cc): best fit by decreasing
// size, and again by decreasing duration; the smaller heap wins.
Packing PackBestFit(const PackingProblem& problem);

}  // namespace coopjax
