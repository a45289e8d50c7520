#include "planners/peak/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <tuple>

#include "base/allowance.h"
#include "planners/moves/lowering.h"
#include "planners/peak/hold_cut.h"
#include "program/liveness.h"

namespace coopjax {
namespace {

class PeakPlanner {
 public:
  PeakPlanner(const StepProgram& program, std::span<const OpId> order, int64_t budget_bytes, const PeakOptions& options)
      : program_(program),
        order_(order.begin(), order.end()),
        budget_(budget_bytes),
        options_(options),
        total_cost_s_(std::accumulate(program.op_cost_s.begin(), program.op_cost_s.end(), 0.0)),
        liveness_(ComputeLiveness(program, order)),
        effort_{&result_.counters, options.max_trials, Allowance(options.max_steps)} {}

  PeakResult Run() {
    Keep(order_);
    if (result_.is_feasible) {
      if (std::get<1>(best_) > 0) Consider(order_, budget_);
    } else if (!order_.empty()) {
      // Below what is reachable the potential would draw moves to places where nothing can be won.
      Reach(std::max(budget_, ComputeLowerBound(program_).bytes));
      if (!result_.is_feasible) ShrinkPeak();
    }
    if (result_.is_feasible && options_.swap) Improve();
    result_.is_cut_short = effort_.is_cut_short;
    return std::move(result_);
  }

 private:
  // Bytes above the budget, seconds of recompute, peak.
  using Rank = std::tuple<int64_t, double, int64_t>;

  // Tries to get under `target_bytes`, from the proposals of HoldCut and from the bare order.
  bool Reach(int64_t target_bytes) {
    const int64_t trials_before = result_.counters.trials;
    effort_.BeginStage(options_.max_trials);
    bool is_reached = false;
    if (options_.num_price_rounds > 0 && static_cast<int32_t>(order_.size()) == program_.num_ops()) {
      is_reached = SearchPrices(target_bytes);
    }
    // The bare order seldom wins and then takes long: no more effort on it than on the proposals.
    if (is_reached) effort_.BeginStage(std::max(kLeastStage, (result_.counters.trials - trials_before) / 4));
    return Consider(order_, target_bytes) || is_reached;
  }

  // The budget was not reached: what is the smallest peak that is? Bisects between the bound and it.
  void ShrinkPeak() {
    effort_.max_trials = result_.counters.trials + options_.max_trials / 2;
    int64_t low = std::max(budget_, ComputeLowerBound(program_).bytes);
    for (int round = 0; round < kShrinkRounds && !effort_.IsSpent(); ++round) {
      const int64_t high = budget_ + std::get<0>(best_);
      if (high - low <= high / 100) return;
      const int64_t middle = low + (high - low) / 2;
      const Schedule smallest = result_.schedule;
      if (!Consider(smallest, middle) && !Reach(middle)) low = middle;
    }
  }

  // Lowers and cleans up `start`; keeps the outcome if it is the best so far.
  bool Consider(std::span<const OpId> start, int64_t target_bytes) {
    const double start_cost_s = CountRecompute(program_, start).cost_s;
    const double limit_s =
        (result_.is_feasible ? kWorseningAllowed * std::get<1>(best_) : total_cost_s_) - start_cost_s;
    if (limit_s <= 0) return false;
    Lowering lowering = LoweringOf(start, target_bytes);
    lowering.Lower(limit_s);
    if (lowering.is_feasible() && options_.clean_up) lowering.CleanUp();
    Keep(lowering.schedule());
    return lowering.is_feasible();
  }

  Lowering LoweringOf(std::span<const OpId> start, int64_t target_bytes) {
    return Lowering(program_, start, target_bytes, options_.exponent > 1, options_.merge_repeats, &effort_,
                    &result_.counters);
  }

  void Improve() {
    effort_.BeginStage(std::max(kLeastStage, result_.counters.trials / 2));
    Lowering lowering = LoweringOf(result_.schedule, budget_);
    lowering.Swap();
    Keep(lowering.schedule());
  }

  void Keep(const Schedule& schedule) {
    const int64_t peak = ComputeLiveness(program_, schedule).peak_bytes;
    const Rank rank = {std::max<int64_t>(0, peak - budget_), CountRecompute(program_, schedule).cost_s, peak};
    if (!result_.schedule.empty() && rank >= best_) return;
    best_ = rank;
    result_.schedule = schedule;
    result_.is_feasible = peak <= budget_;
  }

  // Multiplicative weights: the price of a step rises where the last proposal was above the target
  // there, and falls where it was below.
  bool SearchPrices(int64_t target_bytes) {
    const HoldCut cut(program_, order_, CutSteps(target_bytes));
    std::vector<double> price = FirstPrices(target_bytes);
    std::set<Schedule> seen;
    bool is_reached = false;
    int32_t best_round = 0;
    for (int32_t round = 0; round < options_.num_price_rounds && !effort_.IsSpent(); ++round) {
      if (round - best_round > kPatience) break;
      const Schedule proposal = cut.Choose(price);
      const Rank best_before = best_;
      if (seen.insert(proposal).second) is_reached = Consider(proposal, target_bytes) || is_reached;
      if (best_ < best_before) best_round = round;
      const std::vector<int64_t> peaks = PeaksByStep(proposal);
      const double rate = kFirstRate / (1 + round / kRoundsToHalve);
      double largest = 0;
      for (size_t t = 0; t < price.size(); ++t) {
        const double over = static_cast<double>(peaks[t]) / static_cast<double>(std::max<int64_t>(target_bytes, 1)) - 1;
        largest = std::max(largest, price[t] *= std::exp(rate * std::clamp(over, -0.5, 1.0)));
      }
      for (double& p : price) p = std::max(p, kLeastPrice * largest);
    }
    return is_reached;
  }

  // The highest step of each stretch above the target, where that is at least half as far above it as the
  // peak: one for a forward and a backward pass, one per training step where several are unrolled.
  std::vector<Step> CutSteps(int64_t target_bytes) const {
    const auto& live = liveness_.live_bytes;
    const int64_t least = target_bytes + (liveness_.peak_bytes - target_bytes) / 2;
    std::vector<Step> steps;
    bool is_new = true;
    for (Step t = 0; t < static_cast<Step>(live.size()); ++t) {
      if (live[t] <= target_bytes) is_new = true;
      if (live[t] < least) continue;
      if (is_new) {
        steps.push_back(t);
      } else if (live[t] > live[steps.back()]) {
        steps.back() = t;
      }
      is_new = false;
    }
    return steps.size() <= kMostCuts ? steps : std::vector<Step>{liveness_.peak_step};
  }

  // To hold every temporary byte over the steps above the target is about as dear as to run every op.
  std::vector<double> FirstPrices(int64_t target_bytes) const {
    double bytes = 0, steps = 0;
    for (ValueId v = 0; v < program_.num_values(); ++v) {
      if (program_.takes_budget(v)) bytes += static_cast<double>(program_.value_bytes[v]);
    }
    std::vector<double> price(order_.size());
    for (size_t t = 0; t < price.size(); ++t) {
      steps += price[t] = liveness_.live_bytes[t] > target_bytes ? 1 : kFirstPriceBelow;
    }
    for (double& p : price) p *= total_cost_s_ / std::max(bytes, 1.0) / steps;
    return price;
  }

  // Per step of the order, the largest live bytes since the step before it: its own and those of the
  // recomputes in between.
  std::vector<int64_t> PeaksByStep(const Schedule& schedule) const {
    const Liveness liveness = ComputeLiveness(program_, schedule);
    std::vector<int64_t> peaks(order_.size(), 0);
    size_t step = 0;
    for (size_t t = 0; t < schedule.size() && step < order_.size(); ++t) {
      peaks[step] = std::max(peaks[step], liveness.live_bytes[t]);
      if (schedule[t] == order_[step]) ++step;
    }
    return peaks;
  }

  static constexpr size_t kMostCuts = 32;
  static constexpr int64_t kLeastStage = 10000;
  static constexpr int kShrinkRounds = 5;
  static constexpr double kWorseningAllowed = 1.25;   // before the clean-up
  static constexpr int32_t kPatience = 8;               // price rounds without a better plan
  static constexpr double kFirstRate = 2;
  static constexpr double kRoundsToHalve = 5;
  static constexpr double kFirstPriceBelow = 1e-3;
  static constexpr double kLeastPrice = 1e-9;

  const StepProgram& program_;
  const Schedule order_;
  const int64_t budget_;
  const PeakOptions options_;
  const double total_cost_s_;
  const Liveness liveness_;
  PeakResult result_;
  Effort effort_;
  Rank best_;
};

}  // namespace

PeakResult PlanPeak(const StepProgram& program, std::span<const OpId> order, int64_t budget_bytes,
                    const PeakOptions& options) {
  return PeakPlanner(program, order, budget_bytes, options).Run();
}

}  // namespace coopjax
