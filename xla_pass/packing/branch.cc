#include "packing/branch.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace coopjax {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;
constexpr int32_t kLongSection = 64;     // members; in what is longer only the bytes are looked at

class Brancher {
 public:
  Brancher(const PackingCore& core, const BranchOptions& options, SearchEffort* effort)
      : core_(core), capacity_(options.capacity), rank_(options.rank), hung_(options.hung), effort_(*effort) {
    least_.assign(core.size(), 0);
    offsets_.assign(core.size(), kAnyOffset);
    highest_end_.assign(core.size(), capacity_);
    unplaced_bytes_.assign(core.num_sections(), 0);
    ceiling_.assign(core.num_sections(), capacity_);
    failures_.assign(core.num_sections(), 0);
    touched_.assign(core.num_sections() + 1, 0);
    witness_.assign(core.num_sections(), -1);
    by_least_ = core.section_members;
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
      fits_ &= least_[m] + core_.block(m).size <= highest_end_[m];
      Touch(m);
    }
    if (Narrow({0, core_.num_sections()}) && Solve(members)) {
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
  // Sections first .. end - 1.
  struct SectionRange {
    int32_t first;
    int32_t end;
  };
  // Where a member would fit, but does not lie.
  struct Hole {
    int32_t member;
    int64_t offset;
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

  // The sections of `m` are to be looked at: one more from its first on, one less behind its last.
  void Touch(int32_t m) {
    const auto sections = core_.sections_of(m);
    if (sections.empty()) return;
    ++touched_[sections.front().index];
    --touched_[sections.back().index + 1];
  }

  // Raises a least offset, to be undone.
  void Raise(int32_t m, int64_t least) {
    least = core_.LowestFrom(m, least);
    if (least <= least_[m]) return;
    raised_.push_back({m, least_[m]});
    least_[m] = least;
    fits_ &= least + core_.block(m).size <= highest_end_[m];
    Touch(m);
  }

  void UndoTo(size_t mark) {
    for (; raised_.size() > mark; raised_.pop_back()) least_[raised_.back().member] = raised_.back().least;
  }

  // What is touched among the sections is looked at until nothing rises any more. False if they can't hold what is
  // live.
  bool Narrow(const SectionRange& range) {
    while (fits_) {
      changed_.clear();
      int32_t count = 0;
      for (int32_t s = range.first; s < range.end; ++s) {
        count += std::exchange(touched_[s], 0);
        if (count > 0) changed_.push_back(s);
      }
      touched_[range.end] = 0;
      steps_ += (range.end - range.first) / 4;
      if (changed_.empty()) return true;
      for (const int32_t s : changed_) {
        if (NarrowSection(s)) continue;
        ++failures_[s];
        fits_ = false;
        break;
      }
    }
    std::fill(touched_.begin() + range.first, touched_.begin() + range.end + 1, 0);
    fits_ = true;
    return false;
  }

  // Whether the unplaced blocks of a section can be stacked, none below its least offset. One that can't be the lowest
  // of them, because the others would have no room above it, lies on one that can.
  bool NarrowSection(int32_t section) {
    if (unplaced_bytes_[section] == 0) return true;
    const int64_t highest = ceiling_[section] - unplaced_bytes_[section];   // of the lowest
    const std::span members(by_least_.begin() + core_.member_starts[section],
                            by_least_.begin() + core_.member_starts[section + 1]);
    if (std::ssize(members) > kLongSection) return HasLowMember(section, highest);
    SortByLeast(members);
    int64_t top = 0, lowest_top = kNever;
    for (const auto& [m, size] : members) {
      if (!IsUnplaced(m)) continue;
      top = std::max(top, least_[m]) + size;
      if (least_[m] <= highest) lowest_top = std::min(lowest_top, least_[m] + size);
    }
    if (top > ceiling_[section]) return false;
    for (const auto& [m, size] : members) {
      if (IsUnplaced(m) && least_[m] > highest) Raise(m, lowest_top);
    }
    return fits_;
  }

  // The first that is low enough is the section's witness. It stays one when the search steps back.
  bool HasLowMember(int32_t section, int64_t highest) {
    const auto is_low = [&](int32_t m) { return IsUnplaced(m) && least_[m] <= highest; };
    if (witness_[section] >= 0 && is_low(witness_[section])) return true;
    for (const auto& [m, size] : core_.members_of(section)) {
      ++steps_;
      if (!is_low(m)) continue;
      witness_[section] = m;
      return true;
    }
    return false;
  }

  // By insertion: they were sorted when last seen, and few have changed.
  void SortByLeast(std::span<PackingCore::InSection> members) {
    const auto key = [&](int32_t m) { return IsUnplaced(m) ? least_[m] : kAnyOffset; };
    for (size_t i = 1; i < members.size(); ++i) {
      const PackingCore::InSection member = members[i];
      const int64_t least = key(member.index);
      size_t k = i;
      for (; k > 0 && key(members[k - 1].index) > least; --k) members[k] = members[k - 1];
      members[k] = member;
    }
    steps_ += std::ssize(members);
  }

  // At its least offset: what is unplaced and overlaps it lies above it.
  void Put(int32_t m) {
    offsets_[m] = least_[m];
    const auto sections = core_.sections_of(m);
    for (const auto& [section, size] : sections) unplaced_bytes_[section] -= size;
    const auto conflicts = core_.conflicts_of(m);
    steps_ += std::ssize(conflicts) + std::ssize(sections);
    for (const auto& [other, height, other_height] : conflicts) {
      if (IsUnplaced(other)) Raise(other, offsets_[m] + height);
    }
    Touch(m);
  }

  void Take(int32_t m) {
    offsets_[m] = kAnyOffset;
    for (const auto& [section, size] : core_.sections_of(m)) unplaced_bytes_[section] += size;
  }

  // `m` was tried at its least offset in vain: it lies on an unplaced block. False if there is none.
  bool Lift(int32_t m) {
    int64_t least = kNever;
    const auto conflicts = core_.conflicts_of(m);
    steps_ += std::ssize(conflicts);
    for (const auto& [other, height, other_height] : conflicts) {
      if (IsUnplaced(other)) least = std::min(least, least_[other] + other_height);
    }
    if (least == kNever) return false;
    Raise(m, least);
    return true;
  }

  // Whether an unplaced block may yet lie in the way of a member that could be pushed down otherwise.
  bool MayFill(const Hole& hole) {
    const auto conflicts = core_.conflicts_of(hole.member);
    steps_ += std::ssize(conflicts);
    return std::ranges::any_of(conflicts, [&](const auto& conflict) {
      return IsUnplaced(conflict.other) && least_[conflict.other] < hole.offset + conflict.height;
    });
  }

  bool Solve(const std::vector<int32_t>& members) {
    std::vector<int32_t> group;
    int32_t end = std::numeric_limits<int32_t>::min();
    for (const int32_t m : members) {
      if (!group.empty() && core_.block(m).lower >= end) {
        if (!SolveGroup(group)) return false;
        group.clear();
      }
      group.push_back(m);
      end = std::max(end, core_.block(m).upper);
    }
    return group.empty() || SolveGroup(group);
  }

  SectionRange SectionsOf(const std::vector<int32_t>& group) const {
    SectionRange range = {core_.num_sections(), 0};
    for (const int32_t m : group) {
      const auto sections = core_.sections_of(m);
      if (sections.empty()) continue;
      range.first = std::min(range.first, sections.front().index);
      range.end = std::max(range.end, sections.back().index + 1);
    }
    return range;
  }

  // An unplaced member of the group that no other one that overlaps it is below: the lowest of all, or of those around
  // the section that failed most often.
  int32_t Choose(const std::vector<int32_t>& group, const SectionRange& range) {
    int32_t worst = -1, lowest = -1;
    for (int32_t s = range.first; s < range.end; ++s) {
      if (unplaced_bytes_[s] > 0 && failures_[s] > (worst < 0 ? 0 : failures_[worst])) worst = s;
    }
    steps_ += range.end - range.first;
    const auto look_at = [&](int32_t m) {
      ++steps_;
      if (!IsUnplaced(m)) return;
      if (lowest < 0 || std::pair(least_[m], rank_[m]) < std::pair(least_[lowest], rank_[lowest])) lowest = m;
    };
    if (worst < 0) {
      std::ranges::for_each(group, look_at);
      return lowest;
    }
    for (const auto& at : core_.members_of(worst)) look_at(at.index);
    for (int32_t before = -1; before != lowest;) {
      before = lowest;
      for (const auto& conflict : core_.conflicts_of(before)) look_at(conflict.other);
    }
    return lowest;
  }

  bool SolveGroup(const std::vector<int32_t>& group) {
    const size_t mark = raised_.size();
    const SectionRange range = SectionsOf(group);
    steps_ += std::ssize(group);
    std::vector<int32_t> rest;
    std::vector<Hole> holes;
    while (true) {
      if (!effort_.Spend(std::exchange(steps_, 0))) stopped_ = true;
      if (stopped_) break;
      const int32_t m = Choose(group, range);
      const size_t before = raised_.size();
      Put(m);
      if (Narrow(range)) {
        rest.clear();
        std::ranges::copy_if(group, std::back_inserter(rest), [&](int32_t other) { return IsUnplaced(other); });
        if (Solve(rest)) return true;
        for (const int32_t other : rest) {
          if (!IsUnplaced(other)) Take(other);     // a group that was solved beside the one that can't be
        }
      }
      Take(m);
      UndoTo(before);
      holes.push_back({m, least_[m]});
      if (stopped_ || !Lift(m) || !Narrow(range)) break;
      if (!std::ranges::all_of(holes, [&](const Hole& hole) { return MayFill(hole); })) break;
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
  std::vector<int64_t> least_;             // [member]: no lower offset is possible any more
  std::vector<int64_t> offsets_;           // [member]; kAnyOffset while unplaced
  std::vector<int64_t> ceiling_;           // [section]: below what is hung in it
  std::vector<int64_t> unplaced_bytes_;    // [section]
  std::vector<int64_t> failures_;          // [section]: how often it could not hold what is live
  std::vector<int32_t> touched_;           // [section]: by how much more than the one before (Touch)
  std::vector<int32_t> witness_;           // [section]: an unplaced member that can lie low enough, when last seen
  std::vector<PackingCore::InSection> by_least_;   // as core_.section_members: placed ones first, when last sorted
  std::vector<Raised> raised_;
  std::vector<int32_t> changed_;           // sections, while they are looked at
  int64_t steps_ = 0;
  bool fits_ = true;                       // since sections were last looked at, nothing rose too high
  bool stopped_ = false;
};

}  // namespace

BranchOutcome BranchAndBound(const PackingCore& core, const BranchOptions& options, SearchEffort* effort,
                             std::vector<int64_t>* offsets) {
  return Brancher(core, options, effort).Run(offsets);
}

int64_t StepsOfWalk(const PackingCore& core) {
  int64_t num_members = 0;             // of the sections that a block may touch
  for (int32_t s = 0; s < core.num_sections(); ++s) {
    const auto members = std::ssize(core.members_of(s));
    if (members <= kLongSection) num_members += members;
  }
  return core.size() * (3 * int64_t{core.size()} + num_members) + 3 * std::ssize(core.conflicts);
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
