#include "planners/improve/neighbourhood_search.h"

#include <algorithm>
#include <random>
#include <tuple>
#include <vector>

#include "base/allowance.h"
#include "planners/moves/lowering.h"
#include "program/liveness.h"

namespace coopjax {
namespace {

class NeighbourhoodSearch {
 public:
  NeighbourhoodSearch(const StepProgram& program, std::span<const OpId> start, int64_t budget_bytes,
                      const NeighbourhoodOptions& options)
      : program_(program),
        budget_(budget_bytes),
        options_(options),
        random_(options.seed),
        best_(start.begin(), start.end()),
        best_rank_(RankOf(best_)),
        effort_{&counters_, std::numeric_limits<int64_t>::max(), Allowance(options.max_steps)},
        lowering_(program, start, budget_bytes, /*is_squared=*/true, /*merges_repeats=*/true, &effort_, &counters_) {}

  ImproveResult Run() {
    Schedule current = best_;
    Rank rank = best_rank_;
    const int64_t work_per_commit =
        1 + (program_.num_ops() + static_cast<int64_t>(program_.op_inputs.items.size())) / 16;
    int64_t stale = 0;
    while (stale < options_.patience && !IsDone() && !effort_.IsSpent()) {
      if (counters_.trials + work_per_commit * (counters_.moves + result_.rounds) >= options_.max_work) break;
      ++result_.rounds;
      ++stale;
      lowering_.Reset(current);
      lowering_.SetLuck(random_(), kSpreads[Below(std::size(kSpreads))]);
      const double saved_s = lowering_.TakeOut(Ruin());
      lowering_.Lower(std::get<0>(rank) > 0 ? std::numeric_limits<double>::infinity() : kWorseningAllowed * saved_s);
      if (lowering_.is_feasible()) lowering_.CleanUp();
      const Rank reached = RankOf(lowering_.schedule());
      if (reached > rank) continue;
      current = lowering_.schedule();
      if (IsBetter(reached, best_rank_)) {
        best_ = current;
        best_rank_ = reached;
        ++result_.improvements;
        stale = 0;
      }
      rank = reached;
    }
    result_.schedule = best_;
    result_.is_cut_short = effort_.is_cut_short;
    return std::move(result_);
  }

 private:
  // Bytes above the budget, seconds of recompute.
  using Rank = std::tuple<int64_t, double>;

  Rank RankOf(std::span<const OpId> schedule) const {
    const int64_t peak = ComputeLiveness(program_, schedule).peak_bytes;
    return {std::max<int64_t>(0, peak - budget_), CountRecompute(program_, schedule).cost_s};
  }
  static bool IsBetter(const Rank& a, const Rank& b) {
    return std::get<0>(a) < std::get<0>(b) ||
           (std::get<0>(a) == std::get<0>(b) && std::get<1>(a) < std::get<1>(b) * (1 - 1e-9));
  }
  bool IsDone() const {
    return std::get<0>(best_rank_) == 0 && std::get<1>(best_rank_) <= options_.stop_at_cost_s * (1 + 1e-9);
  }
  size_t Below(size_t n) { return static_cast<size_t>(random_() % n); }

  // A run of repeats around a random one, every one of them or each with some luck.
  std::vector<Step> Ruin() {
    std::vector<Step> repeats;
    const Schedule& schedule = lowering_.schedule();
    std::vector<uint8_t> has_run(program_.num_ops(), 0);
    CountSteps(std::ssize(schedule) / 4);
    for (Step t = 0; t < static_cast<Step>(schedule.size()); ++t) {
      if (has_run[schedule[t]]) repeats.push_back(t);
      has_run[schedule[t]] = 1;
    }
    if (repeats.empty()) return {};
    const size_t width = std::min(repeats.size(), size_t{1} << Below(kLargestRuin + 1));
    const size_t first = Below(repeats.size() - width + 1);
    const bool takes_all = Below(2) == 0;
    std::vector<Step> ruin;
    for (size_t i = 0; i < width; ++i) {
      if (takes_all || Below(2) == 0) ruin.push_back(repeats[first + width - 1 - i]);   // the last first
    }
    return ruin;
  }

  static constexpr double kSpreads[] = {0.1, 0.3, 1, 2};
  static constexpr size_t kLargestRuin = 5;           // 2^5 repeats
  static constexpr double kWorseningAllowed = 1.25;   // before the clean-up

  const StepProgram& program_;
  const int64_t budget_;
  const NeighbourhoodOptions options_;
  std::mt19937_64 random_;
  Schedule best_;
  Rank best_rank_;
  MoveCounters counters_;
  Effort effort_;
  Lowering lowering_;
  ImproveResult result_;
};

}  // namespace

ImproveResult SearchNeighbourhood(const StepProgram& program, std::span<const OpId> start, int64_t budget_bytes,
                                  const NeighbourhoodOptions& options) {
  return NeighbourhoodSearch(program, start, budget_bytes, options).Run();
}

}  // namespace coopjax
