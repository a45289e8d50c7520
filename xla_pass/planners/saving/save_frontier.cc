#include "planners/saving/save_frontier.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/min_cut.h"

namespace coopjax {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;   // of a cost
constexpr int64_t kWork = 1'500'000;   // values and ops that the minimum cuts of a frontier may go through together
constexpr int64_t kLeastCuts = 8;
constexpr double kTie = 1e-7;  // of all costs: for all bytes, so that of sets that cost as much the smaller is taken

class FrontierSearch {
 public:
  FrontierSearch(const SavingProblem& problem, const SaveFrontierOptions& options)
      : problem_(problem),
        options_(options),
        producer_(problem.value_bytes.size(), -1),
        is_wanted_(problem.value_bytes.size(), 0),
        answer_(problem.value_bytes.size(), Answer::kOpen) {
    for (int32_t op = 0; op < problem.outputs.num_rows(); ++op) {
      for (int32_t value : problem.outputs[op]) producer_[value] = op;
    }
    for (int32_t value : problem.wanted) is_wanted_[value] = 1;
    for (double cost : problem.op_cost) {
      if (cost < kInfinity) all_cost_ += cost;
    }
    for (int64_t bytes : problem.value_bytes) all_bytes_ += std::max<int64_t>(bytes, 0);
  }

  std::vector<SavedSet> Run() {
    least_ = FewestBytes();
    most_ = LeastCost();
    if (!std::isfinite(least_.cost)) return {};
    gap_ = options_.relative_gap * least_.cost;
    Offer(least_);
    Offer(most_);
    const int64_t step = (most_.bytes - least_.bytes) / options_.max_sets + 1;
    std::vector<SavedSet> found = {most_};
    found.back().least_cost = most_.cost;
    while (found.back().bytes > least_.bytes) {
      SavedSet best = BestWithin(std::max(found.back().bytes - step, least_.bytes));
      if (best.cost > found.back().cost) {
        found.push_back(std::move(best));
      } else {
        found.back() = std::move(best);  // as little in fewer bytes
      }
    }
    std::reverse(found.begin(), found.end());
    return found;
  }

 private:
  enum class Answer : uint8_t { kOpen, kSaved, kNotSaved };

  // What no choice under the answers beats, and the two cuts of the best price: within the limit, and beyond it.
  struct Relaxation {
    double bound = kInfinity;
    SavedSet within, beyond;
    bool is_exact = false;  // `within` is the best choice
  };

  SavedSet BestWithin(int64_t limit) {
    const auto it = std::find_if(sets_.begin(), sets_.end(), [&](const SavedSet& set) { return set.bytes <= limit; });
    best_ = *it;  // there is always the set of the fewest bytes
    for (const SavedSet& set : sets_) {
      if (set.bytes <= limit && IsBetter(set, best_)) best_ = set;
    }
    const int64_t size = static_cast<int64_t>(producer_.size()) + problem_.outputs.num_rows();
    cuts_left_ = std::clamp(kWork / (size * options_.max_sets), kLeastCuts, options_.max_cuts);
    best_.least_cost = std::min(best_.cost, Branch(limit));
    return best_;
  }

  // The least cost that remains possible under the answers so far; improves best_.
  double Branch(int64_t limit) {
    const Relaxation relaxed = Relax(limit);
    if (relaxed.is_exact || relaxed.bound >= best_.cost - gap_ || cuts_left_ <= 0) return relaxed.bound;
    const int32_t value = ToBranchOn(relaxed);
    if (value < 0) return relaxed.bound;
    double least = kInfinity;
    ++depth_;
    for (Answer answer : {Answer::kSaved, Answer::kNotSaved}) {
      answer_[value] = answer;
      least = std::min(least, Branch(limit));
    }
    --depth_;
    answer_[value] = Answer::kOpen;
    return std::max(least, relaxed.bound);
  }

  Relaxation Relax(int64_t limit) {
    Relaxation result;
    result.within = depth_ == 0 ? least_ : FewestBytes();   // with nothing answered, the same for every limit
    if (!std::isfinite(result.within.cost) || result.within.bytes > limit) return result;
    result.beyond = depth_ == 0 ? most_ : LeastCost();
    if (result.beyond.bytes <= limit) {
      result.within = std::move(result.beyond);
      result.is_exact = true;
      result.bound = result.within.cost;
      Take(result.within, limit);
      return result;
    }
    Take(result.within, limit);
    result.bound = result.beyond.cost;
    while (result.bound < best_.cost - gap_ && cuts_left_ > 0) {
      const SavedSet& a = result.within;
      const SavedSet& b = result.beyond;
      const double price = (a.cost - b.cost) / static_cast<double>(b.bytes - a.bytes);
      if (price <= 0) break;
      SavedSet next = Cut(1, price);
      const double line = a.cost + price * static_cast<double>(a.bytes);
      const double value = next.cost + price * static_cast<double>(next.bytes);
      result.bound = std::max(result.bound, value - price * static_cast<double>(limit));
      if (value >= line - kRounding * (1 + line)) break;
      Take(next, limit);
      (next.bytes <= limit ? result.within : result.beyond) = std::move(next);
    }
    return result;
  }

  // The open value of most bytes that is in one of the cuts alone: the knapsack's fraction is among these.
  int32_t ToBranchOn(const Relaxation& relaxed) const {
    std::vector<int32_t> differing;
    std::set_symmetric_difference(relaxed.within.values.begin(), relaxed.within.values.end(),
                                  relaxed.beyond.values.begin(), relaxed.beyond.values.end(),
                                  std::back_inserter(differing));
    int32_t chosen = -1;
    for (int32_t value : differing) {
      if (answer_[value] != Answer::kOpen) continue;
      if (chosen < 0 || problem_.value_bytes[value] > problem_.value_bytes[chosen]) chosen = value;
    }
    return chosen;
  }

  SavedSet FewestBytes() { return Cut(0, 1); }
  SavedSet LeastCost() { return Cut(1, kTie * (all_cost_ + 1) / static_cast<double>(all_bytes_ + 1)); }

  // The choice of the least `cost_weight` * cost + `price` * bytes, among those that the answers allow.
  SavedSet Cut(double cost_weight, double price) {
    --cuts_left_;
    const int32_t num_values = static_cast<int32_t>(producer_.size());
    const int32_t num_ops = problem_.outputs.num_rows();
    const int32_t source = num_values + num_ops, sink = source + 1;
    const double never = 2 * (cost_weight * all_cost_ + price * static_cast<double>(all_bytes_)) + 1;
    MinCut cut(sink + 1);
    for (int32_t value = 0; value < num_values; ++value) {
      if (is_wanted_[value]) cut.AddEdge(source, value, never);
      if (producer_[value] < 0) continue;  // an input of the region
      const double to_save = !MaySave(value) ? never
                             : answer_[value] == Answer::kSaved
                                 ? 0
                                 : price * static_cast<double>(problem_.value_bytes[value]);
      cut.AddEdge(value, num_values + producer_[value], to_save);
    }
    for (int32_t op = 0; op < num_ops; ++op) {
      const double cost = problem_.op_cost[op];
      cut.AddEdge(num_values + op, sink, cost < kInfinity ? cost_weight * cost : never);
      for (int32_t value : problem_.inputs[op]) cut.AddEdge(num_values + op, value, never);
    }
    cut.Solve(source, sink);
    if (options_.is_early) cut.TakeLargestSourceSide(sink);
    SavedSet set;
    for (int32_t op = 0; op < num_ops; ++op) {
      if (cut.IsOnSourceSide(num_values + op)) set.cost += problem_.op_cost[op];
    }
    for (int32_t value = 0; value < num_values; ++value) {
      if (is_wanted_[value] && !cut.IsOnSourceSide(value)) set.cost = kInfinity;
      // One that is answered to be saved counts even where nothing needs it: the bound takes its bytes for spent.
      const bool is_cut =
          producer_[value] >= 0 && cut.IsOnSourceSide(value) && !cut.IsOnSourceSide(num_values + producer_[value]);
      if (!is_cut && answer_[value] != Answer::kSaved) continue;
      if (!MaySave(value)) set.cost = kInfinity;
      set.values.push_back(value);
      set.bytes += problem_.value_bytes[value];
    }
    return set;
  }

  bool MaySave(int32_t value) const { return problem_.value_bytes[value] >= 0 && answer_[value] != Answer::kNotSaved; }

  bool IsBetter(const SavedSet& a, const SavedSet& b) const {
    return std::pair(a.cost, a.bytes) < std::pair(b.cost, b.bytes);
  }

  void Take(const SavedSet& set, int64_t limit) {
    Offer(set);
    if (set.bytes <= limit && IsBetter(set, best_)) best_ = set;
  }

  // Remembers a set for the limits to come.
  void Offer(const SavedSet& set) {
    for (const SavedSet& other : sets_) {
      if (other.bytes <= set.bytes && other.cost <= set.cost) return;
    }
    std::erase_if(sets_, [&](const SavedSet& other) { return other.bytes >= set.bytes && other.cost >= set.cost; });
    sets_.push_back(set);
  }

  const SavingProblem& problem_;
  const SaveFrontierOptions options_;
  std::vector<int32_t> producer_;  // per value; -1 for an input of the region
  std::vector<uint8_t> is_wanted_;
  std::vector<Answer> answer_;  // per value: of the branch under way
  double all_cost_ = 0;
  int64_t all_bytes_ = 0;
  double gap_ = 0;
  std::vector<SavedSet> sets_;  // none worse than another in bytes and in cost
  SavedSet least_, most_;           // of the fewest bytes, and of the least cost
  int depth_ = 0;                   // answers of the branch under way
  SavedSet best_;  // within the limit under way
  int64_t cuts_left_ = 0;
};

}  // namespace

std::vector<SavedSet> SaveFrontier(const SavingProblem& problem, const SaveFrontierOptions& options) {
  return FrontierSearch(problem, options).Run();
}

}  // namespace coopjax
