#include "planners/saving/save_frontier.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "base/min_cut.h"

namespace coopjax {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;   // of a cost
constexpr int64_t kWork = 800'000;   // nodes that the minimum cuts of a frontier may go through together
constexpr int64_t kLeastCuts = 8;
constexpr int32_t kMany = -2;  // readers
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
    BuildNetwork();
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
    cuts_left_ = std::clamp(kWork / ((sink_ + 1) * int64_t{options_.max_sets}), kLeastCuts, options_.max_cuts);
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

  // What the ops that may run again read, and the one such op that reads a value; kMany where more do.
  void FindReaders() {
    const int32_t num_values = static_cast<int32_t>(producer_.size());
    is_needed_ = is_wanted_;
    reader_.assign(num_values, -1);
    may_run_.assign(problem_.outputs.num_rows(), 0);
    for (int32_t op = problem_.outputs.num_rows() - 1; op >= 0; --op) {
      may_run_[op] = std::ranges::any_of(problem_.outputs[op], [&](int32_t value) { return is_needed_[value]; });
      if (!may_run_[op]) continue;
      for (int32_t value : problem_.inputs[op]) {
        is_needed_[value] = 1;
        reader_[value] = reader_[value] == -1 || reader_[value] == op ? op : kMany;
      }
    }
  }

  // Whether saving what its one reader makes of a value is never worse than saving the value.
  bool IsDominated(int32_t value) const {
    const int32_t op = reader_[value];
    if (is_wanted_[value] || op < 0) return false;
    int32_t made = -1;
    for (int32_t output : problem_.outputs[op]) {
      if (!is_needed_[output]) continue;
      if (made >= 0) return false;
      made = output;
    }
    const int64_t bytes = problem_.value_bytes[value], made_bytes = problem_.value_bytes[made];
    if (made_bytes < 0 || made_bytes > bytes) return false;
    return made_bytes < bytes || !options_.is_early || problem_.op_cost[op] > 0;
  }

  // The group of the ops that run just where this one does: all of it is read by one group, and none can be saved.
  int32_t GroupOf(int32_t op) const {
    int32_t group = -1;
    for (int32_t value : problem_.outputs[op]) {
      if (!is_needed_[value]) continue;
      if (is_savable_[value] || is_wanted_[value] || reader_[value] == kMany) return -1;
      const int32_t readers = group_[reader_[value]];
      if (group >= 0 && group != readers) return -1;
      group = readers;
    }
    return group;
  }

  // One node a group of ops, and one for each value that can be saved; another value is needed just where its op is
  // run.
  void BuildNetwork() {
    const int32_t num_values = static_cast<int32_t>(producer_.size());
    const int32_t num_ops = problem_.outputs.num_rows();
    FindReaders();
    is_savable_.assign(num_values, 0);
    for (int32_t value = 0; value < num_values; ++value) {
      if (producer_[value] < 0 || !is_needed_[value] || problem_.value_bytes[value] < 0 || IsDominated(value)) continue;
      is_savable_[value] = 1;
      savable_.push_back(value);
    }
    group_.assign(num_ops, -1);
    for (int32_t op = num_ops - 1; op >= 0; --op) {
      if (!may_run_[op]) continue;
      group_[op] = GroupOf(op);
      if (group_[op] < 0) group_[op] = static_cast<int32_t>(group_cost_.size()), group_cost_.push_back(0);
      group_cost_[group_[op]] += problem_.op_cost[op];
    }
    int32_t num_nodes = static_cast<int32_t>(group_cost_.size());
    node_.assign(num_values, -1);   // an input of the region is there
    for (int32_t value = 0; value < num_values; ++value) {
      if (producer_[value] < 0 || !is_needed_[value]) continue;
      node_[value] = is_savable_[value] ? num_nodes++ : group_[producer_[value]];
    }
    source_ = num_nodes, sink_ = num_nodes + 1;
    network_ = MinCut(num_nodes + 2);
    for (int32_t value = 0; value < num_values; ++value) {
      if (is_wanted_[value] && node_[value] >= 0) endless_.push_back(network_.AddEdge(source_, node_[value], 0));
    }
    for (int32_t value : savable_) save_edge_.push_back(network_.AddEdge(node_[value], group_[producer_[value]], 0));
    std::set<std::pair<int32_t, int32_t>> reads;
    for (int32_t op = 0; op < num_ops; ++op) {
      if (!may_run_[op]) continue;
      for (int32_t value : problem_.inputs[op]) {
        const std::pair read = {group_[op], node_[value]};
        if (read.second < 0 || read.first == read.second || !reads.insert(read).second) continue;
        endless_.push_back(network_.AddEdge(read.first, read.second, 0));
      }
    }
    // Last, so that flow looks for the sink first.
    for (int32_t group = 0; group < std::ssize(group_cost_); ++group) {
      run_edge_.push_back(network_.AddEdge(group, sink_, 0));
    }
  }

  // The choice of the least `cost_weight` * cost + `price` * bytes, among those that the answers allow.
  SavedSet Cut(double cost_weight, double price) {
    --cuts_left_;
    const double never = 2 * (cost_weight * all_cost_ + price * static_cast<double>(all_bytes_)) + 1;
    for (int32_t edge : endless_) network_.SetCapacity(edge, never);
    for (size_t i = 0; i < savable_.size(); ++i) {
      const int32_t value = savable_[i];
      const double bytes = static_cast<double>(problem_.value_bytes[value]);
      const double to_save = !MaySave(value) ? never : answer_[value] == Answer::kSaved ? 0 : price * bytes;
      network_.SetCapacity(save_edge_[i], to_save);
    }
    for (size_t group = 0; group < group_cost_.size(); ++group) {
      const double cost = group_cost_[group];
      network_.SetCapacity(run_edge_[group], cost < kInfinity ? cost_weight * cost : never);
    }
    network_.SolveAcyclic(source_, sink_);
    if (options_.is_early) network_.TakeLargestSourceSide(sink_);
    SavedSet set;
    for (int32_t op = 0; op < problem_.outputs.num_rows(); ++op) {
      if (may_run_[op] && network_.IsOnSourceSide(group_[op])) set.cost += problem_.op_cost[op];
    }
    for (int32_t value : problem_.wanted) {
      if (node_[value] >= 0 && !network_.IsOnSourceSide(node_[value])) set.cost = kInfinity;
    }
    for (int32_t value : savable_) {
      const bool is_needed = network_.IsOnSourceSide(node_[value]);
      // One that is answered to be saved counts even where nothing needs it: the bound takes its bytes for spent.
      const bool is_cut = is_needed && !network_.IsOnSourceSide(group_[producer_[value]]);
      if (!is_cut && answer_[value] != Answer::kSaved) continue;
      if (!MaySave(value)) set.cost = kInfinity;
      set.values.push_back(value);
      set.bytes += problem_.value_bytes[value];
    }
    return set;
  }

  bool MaySave(int32_t value) const { return answer_[value] != Answer::kNotSaved; }

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
  std::vector<Answer> answer_;      // per value: of the branch under way
  MinCut network_{0};
  int32_t source_ = 0, sink_ = 0;   // the last two nodes
  std::vector<uint8_t> may_run_;    // per op: something needs it, unless it is saved
  std::vector<uint8_t> is_needed_;  // per value: wanted, or read by such an op
  std::vector<int32_t> reader_;     // per value: the one such op that reads it, -1 for none, or `kMany`
  std::vector<uint8_t> is_savable_;  // per value; and not dominated
  std::vector<int32_t> savable_;
  std::vector<int32_t> group_;      // per op that may run: it and others run together or not at all
  std::vector<double> group_cost_;
  std::vector<int32_t> node_;       // per value; -1 for an input of the region, and where nothing needs it
  std::vector<int32_t> save_edge_;  // per entry of `savable_`
  std::vector<int32_t> run_edge_;   // per group
  std::vector<int32_t> endless_;    // edges that no cut may hold
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
