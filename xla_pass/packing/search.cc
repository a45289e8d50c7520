#include "packing/search.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "packing/anneal.h"
#include "packing/branch.h"
#include "packing/core.h"
#include "packing/occupancy.h"
#include "packing/stacks.h"

namespace coopjax {
namespace {

constexpr int64_t kFirstSlice = 500'000;         // steps of a round; some rounds have a multiple
constexpr int64_t kGreedySteps = 32;             // a block's placement by a greedy packer counts for so many
constexpr int64_t kMostConflicts = 6'000'000;    // listed at once: 48 bytes each
constexpr int kMostFailures = 3;                 // of one order of preference, at rising capacities
constexpr std::array<double, 4> kHangShares = {0, 3e-5, 3e-4, 3e-3};  // blocks below this share of the goal are hung
constexpr int kManyMembers = 2000;               // in a core of more, hanging comes first
constexpr int kNumRanks = 4;                     // orders of preference before random ones
constexpr int kPlainRounds = 5;                  // of so many the second is without stacks

// 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ..., from n = 1 on: what a search needs varies so much that many short ones and few
// long ones find sooner than either. (M. Luby, A. Sinclair and D. Zuckerman, "Optimal Speedup of Las Vegas
// Algorithms", 1993.)
int64_t LubyTerm(uint64_t n) {
  while (!std::has_single_bit(n + 1)) n -= std::bit_floor(n) - 1;
  return static_cast<int64_t>((n + 1) / 2);
}

// The most bytes of members that are live beside each of them, itself included.
std::vector<int64_t> PressureOfMembers(const PackingCore& core) {
  std::vector<int64_t> live(core.num_sections(), 0);
  for (int32_t s = 0; s < core.num_sections(); ++s) {
    for (const auto& at : core.members_of(s)) live[s] += at.size;
  }
  std::vector<int64_t> pressure(core.size(), 0);
  for (int32_t m = 0; m < core.size(); ++m) {
    for (const auto& at : core.sections_of(m)) pressure[m] = std::max(pressure[m], live[at.index]);
  }
  return pressure;
}

// One core: the search for a packing of it within `goal`, and below what is known.
class CoreSearch {
 public:
  CoreSearch(const PackingCore& core, const PackingSearchOptions& options, SearchEffort* effort)
      : plain_(core), stacks_(StackBlocks(core)), options_(options), effort_(*effort), random_(options.seed + 1) {
    if (std::ssize(stacks_.blocks.blocks) == core.size()) return;
    std::vector<int32_t> all(stacks_.blocks.blocks.size());
    std::iota(all.begin(), all.end(), 0);
    stacked_ = MakePackingCore(stacks_.blocks, all);
  }

  // Lowers the packing in `*offsets`, by member, to `goal` or as far as the effort goes. Returns a bound on the
  // height of the core: equal to the height reached when that is proven.
  int64_t Run(int64_t goal, std::vector<int64_t>* offsets) {
    bound_ = goal;
    height_ = HeightOf(plain_, *offsets);
    for (int round = 0; !IsDone(); ++round) {
      if (options_.branches) BranchDown(round, offsets);
      if (options_.anneals && !IsDone() && (!options_.branches || round % kNumRanks == kNumRanks - 1)) {
        WithSlice(SliceOf(plain_, round),
                  [&] { height_ = AnnealPacking(plain_, bound_, &random_, &effort_, offsets); });
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

  static int64_t SliceOf(const PackingCore& core, int round) {
    return std::max(kFirstSlice, StepsOfWalk(core)) * LubyTerm(1 + round / kNumRanks);
  }

  bool IsDone() const { return height_ <= bound_ || effort_.is_over(); }

  // Asks for the bound itself, then bisects what is between it and the height.
  void BranchDown(int round, std::vector<int64_t>* offsets) {
    const bool is_plain = !stacked_ || round % kPlainRounds == 1;
    const PackingCore& core = is_plain ? plain_ : *stacked_;
    const int64_t slice = SliceOf(core, round);
    const std::vector<int32_t> rank = RankOf(core, round);
    const int first_share = core.size() > kManyMembers ? 1 : 0;
    const double share = kHangShares[(first_share + round + round / kNumRanks) % kHangShares.size()];
    const HungBlocks hung = HangSmall(core, static_cast<int64_t>(share * static_cast<double>(bound_)));
    effort_.Spend(kGreedySteps * kNumPackingOrders * core.size());
    const int64_t first = std::max(bound_, hung.least_capacity);
    if (first >= height_ || Branch(core, {first, rank, hung.below_ceiling}, slice, offsets)) return;
    int64_t stopped_at = first;
    for (int failures = 1; failures < kMostFailures && !IsDone() && stopped_at + 1 < height_;) {
      const int64_t capacity = stopped_at + (height_ - stopped_at) / 2;
      if (Branch(core, {capacity, rank, hung.below_ceiling}, slice, offsets)) {
        stopped_at = std::max(stopped_at, bound_ - 1);  // it may have been a proof
        continue;
      }
      stopped_at = capacity;
      ++failures;
    }
  }

  // False when it is not clear whether there is a packing within the capacity.
  bool Branch(const PackingCore& core, const BranchOptions& branch, int64_t slice, std::vector<int64_t>* offsets) {
    std::vector<int64_t> found;
    BranchOutcome outcome = BranchOutcome::kStopped;
    WithSlice(slice, [&] { outcome = BranchAndBound(core, branch, &effort_, &found); });
    const bool is_proof = outcome == BranchOutcome::kNone && branch.hung.empty() && &core == &plain_;
    if (is_proof) bound_ = branch.capacity + 1;
    if (outcome != BranchOutcome::kFound) return is_proof;
    *offsets = &core == &plain_ ? found : stacks_.Unstack(found);
    height_ = HeightOf(plain_, *offsets);
    return true;
  }

  // Who comes first among blocks that could lie at one offset: those under pressure, the larger or the longer ones
  // first; those of the largest area; the long; after these the last two shuffled a little.
  std::vector<int32_t> RankOf(const PackingCore& core, int round) {
    const bool is_shuffled = round >= kNumRanks;
    const std::vector<int64_t> pressure = round < 2 ? PressureOfMembers(core) : std::vector<int64_t>();
    std::vector<std::pair<double, double>> keys(core.size());
    std::uniform_real_distribution<double> noise(0.5, 1.0);
    for (int32_t m = 0; m < core.size(); ++m) {
      const PackingBlock& block = core.block(m);
      const auto duration = static_cast<double>(block.duration()), size = static_cast<double>(block.size);
      const double area = size * duration, factor = is_shuffled ? noise(random_) : 1.0;
      switch (is_shuffled ? 2 + round % 2 : round) {
        case 0:
          keys[m] = {static_cast<double>(pressure[m]), area};
          break;
        case 1:
          keys[m] = {static_cast<double>(pressure[m]), duration};
          break;
        case 2:
          keys[m] = {area * factor, duration};
          break;
        default:
          keys[m] = {duration * factor, area};
      }
    }
    std::vector<int32_t> order(core.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(), [&](int32_t m) { return keys[m]; });
    std::vector<int32_t> rank(core.size());
    for (int32_t i = 0; i < core.size(); ++i) rank[order[i]] = i;
    return rank;
  }

  const PackingCore& plain_;
  const PackingStacks stacks_;
  std::optional<PackingCore> stacked_;  // of the stacks, if there are any
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
    const int64_t bound = CoreSearch(core, options_, &effort_).Run(goal, &offsets);
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
