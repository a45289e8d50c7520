#include "packing/anneal.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace coopjax {
namespace {

constexpr double kFirstTemperature = 0.3;    // of the mean block size
constexpr double kLastTemperature = 0.003;

class Annealer {
 public:
  Annealer(const PackingCore& core, int64_t capacity, std::mt19937_64* random, SearchEffort* effort,
           std::vector<int64_t>* best)
      : core_(core), capacity_(capacity), random_(*random), effort_(*effort), best_(*best) {
    order_.resize(core.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::stable_sort(order_, {}, [&](int32_t m) { return best_[m]; });
    position_.resize(core.size());
    for (int32_t i = 0; i < core.size(); ++i) position_[order_[i]] = i;
    offsets_.assign(core.size(), 0);
    is_dirty_.assign(core.size(), 1);
    tall_index_.assign(core.size(), -1);
    for (int32_t m = 0; m < core.size(); ++m) mean_size_ += static_cast<double>(core.block(m).size) / core.size();
    DropFrom(0);
  }

  int64_t Run() {
    int64_t height = HeightOf(core_, best_);
    KeepIfLower(&height);
    const int64_t first = effort_.spent(), steps = effort_.limit() - first;
    while (height > capacity_ && !tall_.empty() && effort_.Spend(std::exchange(steps_, 1))) {
      const double progress = static_cast<double>(effort_.spent() - first) / static_cast<double>(steps);
      const double temperature =
          mean_size_ * kFirstTemperature * std::pow(kLastTemperature / kFirstTemperature, progress);
      const double before = excess_;
      if (!Move()) continue;
      if (excess_ > before && Uniform() >= std::exp((before - excess_) / temperature)) {
        Undo();
      } else if (excess_ < lowest_excess_) {
        lowest_excess_ = excess_;
        KeepIfLower(&height);
      }
    }
    return height;
  }

 private:
  struct Changed {
    int32_t member;
    int64_t offset;                    // before
  };

  double Uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  int32_t Below(size_t n) { return static_cast<int32_t>(random_() % n); }

  void KeepIfLower(int64_t* height) {
    const int64_t reached = HeightOf(core_, offsets_);
    if (reached >= *height) return;
    *height = reached;
    best_ = offsets_;
  }

  // The lowest offset above all that come before `m` and overlap it.
  int64_t Drop(int32_t m) {
    int64_t offset = 0;
    const auto conflicts = core_.conflicts_of(m);
    steps_ += std::ssize(conflicts);
    for (const auto& [other, height, other_height] : conflicts) {
      if (position_[other] < position_[m]) offset = std::max(offset, offsets_[other] + other_height);
    }
    return core_.LowestFrom(m, offset);
  }

  int64_t Excess(int32_t m) const { return std::max<int64_t>(0, offsets_[m] + core_.block(m).size - capacity_); }

  void SetOffset(int32_t m, int64_t offset) {
    excess_ -= static_cast<double>(Excess(m));
    offsets_[m] = offset;
    const int64_t excess = Excess(m);
    excess_ += static_cast<double>(excess);
    if (excess > 0 && tall_index_[m] < 0) {
      tall_index_[m] = static_cast<int32_t>(tall_.size());
      tall_.push_back(m);
    } else if (excess == 0 && tall_index_[m] >= 0) {
      tall_[tall_index_[m]] = tall_.back();
      tall_index_[tall_.back()] = tall_index_[m];
      tall_.pop_back();
      tall_index_[m] = -1;
    }
  }

  // Drops the dirty blocks again, and those that rest on what has moved.
  void DropFrom(int32_t position) {
    for (int32_t i = position; i < core_.size(); ++i) {
      const int32_t m = order_[i];
      if (!is_dirty_[m]) continue;
      is_dirty_[m] = 0;
      const int64_t offset = Drop(m);
      if (offset == offsets_[m] && !is_first_drop_) continue;
      changed_.push_back({m, offsets_[m]});
      SetOffset(m, offset);
      for (const auto& conflict : core_.conflicts_of(m)) {
        if (position_[conflict.other] > i) is_dirty_[conflict.other] = 1;
      }
    }
    steps_ += core_.size() - position;
    is_first_drop_ = false;
  }

  // What `m` rests on: -1 for the floor.
  int32_t SupportOf(int32_t m) {
    const auto conflicts = core_.conflicts_of(m);
    steps_ += std::ssize(conflicts);
    int32_t support = -1, count = 0;
    for (const auto& [other, height, other_height] : conflicts) {
      if (position_[other] > position_[m]) continue;
      if (core_.LowestFrom(m, offsets_[other] + other_height) != offsets_[m]) continue;
      if (Below(++count) == 0) support = other;
    }
    return support;
  }

  // Moves a block of a chain below a tall one to the place of what it rests on, or that one behind it.
  bool Move() {
    int32_t upper = tall_[Below(tall_.size())];
    int32_t lower = SupportOf(upper);
    while (lower >= 0 && Below(4) != 0) {
      const int32_t next = SupportOf(lower);
      if (next < 0) break;
      upper = lower;
      lower = next;
    }
    if (lower < 0) return false;
    from_ = Below(2) ? position_[upper] : position_[lower];
    to_ = from_ == position_[upper] ? position_[lower] : position_[upper];
    changed_.clear();
    Shift(from_, to_);
    const int32_t moved = order_[to_];
    is_dirty_[moved] = 1;
    const auto [first, last] = std::minmax(from_, to_);
    for (const auto& conflict : core_.conflicts_of(moved)) {
      if (first <= position_[conflict.other] && position_[conflict.other] <= last) is_dirty_[conflict.other] = 1;
    }
    DropFrom(first);
    return true;
  }

  void Shift(int32_t from, int32_t to) {
    const auto begin = order_.begin();
    if (from < to) {
      std::rotate(begin + from, begin + from + 1, begin + to + 1);
    } else {
      std::rotate(begin + to, begin + from, begin + from + 1);
    }
    for (int32_t i = std::min(from, to); i <= std::max(from, to); ++i) position_[order_[i]] = i;
  }

  void Undo() {
    Shift(to_, from_);
    for (; !changed_.empty(); changed_.pop_back()) SetOffset(changed_.back().member, changed_.back().offset);
  }

  const PackingCore& core_;
  const int64_t capacity_;
  std::mt19937_64& random_;
  SearchEffort& effort_;
  std::vector<int64_t>& best_;
  std::vector<int32_t> order_;         // members, as they are dropped
  std::vector<int32_t> position_;      // [member] in it
  std::vector<int64_t> offsets_;
  std::vector<uint8_t> is_dirty_;      // [member]: to be dropped again
  std::vector<int32_t> tall_;          // members that top out above the capacity
  std::vector<int32_t> tall_index_;    // [member] in it, or -1
  std::vector<Changed> changed_;       // by the last move
  int32_t from_ = 0, to_ = 0;          // the last move
  double mean_size_ = 0;
  double excess_ = 0;                  // bytes of all blocks above the capacity
  double lowest_excess_ = INFINITY;
  int64_t steps_ = 1;
  bool is_first_drop_ = true;
};

}  // namespace

int64_t HeightOf(const PackingCore& core, std::span<const int64_t> offsets) {
  int64_t height = 0;
  for (int32_t m = 0; m < core.size(); ++m) height = std::max(height, offsets[m] + core.block(m).size);
  return height;
}

int64_t AnnealPacking(const PackingCore& core, int64_t capacity, std::mt19937_64* random, SearchEffort* effort,
                      std::vector<int64_t>* offsets) {
  return Annealer(core, capacity, random, effort, offsets).Run();
}

}  // namespace coopjax
