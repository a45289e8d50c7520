// Which production each read of a schedule finds, in flat arrays: 4 bytes a read, 12 a production.
//
// A production is one making of one value. Parameters and constants have one each, before step 0.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "program/step_program.h"

namespace coopjax {

inline constexpr Step kNeverStep = std::numeric_limits<Step>::max();

class ScheduleFlow {
 public:
  // `touches` is OpTouches(program); all three must outlive this, and `schedule` is valid. O(steps + reads).
  ScheduleFlow(const StepProgram& program, const Csr& touches, std::span<const OpId> schedule);

  Step num_steps() const { return static_cast<Step>(schedule_.size()); }
  OpId op(Step t) const { return schedule_[t]; }
  int32_t num_productions() const { return static_cast<int32_t>(value_.size()); }
  // The productions that step t reads or overwrites, in the order of `touches`.
  std::span<const int32_t> sources(Step t) const {
    return {sources_.data() + first_source_[t], static_cast<size_t>(first_source_[t + 1] - first_source_[t])};
  }
  // Step t makes the productions [first_made(t), first_made(t + 1)), one per output in order.
  int32_t first_made(Step t) const { return first_made_[t]; }
  ValueId value(int32_t production) const { return value_[production]; }
  Step made_at(int32_t production) const { return made_at_[production]; }     // -1: given
  Step last_read(int32_t production) const { return last_read_[production]; }   // made_at if never read
  // The first step that overwrites the storage of `v`; kNeverStep if none does.
  Step overwritten_at(ValueId v) const { return overwritten_at_[v]; }
  bool overwrites() const { return overwrites_; }   // whether any step overwrites anything

 private:
  std::span<const OpId> schedule_;
  std::vector<int32_t> first_source_, sources_, first_made_;
  std::vector<ValueId> value_;
  std::vector<Step> made_at_, last_read_, overwritten_at_;
  bool overwrites_ = false;
};

// `schedule` without the repeats that nobody reads.
Schedule WithoutUnreadRepeats(const StepProgram& program, const Csr& touches, std::span<const OpId> schedule);

}  // namespace coopjax
