// Brings the hills of a schedule's curve of live bytes under a budget: what is made before the top of a hill
// and read after it is held across or made again (SegmentCuts), at one price per byte and hill.
//
// The steps up to the top are split into segments where little is passed on from one to the next. Inputs
// from another segment can only be held, so a segment is remade as a whole at most, and its own bytes are
// all that a remake adds (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, with the
// checkpoints and what to keep beside them chosen by price). The price of a hill is found by bisection on
// exact live bytes; between two rungs of a ladder of prices some segments take the lower and the others the higher one.
//
// Weaknesses: one price for a whole hill although bytes are held for different times; a remake runs as
// late as its first reader allows and serves all later ones. O(steps + reads) per price tried.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "planners/segments/segment_cut.h"
#include "program/schedule_flow.h"
#include "program/step_program.h"

namespace coopjax {

// Steps [begin, end) around a highest step `peak`; those before the peak may be run again after it.
struct Hill {
  Step begin;
  Step peak;
  Step end;
};

// The hills above `budget_bytes` that stand at least half as far above it as the highest; each reaches down
// to the lowest step between it and the next. They cover the schedule.
std::vector<Hill> FindHills(std::span<const int64_t> live_bytes, int64_t budget_bytes);

// What a program implies, indexed once.
struct SegmentContext {
  const StepProgram& program;
  Csr touches;  // OpTouches
  std::vector<uint8_t> may_repeat;  // per op; in-place writers are never repeated

  explicit SegmentContext(const StepProgram& program);
};

class HillSearch {
 public:
  struct Options {
    int64_t budget_bytes = 0;
    Step segment_steps = 0;  // half to one and a half times so many steps a segment
    int32_t num_rounds = 0;  // of bisection
  };
  // `schedule` is above the budget; its in-place writers run once. Everything must outlive this.
  HillSearch(const SegmentContext& context, std::span<const OpId> schedule, const Options& options, SegmentCuts* cuts);

  // The cheapest schedule found that is under the budget, hill by hill, or the lowest where none is. Ends
  // early when `is_over` says so.
  Schedule Run(const std::function<bool()>& is_over);

  int32_t num_segments() const { return static_cast<int32_t>(segments_.size()); }
  int64_t num_evaluations() const { return num_evaluations_; }

 private:
  struct Segment {
    Step begin;
    Step end;
    int32_t kind;
    int32_t first_outside;  // into outside_
  };
  // The search for one hill's price: `at` runs over the rungs of a ladder of prices, fractions included.
  struct Price {
    std::vector<double> ladder;
    int32_t first_segment = 0;
    int32_t end_segment = 0;
    double at = 0;
    double too_high = 0;  // the highest rung tried whose bytes are over the budget
    double fits = -1;  // the lowest rung tried that is under it; below 0: none yet
    double lowest_at = 0;
    int64_t lowest_bytes = 0;
  };

  void Split(const Hill& hill);
  std::vector<int64_t> CrossingBytes(const Hill& hill) const;
  SegmentProblem ProblemOf(const Hill& hill, Step begin, Step end);
  uint8_t OutsideFlags(const Hill& hill, int32_t production) const;
  std::vector<double> Ladder(const Hill& hill) const;
  void Choose(const Hill& hill, const Price& price);
  void ChooseSegment(const Segment& segment, double seconds_per_byte, std::vector<int32_t>* held);
  std::vector<std::pair<Step, Step>> LastChances() const;
  Schedule Build();
  void Evaluate();
  void Probe(const std::function<bool()>& is_over);
  void Bisect(const std::function<bool()>& is_over);

  const SegmentContext& context_;
  const StepProgram& program_;
  const Options options_;
  SegmentCuts& cuts_;
  const ScheduleFlow flow_;
  std::vector<Hill> hills_;
  std::vector<Price> prices_;  // per hill
  std::vector<Segment> segments_;
  std::vector<int32_t> outside_;
  std::vector<int32_t> index_of_;  // scratch of ProblemOf, per production
  std::vector<uint8_t> is_held_;  // per production: for another segment's sake
  std::vector<uint8_t> is_chosen_;  // per step: to run again after its hill's peak
  std::vector<Step> hill_at_;  // per hill: where it begins in the schedule built last
  std::vector<int64_t> hill_bytes_;  // per hill: its peak in the schedule evaluated last
  std::vector<uint8_t> is_held_scratch_;
  int64_t num_evaluations_ = 0;
};

}  // namespace coopjax
