// When every value is live, in the flattened time of the whole program.
//
// The schedule of the entry computation is flattened: the instructions of a loop's condition and body,
// of a call and of a conditional's branches stand just before their caller, each once. Times are
// positions in this list; a live range [start, end] includes both, as in XLA's hlo_live_range.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "buffers/alias.h"
#include "buffers/synchronous.h"

namespace coopjax {

struct HloLiveRange {
  int32_t start = -1;               // -1: the value is not part of the scheduled program
  int32_t end = -1;                 // inclusive

  bool is_valid() const { return start >= 0; }
};

struct HloLiveRanges {
  std::vector<HloLiveRange> of_value;
  std::vector<int32_t> sequence;    // flattened time -> instruction
  std::vector<int32_t> time;        // instruction -> flattened time, -1 when not scheduled
  struct Span {
    int32_t start = -1;
    int32_t end = -1;
  };
  std::vector<Span> span;           // [computation]; -1 when not scheduled
  std::vector<Synchronous> synchronous;  // [instruction], where XLA makes what is in it synchronous and there is some

  bool is_synchronous(int32_t instruction) const { return !synchronous.empty() && synchronous[instruction].start >= 0; }
  // In whose place an instruction stands once XLA has done so.
  int32_t place_of(int32_t instruction) const {
    return is_synchronous(instruction) ? synchronous[instruction].start : instruction;
  }
  int32_t end_time() const { return static_cast<int32_t>(sequence.size()); }
};

HloLiveRanges ComputeHloLiveRanges(const HloAlias& alias);
// The same were a computation scheduled in another order of the same instructions.
HloLiveRanges ComputeHloLiveRanges(const HloAlias& alias, int32_t computation, std::span<const int32_t> sequence);

}  // namespace coopjax
