#include "packing/branch.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace coopjax {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;

class Brancher {
 public:
  Brancher(const PackingCore& core, const BranchOptions& options, SearchEffort* effort)
      : core_(core), capacity_(options.capacity), rank_(options.rank), hung_(options.hung), effort_(*effort) {
    least_.assign(core.size(), 0);
    offsets_.assign(core.size(), kAnyOffset);
    unplaced_bytes_.assign(core.num_sections(), 0);
    witness_.assign(core.num_sections(), -1);
    highest_end_.assign(core.size(), capacity_);
    ceiling_.assign(core.num_sections(), capacity_);
    for (int32_t m = 0; m < core.size(); ++m) {
      for (const auto& [section, size] : core.sections_of(m)) unplaced_bytes_[section] += size;
    }
  }

  BranchOutcome Run(std::vector<int64_t>* offsets) {
    std::vector<int32_t> members;
    for (int32_t m = 0; m < core_.size(); ++m) {
      if (!hung_.empty() && hung_[m] > 0) {
        Hang(m);
      } else {
        members.push_back(m);
      }
    }
    for (const int32_t m : members) {
      least_[m] = core_.LowestFrom(m, 0);
      if (least_[m] + core_.block(m).size > highest_end_[m]) return BranchOutcome::kNone;
    }
    for (int32_t s = 0; s < core_.num_sections(); ++s) {
      if (!FitsSection(s, 0)) return BranchOutcome::kNone;
    }
    if (Solve(members, 0)) {
      *offsets = offsets_;
      return BranchOutcome::kFound;
    }
    return stopped_ ? BranchOutcome::kStopped : BranchOutcome::kNone;
  }

 private:
  // A member whose least offset was raised, and from what.
  struct Raised {
    int32_t member;
    int64_t least;
  };
  struct Candidate {
    int64_t offset;
    int32_t member;
  };

  void Hang(int32_t m) {
    offsets_[m] = (capacity_ - hung_[m]) / core_.block(m).alignment * core_.block(m).alignment;
    for (const auto& [section, size] : core_.sections_of(m)) {
      unplaced_bytes_[section] -= size;
      ceiling_[section] = std::min(ceiling_[section], offsets_[m]);
    }
    for (const auto& conflict : core_.conflicts_of(m)) {
      highest_end_[conflict.other] = std::min(highest_end_[conflict.other], offsets_[m]);
    }
  }

  bool IsUnplaced(int32_t m) const { return offsets_[m] == kAnyOffset; }

  // Whether the unplaced blocks of a section can be stacked from the least of their offsets on: one that can lie
  // low enough is the section's witness. It stays one when the search steps back.
  bool FitsSection(int32_t section, int64_t floor) {
    const int64_t highest = ceiling_[section] - unplaced_bytes_[section];
    const auto is_low = [&](int32_t m) { return IsUnplaced(m) && std::max(least_[m], floor) <= highest; };
    if (witness_[section] >= 0 && is_low(witness_[section])) return true;
    bool is_empty = true;
    for (const auto& [m, size] : core_.members_of(section)) {
      ++steps_;
      is_empty &= !IsUnplaced(m);
      if (!is_low(m)) continue;
      witness_[section] = m;
      return true;
    }
    return is_empty;
  }

  bool FitsSections(int32_t first, int32_t end, int64_t floor) {
    steps_ += end - first;
    for (int32_t s = first; s < end; ++s) {
      if (!FitsSection(s, floor)) return false;
    }
    return true;
  }

  // Raises a least offset, to be undone; false if the block can't lie that high.
  bool Raise(int32_t m, int64_t least) {
    least = core_.LowestFrom(m, least);
    if (least <= least_[m]) return true;
    raised_.push_back({m, least_[m]});
    least_[m] = least;
    return least + core_.block(m).size <= highest_end_[m];
  }

  void UndoTo(size_t mark) {
    for (; raised_.size() > mark; raised_.pop_back()) least_[raised_.back().member] = raised_.back().least;
  }

  // False if a block can't lie above this one.
  bool Put(int32_t m, int64_t offset) {
    offsets_[m] = offset;
    const auto sections = core_.sections_of(m);
    for (const auto& [section, size] : sections) unplaced_bytes_[section] -= size;
    const auto conflicts = core_.conflicts_of(m);
    steps_ += std::ssize(conflicts) + std::ssize(sections);
    for (const auto& [other, height, other_height] : conflicts) {
      if (IsUnplaced(other) && !Raise(other, offset + height)) return false;
    }
    return true;
  }

  void Take(int32_t m) {
    offsets_[m] = kAnyOffset;
    for (const auto& [section, size] : core_.sections_of(m)) unplaced_bytes_[section] += size;
  }

  // `m` was tried at its least offset in vain: it lies on an unplaced block. False if there is none that
  // leaves room for it.
  bool Lift(int32_t m, int64_t floor) {
    int64_t least = kNever;
    const auto conflicts = core_.conflicts_of(m);
    steps_ += std::ssize(conflicts);
    for (const auto& [other, height, other_height] : conflicts) {
      if (IsUnplaced(other)) least = std::min(least, std::max(least_[other], floor) + other_height);
    }
    if (least == kNever || !Raise(m, least)) return false;
    return std::ranges::all_of(core_.sections_of(m), [&](const auto& at) { return FitsSection(at.index, floor); });
  }

  bool Solve(const std::vector<int32_t>& members, int64_t floor) {
    std::vector<int32_t> group;
    int32_t end = std::numeric_limits<int32_t>::min();
    for (const int32_t m : members) {
      if (!group.empty() && core_.block(m).lower >= end) {
        if (!SolveGroup(group, floor)) return false;
        group.clear();
      }
      group.push_back(m);
      end = std::max(end, core_.block(m).upper);
    }
    return group.empty() || SolveGroup(group, floor);
  }

  std::vector<Candidate> CandidatesOf(const std::vector<int32_t>& group, int64_t floor) {
    int64_t least_top = kNever;
    std::vector<Candidate> candidates;
    for (const int32_t m : group) {
      const int64_t offset = core_.LowestFrom(m, std::max(least_[m], floor));
      candidates.push_back({offset, m});
      least_top = std::min(least_top, offset + core_.block(m).size);
    }
    std::erase_if(candidates, [&](const Candidate& candidate) { return candidate.offset >= least_top; });
    steps_ += std::ssize(group);
    return candidates;
  }

  std::pair<int32_t, int32_t> SectionsOf(const std::vector<int32_t>& group) const {
    int32_t first = core_.num_sections(), end = 0;
    for (const int32_t m : group) {
      const auto sections = core_.sections_of(m);
      if (sections.empty()) continue;
      first = std::min(first, sections.front().index);
      end = std::max(end, sections.back().index + 1);
    }
    return {first, end};
  }

  bool SolveGroup(const std::vector<int32_t>& group, int64_t floor) {
    const size_t mark = raised_.size();
    const auto [first, end] = SectionsOf(group);
    std::vector<int32_t> rest;
    std::vector<Candidate> candidates = CandidatesOf(group, floor);
    const auto is_later = [&](const Candidate& a, const Candidate& b) {
      return a.offset != b.offset ? a.offset > b.offset : rank_[a.member] > rank_[b.member];
    };
    std::ranges::make_heap(candidates, is_later);
    while (!candidates.empty()) {
      std::ranges::pop_heap(candidates, is_later);
      const auto [offset, m] = candidates.back();
      candidates.pop_back();
      if (!effort_.Spend(std::exchange(steps_, 0))) stopped_ = true;
      if (stopped_) break;
      if (std::max(least_[m], floor) > offset) continue;   // lifted meanwhile
      const size_t before = raised_.size();
      if (Put(m, offset) && FitsSections(first, end, offset)) {
        rest.clear();
        std::ranges::copy_if(group, std::back_inserter(rest), [&](int32_t other) { return IsUnplaced(other); });
        if (Solve(rest, offset)) return true;
        for (const int32_t other : rest) {
          if (!IsUnplaced(other)) Take(other);     // a group that was solved beside the one that can't be
        }
      }
      Take(m);
      UndoTo(before);
      if (stopped_ || !Lift(m, offset)) break;
    }
    UndoTo(mark);
    return false;
  }

  const PackingCore& core_;
  const int64_t capacity_;
  const std::span<const int32_t> rank_;
  const std::span<const int64_t> hung_;
  SearchEffort& effort_;
  std::vector<int64_t> highest_end_;       // [member]: below what is hung beside it
  std::vector<int64_t> ceiling_;           // [section]: the same
  std::vector<int64_t> least_;             // [member]: no lower offset is possible any more
  std::vector<int64_t> offsets_;           // [member]; kAnyOffset while unplaced
  std::vector<int64_t> unplaced_bytes_;    // [section]
  std::vector<Raised> raised_;
  std::vector<int32_t> witness_;           // [section]: an unplaced member that can lie low enough, when last seen
  int64_t steps_ = 0;
  bool stopped_ = false;
};

}  // namespace

BranchOutcome BranchAndBound(const PackingCore& core, const BranchOptions& options, SearchEffort* effort,
                             std::vector<int64_t>* offsets) {
  return Brancher(core, options, effort).Run(offsets);
}

namespace {

// What is hung and what is not, at the worst section.
int64_t LeastCapacity(const PackingCore& core, std::span<const int64_t> below_ceiling) {
  int64_t least = 0;
  for (int32_t s = 0; s < core.num_sections(); ++s) {
    int64_t hung = 0, others = 0;
    for (const auto& [m, size] : core.members_of(s)) {
      hung = std::max(hung, below_ceiling[m]);
      if (below_ceiling[m] == 0) others += size;
    }
    least = std::max(least, hung + others);
  }
  return least;
}

}  // namespace

HungBlocks HangSmall(const PackingCore& core, int64_t most_bytes) {
  PackingProblem problem;              // upside down: offset 0 is the ceiling, and a block ends where it will begin
  std::vector<int32_t> small;
  for (int32_t m = 0; m < core.size(); ++m) {
    const PackingBlock& block = core.block(m);
    if (block.size > most_bytes || block.end_segment - block.first_segment > 1) continue;
    small.push_back(m);
    problem.buffers.push_back({block.lower, block.upper, AlignUp(block.size, block.alignment), block.alignment});
  }
  HungBlocks best;
  if (small.empty() || std::ssize(small) == core.size() || !core.obstacles.empty()) return best;
  for (int order = 0; order < kNumPackingOrders; ++order) {
    for (const FitRule rule : {FitRule::kBest, FitRule::kFirst}) {
      const Packing packing = PackInOrder(problem, static_cast<PackingOrder>(order), rule);
      std::vector<int64_t> below(core.size(), 0);
      for (size_t k = 0; k < small.size(); ++k) below[small[k]] = packing.offsets[k] + problem.buffers[k].size;
      const int64_t least = LeastCapacity(core, below);
      if (!best.below_ceiling.empty() && least >= best.least_capacity) continue;
      best = {std::move(below), least};
    }
  }
  return best;
}

}  // namespace coopjax
