#include "planners/improve/exchange_knapsack.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "base/allowance.h"

namespace coopjax {
namespace {

constexpr double kFirstTemperature = 1.0;    // over the median seconds of an item
constexpr double kLastTemperature = 0.05;
constexpr double kPenalty = 1;               // of a byte too many, over what a byte costs: to begin with
constexpr double kRise = 1.02;               // of the penalty, per stretch that ends above the room
constexpr double kLeastGain = 1e-9;

class Annealing {
 public:
  Annealing(const std::vector<ExchangeItem>& items, const std::vector<double>& room, std::mt19937_64* random)
      : items_(items), random_(*random), is_in_(items.size(), 0) {
    KeepRows(room);
    std::vector<double> seconds, rates;
    for (const ExchangeItem& item : items) {
      double most = 0;
      for (double bytes : item.bytes) most = std::max(most, std::abs(bytes));
      if (item.gain_s == 0) continue;
      seconds.push_back(std::abs(item.gain_s));
      if (most > 0) rates.push_back(std::abs(item.gain_s) / most);
    }
    overflow_ = Overflow();
    unit_s_ = Median(&seconds);
    penalty_ = kPenalty * Median(&rates);
  }

  ExchangeChoice Run(int64_t flips) {
    const double cooling = std::log(kLastTemperature / kFirstTemperature) / static_cast<double>(flips);
    double temperature = kFirstTemperature * unit_s_;
    for (int64_t i = 0; i < flips; ++i) {
      CountSteps(2 + std::ssize(free_) / 8);
      if (i % kStretch == 0) {
        temperature = kFirstTemperature * unit_s_ * std::exp(cooling * static_cast<double>(i));
        penalty_ *= overflow_ > 0 ? kRise : 1 / kRise;   // about half of the sets that are met should fit
      }
      Flip(static_cast<int32_t>(random_() % items_.size()), temperature);
    }
    return std::move(best_);
  }

 private:
  // Takes over the rows that can overflow, one of those that are alike: layers make many alike.
  void KeepRows(const std::vector<double>& room) {
    std::map<std::vector<double>, double> rows;   // what each item takes, and the least room for it
    for (size_t k = 0; k < room.size(); ++k) {
      std::vector<double> row;
      double most = 0;
      for (const ExchangeItem& item : items_) {
        row.push_back(item.bytes[k]);
        most += std::max(item.bytes[k], 0.0);
      }
      if (most <= room[k]) continue;
      const auto [known, is_new] = rows.emplace(std::move(row), room[k]);
      if (!is_new) known->second = std::min(known->second, room[k]);
    }
    bytes_.resize(items_.size() * rows.size());
    for (const auto& [row, least] : rows) {
      for (size_t i = 0; i < items_.size(); ++i) bytes_[i * rows.size() + free_.size()] = row[i];
      free_.push_back(least);
    }
  }

  static double Median(std::vector<double>* numbers) {
    if (numbers->empty()) return 0;
    const auto middle = numbers->begin() + static_cast<int64_t>(numbers->size() / 2);
    std::nth_element(numbers->begin(), middle, numbers->end());
    return *middle;
  }

  double Uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  double Overflow() const {
    std::array<double, 4> most = {};   // lanes: one maximum would wait for itself at every row
    size_t k = 0;
    for (; k + most.size() <= free_.size(); k += most.size()) {
      for (size_t lane = 0; lane < most.size(); ++lane) most[lane] = std::max(most[lane], -free_[k + lane]);
    }
    for (; k < free_.size(); ++k) most[0] = std::max(most[0], -free_[k]);
    return *std::ranges::max_element(most);
  }

  // Puts an item in, or takes it out.
  void Turn(int32_t item) {
    CountSteps(1 + std::ssize(free_) / 8);
    const double sign = is_in_[item] ? 1 : -1;
    const double* bytes = bytes_.data() + static_cast<size_t>(item) * free_.size();
    for (size_t k = 0; k < free_.size(); ++k) free_[k] += sign * bytes[k];
    gain_s_ -= sign * items_[item].gain_s;
    is_in_[item] ^= 1;
  }

  // Turns an item, which pushes out those that it excludes; takes it back if luck says so.
  void Flip(int32_t item, double temperature) {
    const double before_s = gain_s_, overflow_before = overflow_;
    turned_.assign(1, item);
    if (!is_in_[item]) {
      for (int32_t other : items_[item].conflicts) {
        if (is_in_[other]) turned_.push_back(other);
      }
    }
    free_before_ = free_;
    for (size_t i = turned_.size(); i-- > 0;) Turn(turned_[i]);
    overflow_ = Overflow();
    const double worse_s = before_s - gain_s_ + penalty_ * (overflow_ - overflow_before);
    if (worse_s > 0 && Uniform() >= std::exp(-worse_s / temperature)) {
      CountSteps(std::ssize(turned_) * (1 + std::ssize(free_) / 8));
      free_.swap(free_before_);
      for (int32_t other : turned_) is_in_[other] ^= 1;
      gain_s_ = before_s;
      overflow_ = overflow_before;
      return;
    }
    if (overflow_ <= 0) Keep();
  }

  void Keep() {
    const bool is_better = gain_s_ > best_.gain_s + kLeastGain * unit_s_;
    if (gain_s_ < best_.gain_s - kLeastGain * unit_s_) return;
    num_ties_ = is_better || best_.items.empty() ? 1 : num_ties_ + 1;
    if (random_() % num_ties_ != 0) return;
    std::vector<int32_t> chosen;
    for (int32_t i = 0; i < static_cast<int32_t>(items_.size()); ++i) {
      if (is_in_[i]) chosen.push_back(i);
    }
    if (chosen.empty()) return;
    best_ = {std::move(chosen), gain_s_};
  }

  static constexpr int64_t kStretch = 64;

  const std::vector<ExchangeItem>& items_;
  std::mt19937_64& random_;
  std::vector<uint8_t> is_in_;
  std::vector<double> bytes_;   // per item and row
  std::vector<double> free_;    // per row
  std::vector<double> free_before_;
  std::vector<int32_t> turned_;
  double unit_s_ = 0, penalty_ = 0;
  double gain_s_ = 0, overflow_ = 0;
  uint64_t num_ties_ = 0;
  ExchangeChoice best_;
};

}  // namespace

ExchangeChoice ChooseExchange(const std::vector<ExchangeItem>& items, const std::vector<double>& room, int64_t flips,
                              std::mt19937_64* random) {
  if (items.empty()) return {};
  return Annealing(items, room, random).Run(flips);
}

}  // namespace coopjax
