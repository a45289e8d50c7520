#include "planners/improve/exchange_search.h"

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

#include "base/allowance.h"
#include "planners/improve/exchange_knapsack.h"
#include "planners/improve/exchange_moves.h"
#include "planners/moves/lowering.h"
#include "program/liveness.h"

namespace coopjax {
namespace {

class ExchangeSearch {
 public:
  ExchangeSearch(const StepProgram& program, std::span<const OpId> start, int64_t budget_bytes,
                 const ExchangeOptions& options)
      : program_(program),
        budget_(budget_bytes),
        options_(options),
        random_(options.seed),
        current_(start.begin(), start.end()),
        cost_s_(CountRecompute(program, start).cost_s),
        effort_{&counters_, std::numeric_limits<int64_t>::max(), Allowance(options.max_steps)},
        lowering_(program, start, budget_bytes, /*is_squared=*/true, /*merges_repeats=*/true, &effort_, &counters_),
        moves_(program, budget_bytes, &effort_, &counters_) {}

  ImproveResult Run() {
    result_.schedule = current_;
    double best_s = cost_s_;
    int64_t stale = 0;
    const bool is_feasible = ComputeLiveness(program_, current_).peak_bytes <= budget_;
    while (is_feasible && stale < options_.patience && best_s > options_.stop_at_cost_s * (1 + kRounding)) {
      if (effort_.IsSpent() || counters_.trials + flips_ >= options_.max_work) break;
      ++result_.rounds;
      ++stale;
      if (!Round() || cost_s_ >= best_s * (1 - kRounding)) continue;
      best_s = cost_s_;
      result_.schedule = current_;
      ++result_.improvements;
      stale = 0;
    }
    result_.is_cut_short = effort_.is_cut_short;
    return std::move(result_);
  }

 private:
  // True when the plan has changed, for one that is not worse.
  bool Round() {
    // A plan that stays keeps its moves, and the steps that exchanges have overflowed.
    if (!is_listed_) moves_.List(current_);
    is_listed_ = true;
    if (!Exchange()) return false;
    if (!lowering_.is_feasible()) {
      const double saved_s = cost_s_ - CountRecompute(program_, lowering_.schedule()).cost_s;
      lowering_.Lower(kWorseningAllowed * std::max(saved_s, 0.0));
    }
    if (!lowering_.is_feasible()) return false;
    lowering_.CleanUp();
    const double reached_s = CountRecompute(program_, lowering_.schedule()).cost_s;
    if (reached_s > cost_s_ * (1 + kRounding)) return false;
    cost_s_ = reached_s;
    is_listed_ = lowering_.schedule() == current_;
    current_ = lowering_.schedule();
    return true;
  }

  // Carries out the best exchange, which `lowering_` takes over; where it is above the budget, looks for another that
  // heeds those steps too. False if there is nothing to exchange.
  bool Exchange() {
    for (int32_t attempt = 0; attempt < kAttempts; ++attempt) {
      const int64_t flips = kFlipsPerItem * static_cast<int64_t>(moves_.items().size());
      flips_ += flips;
      const ExchangeChoice choice = ChooseExchange(moves_.items(), moves_.room(), flips, &random_);
      if (choice.items.empty()) return false;
      const Schedule exchanged = moves_.CarryOut(choice);
      if (exchanged.empty()) return false;
      lowering_.Reset(exchanged);
      if (lowering_.is_feasible()) break;
      moves_.WatchExcess(choice);
    }
    return true;
  }

  static constexpr int32_t kAttempts = 8;             // to find an exchange that holds the budget
  static constexpr int64_t kFlipsPerItem = 400;
  static constexpr double kWorseningAllowed = 1.25;   // before the clean-up
  static constexpr double kRounding = 1e-9;

  const StepProgram& program_;
  const int64_t budget_;
  const ExchangeOptions options_;
  std::mt19937_64 random_;
  Schedule current_;
  double cost_s_;
  bool is_listed_ = false;            // `moves_` are those of `current_`
  MoveCounters counters_;
  Effort effort_;
  Lowering lowering_;
  ExchangeMoves moves_;
  int64_t flips_ = 0;
  ImproveResult result_;
};

}  // namespace

ImproveResult SearchExchanges(const StepProgram& program, std::span<const OpId> start, int64_t budget_bytes,
                              const ExchangeOptions& options) {
  return ExchangeSearch(program, start, budget_bytes, options).Run();
}

}  // namespace coopjax
