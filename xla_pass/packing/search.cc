#include "packing/search.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <tuple>

#include "packing/anneal.h"
#include "packing/branch.h"
#include "packing/core.h"
#include "packing/occupancy.h"

namespace coopjax {
namespace {

constexpr int64_t kFirstSlice = 3'000'000;       // steps of a round; it grows while rounds fail
constexpr int64_t kGreedySteps = 32;             // a block's placement by a greedy packer counts for so many
constexpr int64_t kMostConflicts = 6'000'000;    // listed at once: 48 bytes each
constexpr int64_t kSlicePerPair = 3;             // of members: one walk down the tree takes about two steps a pair
constexpr int kMostFailures = 3;                 // of one order of preference, at rising capacities
constexpr std::array<double, 4> kHangShares = {0, 3e-5, 3e-4, 3e-3};  // blocks below this share of the goal are hung
constexpr int kManyMembers = 2000;               // in a core of more, hanging comes first
constexpr int kNumRanks = 4;                     // orders of preference before random ones

// One core: the search for a packing of it within `goal`, and below what is known.
class CoreSearch {
 public:
  CoreSearch(const PackingCore& core, std::span<const int64_t> pressure, const PackingSearchOptions& options,
             SearchEffort* effort)
      : core_(core), pressure_(pressure), options_(options), effort_(*effort), random_(options.seed + 1) {}

  // Lowers the packing in `*offsets`, by member, to `goal` or as far as the effort goes. Returns a bound on the
  // height of the core: equal to the height reached when that is proven.
  int64_t Run(int64_t goal, std::vector<int64_t>* offsets) {
    bound_ = goal;
    height_ = HeightOf(core_, *offsets);
    const int64_t num_pairs = int64_t{core_.size()} * core_.size() + std::ssize(core_.conflicts);
    const int64_t first_slice = std::max(kFirstSlice, kSlicePerPair * num_pairs);
    for (int round = 0; !IsDone(); ++round) {
      const int64_t slice = first_slice * (1 + round / kNumRanks);
      if (options_.branches) BranchDown(round, slice, offsets);
      if (options_.anneals && !IsDone() && (!options_.branches || round % kNumRanks == kNumRanks - 1)) {
        WithSlice(slice / 4, [&] { height_ = AnnealPacking(core_, bound_, &random_, &effort_, offsets); });
      }
      if (!options_.branches && !options_.anneals) break;
    }
    return std::min(bound_, height_);
  }

 private:
  template <typename Body>
  void WithSlice(int64_t slice, const Body& body) {
    const int64_t limit = effort_.limit();
    effort_.LimitTo(slice);
    body();
    effort_.RestoreLimit(limit);
  }

  bool IsDone() const { return height_ <= bound_ || effort_.is_over(); }

  // Asks for the bound itself, then bisects what is between it and the height.
  void BranchDown(int round, int64_t slice, std::vector<int64_t>* offsets) {
    const std::vector<int32_t> rank = RankOf(round);
    const int first_share = core_.size() > kManyMembers ? 1 : 0;
    const double share = kHangShares[(first_share + round + round / kNumRanks) % kHangShares.size()];
    const HungBlocks hung = HangSmall(core_, static_cast<int64_t>(share * static_cast<double>(bound_)));
    effort_.Spend(kGreedySteps * kNumPackingOrders * core_.size());
    const int64_t first = std::max(bound_, hung.least_capacity);
    if (first >= height_ || Branch({first, rank, hung.below_ceiling}, slice, offsets)) return;
    int64_t stopped_at = first;
    for (int failures = 1; failures < kMostFailures && !IsDone() && stopped_at + 1 < height_;) {
      const int64_t capacity = stopped_at + (height_ - stopped_at) / 2;
      if (Branch({capacity, rank, hung.below_ceiling}, slice, offsets)) continue;
      stopped_at = capacity;
      ++failures;
    }
  }

  // False when it is not clear whether there is a packing within the capacity.
  bool Branch(const BranchOptions& branch, int64_t slice, std::vector<int64_t>* offsets) {
    std::vector<int64_t> found;
    BranchOutcome outcome = BranchOutcome::kStopped;
    WithSlice(slice, [&] { outcome = BranchAndBound(core_, branch, &effort_, &found); });
    const bool is_proof = outcome == BranchOutcome::kNone && branch.hung.empty();
    if (is_proof) bound_ = branch.capacity + 1;
    if (outcome != BranchOutcome::kFound) return is_proof;
    *offsets = found;
    height_ = HeightOf(core_, found);
    return true;
  }

  // Who comes first among blocks that could lie at one offset: the long, those under pressure, the large; after
  // these the same shuffled a little.
  std::vector<int32_t> RankOf(int round) {
    std::vector<int32_t> order(core_.size());
    std::iota(order.begin(), order.end(), 0);
    std::vector<std::tuple<double, double, double>> keys(core_.size());
    std::uniform_real_distribution<double> noise(0.5, 1.0);
    for (int32_t m = 0; m < core_.size(); ++m) {
      const PackingBlock& block = core_.block(m);
      const auto duration = static_cast<double>(block.duration()), size = static_cast<double>(block.size);
      const double area = size * duration, pressure = static_cast<double>(pressure_[core_.members[m]]);
      const double factor = round < kNumRanks ? 1.0 : noise(random_);
      switch (round % kNumRanks) {
        case 0:
          keys[m] = {pressure * factor, area, duration};
          break;
        case 1:
          keys[m] = {pressure * factor, duration, area};
          break;
        case 2:
          keys[m] = {duration * factor, area, pressure};
          break;
        default:
          keys[m] = {size * factor, duration, pressure};
      }
    }
    std::ranges::stable_sort(order, std::greater<>(), [&](int32_t m) { return keys[m]; });
    std::vector<int32_t> rank(core_.size());
    for (int32_t i = 0; i < core_.size(); ++i) rank[order[i]] = i;
    return rank;
  }

  const PackingCore& core_;
  const std::span<const int64_t> pressure_;
  const PackingSearchOptions& options_;
  SearchEffort& effort_;
  std::mt19937_64 random_;
  int64_t bound_ = 0;                  // no packing is lower, or none need be
  int64_t height_ = 0;
};

class Search {
 public:
  Search(const PackingProblem& problem, const PackingSearchOptions& options)
      : problem_(problem), options_(options), effort_(options.effort), blocks_(MakePackingBlocks(problem)) {}

  PackingSearchResult Run() {
    bound_ = PackingLowerBound(blocks_);
    goal_ = std::max(bound_, problem_.capacity);
    packing_ = BestGreedy();
    if (packing_.heap_bytes > goal_ && (problem_.capacity == kNoCapacity || bound_ <= problem_.capacity)) {
      pressure_ = PressureOfBlocks(blocks_);
      Improve();
    }
    return {packing_, Status(), bound_, effort_.spent()};
  }

 private:
  Packing BestGreedy() {
    constexpr std::array<PackingOrder, kNumPackingOrders> kOrders = {PackingOrder::kDuration, PackingOrder::kSize,
                                                                     PackingOrder::kArea, PackingOrder::kPressure,
                                                                     PackingOrder::kLower};
    Packing best;
    for (const PackingOrder order : kOrders) {
      for (const FitRule rule : {FitRule::kBest, FitRule::kFirst}) {
        Packing packing = PackInOrder(problem_, order, rule);
        if (best.offsets.empty() || packing.heap_bytes < best.heap_bytes) best = std::move(packing);
        const bool may_go_on = effort_.Spend(kGreedySteps * std::ssize(blocks_.blocks));
        if (best.heap_bytes <= goal_ || !may_go_on) return best;
      }
    }
    return best;
  }

  PackingStatus Status() const {
    const bool has_capacity = problem_.capacity != kNoCapacity;
    if (has_capacity && bound_ > problem_.capacity) return PackingStatus::kInfeasible;
    if (packing_.heap_bytes <= bound_) return PackingStatus::kOptimal;
    if (has_capacity && packing_.heap_bytes <= problem_.capacity) return PackingStatus::kFeasible;
    return PackingStatus::kEffortSpent;
  }

  int64_t TopOf(std::span<const int32_t> members) const {
    int64_t top = 0;
    for (const int32_t b : members) top = std::max(top, offsets_[b] + blocks_.blocks[b].size);
    return top;
  }

  // One time component after the other, the highest first: only it decides.
  void Improve() {
    offsets_.resize(blocks_.blocks.size());
    for (size_t b = 0; b < offsets_.size(); ++b) offsets_[b] = packing_.offsets[blocks_.blocks[b].first_buffer];
    std::vector<int32_t> all(blocks_.blocks.size());
    std::iota(all.begin(), all.end(), 0);
    std::vector<std::vector<int32_t>> components = TimeComponents(blocks_, all);
    std::ranges::stable_sort(components, std::greater<>(), [&](const auto& members) { return TopOf(members); });
    for (const auto& members : components) {
      if (TopOf(members) <= goal_ || effort_.is_over()) break;
      ImproveComponent(members);
      goal_ = std::max(goal_, TopOf(members));
    }
    packing_ = PackingOfBlocks(problem_, blocks_, offsets_);
  }

  void ImproveComponent(const std::vector<int32_t>& members) {
    PeeledBlocks peeled;
    if (options_.peels) {
      peeled = PeelBlocks(blocks_, members, goal_);
    } else {
      peeled.hard = members;
    }
    int64_t goal = goal_;
    for (const auto& hard : TimeComponents(blocks_, peeled.hard)) {
      SearchCore(hard, goal);
      goal = std::max(goal, TopOf(hard));
    }
    PlaceEasy(peeled);
  }

  void SearchCore(const std::vector<int32_t>& members, int64_t goal) {
    if (TopOf(members) <= goal || CountConflicts(blocks_, members) > kMostConflicts) return;
    const PackingCore core = MakePackingCore(blocks_, members);
    std::vector<int64_t> offsets;
    for (const int32_t b : core.members) offsets.push_back(offsets_[b]);
    const int64_t bound = CoreSearch(core, pressure_, options_, &effort_).Run(goal, &offsets);
    bound_ = std::max(bound_, bound > goal ? bound : int64_t{0});
    for (int32_t m = 0; m < core.size(); ++m) offsets_[core.members[m]] = offsets[m];
  }

  // Whatever the search has done to the others, there is a gap for each of these.
  void PlaceEasy(const PeeledBlocks& peeled) {
    if (peeled.easy.empty()) return;
    Occupancy occupancy(blocks_);
    for (const int32_t b : peeled.hard) occupancy.Place(b, offsets_[b]);
    for (const int32_t b : peeled.easy) {
      offsets_[b] = occupancy.Find(b, FitRule::kFirst);
      occupancy.Place(b, offsets_[b]);
    }
  }

  const PackingProblem& problem_;
  const PackingSearchOptions& options_;
  SearchEffort effort_;
  const PackingBlocks blocks_;
  std::vector<int64_t> pressure_;      // [block]
  int64_t bound_ = 0;                  // proven
  int64_t goal_ = 0;                   // good enough
  Packing packing_;
  std::vector<int64_t> offsets_;       // [block]
};

}  // namespace

PackingSearchResult SearchPacking(const PackingProblem& problem, const PackingSearchOptions& options) {
  return Search(problem, options).Run();
}

}  // namespace coopjax
