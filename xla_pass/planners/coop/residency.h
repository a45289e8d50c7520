// Which values are there while a schedule is being simulated, which can be brought back, and for which
// others a value is still needed.
//
// A value is resident (its bytes are there) or not: not made yet, evicted, or dead. All answers are O(1):
// a change of state walks only over the evicted values whose answers it changes.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "program/step_program.h"

namespace coopjax {

class Residency {
 public:
  // `program` must outlive this. Parameters and constants start resident; every op has yet to read its inputs.
  explicit Residency(const StepProgram& program);

  void SetResident(ValueId v);
  void SetEvicted(ValueId v);
  // Its storage has been overwritten, for good: nothing can be made from it any more.
  void SetLost(ValueId v);
  // One of the order's own reads of `v` is done.
  void CountRead(ValueId v);

  bool is_resident(ValueId v) const { return is_resident_[v]; }
  bool is_made(ValueId v) const { return is_made_[v]; }
  // Reads by ops of the order that have not run; recomputes do not count.
  int32_t reads_left(ValueId v) const { return reads_left_[v]; }
  // Whether the op of `v` may run again and what it reads is there or can be brought back.
  bool CanRemake(ValueId v) const {
    const OpId op = program_.value_producer[v];
    return op != kNoOp && CanRun(op);
  }
  // Whether its op may run twice, whatever the state.
  bool MayRemake(ValueId v) const {
    const OpId op = program_.value_producer[v];
    return op != kNoOp && may_run_twice_[op];
  }
  // Whether an evicted value with reads to come would have to be made from `v`, directly or through others.
  bool IsSource(ValueId v) const { return num_wanting_[v] > 0; }
  // Those values.
  std::vector<ValueId> NeededFrom(ValueId v);
  // Resident values that have stopped being a source since the last call.
  std::vector<ValueId> TakeFormerSources() { return std::exchange(former_sources_, {}); }

 private:
  bool CanRun(OpId op) const { return may_run_twice_[op] && num_blocked_[op] == 0; }
  bool IsWanted(ValueId v) const { return is_made_[v] && !is_resident_[v] && (reads_left_[v] > 0 || IsSource(v)); }
  void Leave(ValueId v);
  void SetBlocked(ValueId v, bool is_blocked);
  void Want(OpId op);
  void Unwant(OpId op);

  const StepProgram& program_;
  const Csr readers_;
  std::vector<uint8_t> may_run_twice_;      // per op
  std::vector<uint8_t> is_resident_;
  std::vector<uint8_t> is_made_;
  std::vector<uint8_t> is_lost_;
  std::vector<uint8_t> is_blocked_;         // made, not resident, and can't be brought back
  std::vector<int32_t> reads_left_;
  std::vector<int32_t> num_blocked_;        // per op: inputs that are blocked
  std::vector<int32_t> num_wanted_;         // per op: outputs that are evicted and read later, or a source
  std::vector<int32_t> num_wanting_;        // per value: readers with such outputs
  std::vector<ValueId> former_sources_;
  std::vector<int32_t> visited_;            // per value: the query that saw it last
  int32_t query_ = 0;
};

}  // namespace coopjax
