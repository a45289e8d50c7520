// A knapsack with several capacities, conflicts and items that give room as well as take it, by annealing.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace coopjax {

struct ExchangeItem {
  double gain_s = 0;               // seconds saved; below 0 for an item that pays for room
  std::vector<double> bytes;       // taken at each watched step; below 0: given
  std::vector<int32_t> conflicts;  // items that exclude this one
};

struct ExchangeChoice {
  std::vector<int32_t> items;      // ascending
  double gain_s = 0;
};

// The set without conflicts that gains most, of those that take at most `room` at every watched step; the empty set
// gains nothing. `flips` items are flipped in turn, so O(flips * watched steps). Sets that gain as much are all as
// likely, but for the empty one, which is the last resort.
ExchangeChoice ChooseExchange(const std::vector<ExchangeItem>& items, const std::vector<double>& room, int64_t flips,
                              std::mt19937_64* random);

}  // namespace coopjax
