#include "planners/segments/planner.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "base/allowance.h"
#include "planners/moves/lowering.h"
#include "planners/segments/hill_search.h"
#include "planners/segments/segment_cut.h"
#include "planners/segments/unneeded_repeats.h"
#include "program/liveness.h"
#include "program/schedule_flow.h"

namespace coopjax {
namespace {

constexpr Step kSegmentSteps[] = {256, 64, 16, 1024};   // the first for a plan at once
constexpr Step kShortest = 16;
constexpr Step kShorterByLevel = 4;
constexpr double kBare = std::numeric_limits<double>::infinity();
// Over the budget, of proposals to be polished: those that lead to the best plans most often come first.
constexpr double kMargins[] = {0.16, 0.32, kBare, 0.08, 0.64, 0.04, 0.02};
constexpr int32_t kPatience = 3;        // proposals in a row that lead to nothing better
constexpr double kSquaredSteps = 1.5;   // of polishing with excess squared, over those of the bare order without
constexpr double kWorseningAllowed = 1.25;   // before a plan is cleaned up

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
    if (order_.peak_bytes > budget_bytes_) Search();
    result_.is_cut_short = IsOver();
    result_.moves = counters_.moves;
    result_.schedule = std::move(best_.schedule);
    result_.is_feasible = best_.peak_bytes <= budget_bytes_;
    return std::move(result_);
  }

 private:
  bool IsOver() const { return allowance_.IsOver(); }
  bool IsGoodEnough() const { return best_.peak_bytes <= budget_bytes_ && best_.cost_s <= options_.stop_at_cost_s; }

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

  void Search() {
    const Step num_steps = static_cast<Step>(order_.schedule.size());
    const bool is_polished = num_steps <= options_.max_polished_ops;
    Plan proposal = order_;
    for (Step segment_steps : kSegmentSteps) {
      if (segment_steps > std::max(num_steps, kShortest)) continue;
      const bool is_first = best_length_ == 0;
      if (!is_first && (IsOver() || IsTooDear(proposal))) break;
      Plan plan = Lowered(budget_bytes_, segment_steps);
      if (is_first || plan.Rank(budget_bytes_) < proposal.Rank(budget_bytes_)) {
        proposal = std::move(plan);
        best_length_ = segment_steps;
        Keep(proposal);
      }
      // A first plan is there; what bare moves make of the order tells what of the others is worth a look.
      if (is_first && is_polished) {
        const int64_t spent = allowance_.Spent();
        Keep(Polished(order_, /*is_squared=*/false));
        bare_steps_ = allowance_.Spent() - spent;
      }
      if (IsGoodEnough()) return;
    }
    const bool has_segments = !IsTooDear(proposal);
    Keep(CleanedUp(std::move(proposal), budget_bytes_));
    if (is_polished) Polish(has_segments);
  }

  // Level by level, in shorter and shorter segments, as long as the peak falls.
  Plan Lowered(int64_t target_bytes, Step segment_steps) {
    SegmentCuts cuts;
    Plan plan = order_;
    for (int32_t level = 0; level < options_.max_levels && plan.peak_bytes > target_bytes; ++level) {
      HillSearch search(context_, plan.schedule, {target_bytes, segment_steps, options_.num_rounds}, &cuts);
      segment_steps = std::max(segment_steps / kShorterByLevel, kShortest);
      const Schedule lowered = search.Run([this] { return IsOver(); });
      result_.evaluations += search.num_evaluations();
      result_.segments += search.num_segments();
      Plan next = Judged(WithoutUnreadRepeats(context_.program, context_.touches, lowered));
      const int64_t fall = plan.peak_bytes - next.peak_bytes, excess = plan.peak_bytes - target_bytes;
      if (fall > 0) plan = std::move(next);
      // Levels fall less and less: if those left don't reach the target even at this pace, it is out of their reach.
      if (fall <= 0 || fall * (options_.max_levels - level) < excess || IsTooDear(plan)) break;
    }
    result_.kinds += cuts.num_kinds();
    result_.cuts += cuts.num_solved();
    return plan;
  }

  // Whatever comes of a plan that is cleaned up or polished, it won't be the best.
  bool IsTooDear(const Plan& plan) const {
    return best_.peak_bytes <= budget_bytes_ && plan.cost_s >= kWorseningAllowed * best_.cost_s;
  }

  Plan CleanedUp(Plan plan, int64_t target_bytes) {
    if (!options_.clean_up || plan.peak_bytes > target_bytes) return plan;
    FewerRepeats fewer = RemoveUnneededRepeats(context_.program, context_.touches, plan.schedule, target_bytes);
    result_.removals += fewer.num_removed;
    return Judged(std::move(fewer.schedule));
  }

  // Where segments have little to offer, the bare order is the one proposal. What would be cut short comes to nothing:
  // it is not begun.
  void Polish(bool has_segments) {
    int32_t num_failures = 0;
    for (double margin : kMargins) {
      if (IsGoodEnough()) return;
      if (!has_segments && margin != kBare) continue;
      const auto steps_needed = static_cast<int64_t>(kSquaredSteps * static_cast<double>(bare_steps_));
      if (num_failures == kPatience || effort_.IsSpent() || allowance_.Left() < steps_needed) return;
      const Plan plan = margin == kBare ? order_ : Proposal(margin);
      num_failures = Keep(Polished(plan, /*is_squared=*/true)) ? 0 : num_failures + 1;
    }
  }

  Plan Proposal(double margin) {
    const int64_t target_bytes = budget_bytes_ + static_cast<int64_t>(margin * static_cast<double>(budget_bytes_));
    return CleanedUp(Lowered(target_bytes, best_length_), target_bytes);
  }

  // Brought under the budget by single moves. Excess that counts once and not squared takes half as many trials;
  // squared it leads to somewhat better plans.
  Plan Polished(const Plan& plan, bool is_squared) {
    if (IsTooDear(plan)) return plan;
    const bool is_feasible = best_.peak_bytes <= budget_bytes_;
    const double limit_s =
        is_feasible ? kWorseningAllowed * best_.cost_s - plan.cost_s : std::numeric_limits<double>::max();
    Lowering lowering(context_.program, plan.schedule, budget_bytes_, is_squared, /*merges_repeats=*/true, &effort_,
                      &counters_);
    lowering.Lower(limit_s);
    const bool repeats_writers = RepeatsWriters(lowering.schedule());
    if (lowering.is_feasible() && repeats_writers) lowering.CleanUp();
    Plan polished = Judged(lowering.schedule());
    return repeats_writers ? polished : CleanedUp(std::move(polished), budget_bytes_);
  }

  // Whether an op that overwrites its input runs again.
  bool RepeatsWriters(const Schedule& schedule) const {
    std::vector<uint8_t> has_run(context_.program.num_ops(), 0);
    return std::ranges::any_of(schedule,
                               [&](OpId op) { return std::exchange(has_run[op], 1) && !context_.may_repeat[op]; });
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
  Step best_length_ = 0;   // of segments
  int64_t bare_steps_ = 0;   // that polishing the bare order took
};

}  // namespace

SegmentResult PlanSegments(const StepProgram& program, std::span<const OpId> order, int64_t budget_bytes,
                           const SegmentOptions& options) {
  return SegmentPlanner(program, order, budget_bytes, options).Run();
}

}  // namespace coopjax
