// What to hold and what to make again of one short stretch of steps: a minimum cut, solved once per kind.
//
// Early steps may run again after a peak. What later steps read of a segment is held across the peak, at a
// price per byte, or made again, at the cost of its op; what is made again needs its inputs held or made
// again. Inputs from outside the segment can only be held. The cheapest choice is a minimum cut (value ->
// its op: the price of holding; op -> sink: its cost). Segments that look the same (costs, sizes, edges) are
// one kind, so that repeated layers are solved once: a kind is recognised by a 128-bit hash of all that the
// cut sees, and what it chose at a price is remembered.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "program/step_program.h"

namespace coopjax {

using Hash128 = std::array<uint64_t, 2>;

// A segment as the cut sees it. Productions are numbered within it, those from outside follow its own.
struct SegmentProblem {
  enum Flag : uint8_t {
    kWanted = 1,     // its own: read after the peak
    kLost = 2,       // overwritten before the peak: can't be held
    kFree = 4,       // from outside: there anyway
  };
  std::vector<double> step_cost_s;
  std::vector<uint8_t> may_repeat;      // per step
  Csr inputs;                           // per step: productions
  std::vector<int32_t> producer;        // per own production: its step
  std::vector<int64_t> bytes;           // per production; 0 if it takes no budget
  std::vector<uint8_t> flags;           // per production

  int32_t num_own() const { return static_cast<int32_t>(producer.size()); }
  int32_t num_productions() const { return static_cast<int32_t>(bytes.size()); }
};

// What a cut chose.
struct SegmentChoice {
  std::vector<int32_t> repeated;        // steps, ascending
  std::vector<int32_t> held_outside;    // productions from outside that must now be held
};

class SegmentCuts {
 public:
  // The kind of `problem`: its number, the same for equal problems.
  int32_t KindOf(SegmentProblem problem);
  int32_t num_kinds() const { return static_cast<int32_t>(kinds_.size()); }
  int64_t num_solved() const { return num_solved_; }

  // The cheapest choice at `price` seconds per byte, where `is_held[p]` says which productions are held
  // already, for others' sake. Valid until the next call of KindOf or Choose.
  const SegmentChoice& Choose(int32_t kind, double price, const std::vector<uint8_t>& is_held);

 private:
  struct HashOf {
    size_t operator()(const Hash128& hash) const { return hash[0]; }
  };
  SegmentChoice Solve(const SegmentProblem& problem, double price, const std::vector<uint8_t>& is_held) const;

  std::vector<SegmentProblem> kinds_;
  std::unordered_map<Hash128, int32_t, HashOf> kind_of_;
  std::unordered_map<Hash128, SegmentChoice, HashOf> choices_;
  int64_t num_solved_ = 0;
};

}  // namespace coopjax
