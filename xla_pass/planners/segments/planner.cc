#include "planners/segments/planner.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "base/allowance.h"
#include "planners/moves/lowering.h"
#include "planners/segments/hill_search.h"
#include "planners/segments/segment_cut.h"
#include "planners/segments/unneeded_repeats.h"
#include "program/liveness.h"
#include "program/schedule_flow.h"

namespace coopjax {
namespace {

constexpr Step kSegmentSteps[] = {16, 64, 256, 1024};
constexpr Step kLeastWhole = 4096;       // steps of a program whose hills are planned whole, too
constexpr Step kShorterByLevel = 4;
constexpr int64_t kLeastFall = 50;       // a whole level that takes no more than this part of the excess is the last
constexpr double kFirstMargin = 0.02;   // over the budget, of the first proposal to be polished
constexpr double kLastMargin = 1.0;
constexpr int32_t kPatience = 3;        // proposals in a row that lead to nothing better
constexpr double kWorseningAllowed = 1.25;   // before a polished plan is cleaned up

// A schedule and what it takes.
struct Plan {
  Schedule schedule;
  int64_t peak_bytes = std::numeric_limits<int64_t>::max();
  double cost_s = 0;

  // Bytes above the target, seconds of recompute, peak: less is better.
  std::tuple<int64_t, double, int64_t> Rank(int64_t target_bytes) const {
    return {std::max<int64_t>(0, peak_bytes - target_bytes), cost_s, peak_bytes};
  }
};

class SegmentPlanner {
 public:
  SegmentPlanner(const StepProgram& program, std::span<const OpId> order, int64_t budget_bytes,
                 const SegmentOptions& options)
      : allowance_(options.max_steps),
        context_(program),
        order_(Judged({order.begin(), order.end()})),
        budget_bytes_(budget_bytes),
        options_(options) {}

  SegmentResult Run() {
    Keep(order_);
    if (order_.peak_bytes > budget_bytes_) {
      Plan proposal = Propose(budget_bytes_);
      if (static_cast<Step>(order_.schedule.size()) >= kLeastWhole && !IsOver()) {
        TryLength(budget_bytes_, kWholeHill, &proposal);
      }
      Keep(CleanedUp(std::move(proposal), budget_bytes_));
      if (static_cast<int32_t>(order_.schedule.size()) <= options_.max_polished_ops) Polish();
    }
    result_.is_cut_short = IsOver();
    result_.moves = counters_.moves;
    result_.schedule = std::move(best_.schedule);
    result_.is_feasible = best_.peak_bytes <= budget_bytes_;
    return std::move(result_);
  }

 private:
  bool IsOver() const { return allowance_.IsOver(); }

  Plan Judged(Schedule schedule) const {
    const int64_t peak = ComputeLiveness(context_.program, schedule).peak_bytes;
    const double cost_s = CountRecompute(context_.program, schedule).cost_s;
    return {std::move(schedule), peak, cost_s};
  }

  // Whether `plan` is the best so far.
  bool Keep(const Plan& plan) {
    if (plan.Rank(budget_bytes_) >= best_.Rank(budget_bytes_)) return false;
    if (plan.peak_bytes <= budget_bytes_ && best_.peak_bytes > budget_bytes_) {
      result_.first_plan_steps = allowance_.Spent();
    }
    best_ = plan;
    return true;
  }

  // The best plan for the target over the lengths of segments.
  Plan Propose(int64_t target_bytes) {
    Plan best = order_;
    for (Step segment_steps : kSegmentSteps) {
      if (segment_steps > kSegmentSteps[0] && (segment_steps > static_cast<Step>(order_.schedule.size()) || IsOver()))
        break;
      TryLength(target_bytes, segment_steps, &best);
    }
    return best;
  }

  void TryLength(int64_t target_bytes, Step segment_steps, Plan* best) {
    Plan plan = Lowered(target_bytes, segment_steps);
    Keep(plan);
    if (plan.Rank(target_bytes) < best->Rank(target_bytes)) *best = std::move(plan);
  }

  // Level by level, in shorter and shorter segments, as long as the peak falls.
  Plan Lowered(int64_t target_bytes, Step segment_steps) {
    SegmentCuts cuts;
    Plan plan = order_;
    for (int32_t level = 0; level < options_.max_levels && plan.peak_bytes > target_bytes; ++level) {
      HillSearch search(context_, plan.schedule, {target_bytes, segment_steps, options_.num_rounds}, &cuts);
      if (segment_steps < kWholeHill) segment_steps = std::max(segment_steps / kShorterByLevel, kSegmentSteps[0]);
      const Schedule lowered = search.Run([this] { return IsOver(); });
      result_.evaluations += search.num_evaluations();
      result_.segments += search.num_segments();
      Plan next = Judged(WithoutUnreadRepeats(context_.program, context_.touches, lowered));
      const int64_t fall = plan.peak_bytes - next.peak_bytes, excess = plan.peak_bytes - target_bytes;
      if (fall > 0) plan = std::move(next);
      if (fall <= (segment_steps == kWholeHill ? excess / kLeastFall : 0)) break;
    }
    result_.kinds += cuts.num_kinds();
    result_.cuts += cuts.num_solved();
    return plan;
  }

  Plan CleanedUp(Plan plan, int64_t target_bytes) {
    if (!options_.clean_up || plan.peak_bytes > target_bytes) return plan;
    FewerRepeats fewer = RemoveUnneededRepeats(context_.program, context_.touches, plan.schedule, target_bytes);
    result_.removals += fewer.num_removed;
    return Judged(std::move(fewer.schedule));
  }

  // Proposals with wider and wider margins, as long as they lead to something better.
  void Polish() {
    int32_t num_failures = 0;
    for (double margin = kFirstMargin; margin <= kLastMargin && num_failures < kPatience && !effort_.IsSpent();
         margin *= 2) {
      const int64_t target_bytes = budget_bytes_ + static_cast<int64_t>(margin * static_cast<double>(budget_bytes_));
      num_failures = Keep(Polished(CleanedUp(Propose(target_bytes), target_bytes))) ? 0 : num_failures + 1;
    }
  }

  // Brought under the budget by single moves.
  Plan Polished(const Plan& plan) {
    const bool is_feasible = best_.peak_bytes <= budget_bytes_;
    const double limit_s =
        is_feasible ? kWorseningAllowed * best_.cost_s - plan.cost_s : std::numeric_limits<double>::max();
    if (limit_s <= 0) return plan;
    Lowering lowering(context_.program, plan.schedule, budget_bytes_, /*is_squared=*/true, /*merges_repeats=*/true,
                      &effort_, &counters_);
    lowering.Lower(limit_s);
    if (lowering.is_feasible()) lowering.CleanUp();
    return Judged(lowering.schedule());
  }

  const Allowance allowance_;
  const SegmentContext context_;
  const Plan order_;
  const int64_t budget_bytes_;
  const SegmentOptions options_;
  MoveCounters counters_;
  Effort effort_ = {&counters_, options_.max_trials, allowance_};
  SegmentResult result_;
  Plan best_;
};

}  // namespace

SegmentResult PlanSegments(const StepProgram& program, std::span<const OpId> order, int64_t budget_bytes,
                           const SegmentOptions& options) {
  return SegmentPlanner(program, order, budget_bytes, options).Run();
}

}  // namespace coopjax
