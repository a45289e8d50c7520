#include "planners/coop/window_search.h"

#include <cmath>
#include <limits>
#include <random>

#include "testing/expect.h"

namespace coopjax {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr Group kAnywhere = {0, 1 << 20, Side::kLow};

std::vector<WindowPiece> Pieces(const std::vector<std::pair<int64_t, double>>& sizes_and_costs) {
  std::vector<WindowPiece> pieces;
  int64_t offset = 0;
  for (const auto& [bytes, cost] : sizes_and_costs) {
    pieces.push_back({offset, bytes, cost, true, false});
    offset += bytes;
  }
  return pieces;
}

std::optional<Window> Cheapest(std::vector<WindowPiece> pieces, int64_t bytes, std::vector<Group> groups) {
  return WindowSearch(std::move(pieces), bytes, [](size_t) { return 0.0; }).Cheapest(groups);
}

TEST(ShrinksTheWindowAfterTheLastPiece) {
  // (size, cost): (4,5) (4,1) (8,1), 8 bytes needed. The last piece alone costs 1; OneFlow's loop ends at cost 2.
  for (Side side : {Side::kLow, Side::kHigh}) {
    const auto window = Cheapest(Pieces({{4, 5}, {4, 1}, {8, 1}}), 8, {{0, 16, side}});
    EXPECT_TRUE(window.has_value());
    EXPECT_EQ(window->cost, 1.0);
    EXPECT_EQ(window->begin, size_t{2});
  }
}

TEST(AnInfiniteCostBreaksTheWindowOnly) {
  const auto pieces = Pieces({{8, kInfinite}, {4, 1}, {4, 1}, {8, std::nan("")}});
  EXPECT_EQ(Cheapest(pieces, 8, {kAnywhere})->cost, 2.0);
  EXPECT_TRUE(!Cheapest(pieces, 9, {kAnywhere}).has_value());
}

TEST(ALargeCostLeavesNoTraceInTheSum) {
  // 1e16 + 0.25 is 1e16: a sum that only adds and subtracts would take the last window for free.
  const auto window = Cheapest(Pieces({{4, 0.25}, {4, 1e16}, {4, 0.5}}), 4, {{0, 12, Side::kHigh}});
  EXPECT_EQ(window->cost, 0.25);
}

TEST(AHoleThatTheGroupTurnsDownIsNoWindow) {
  // A free piece [0, 10) is large enough, but the group wants [20, 40): evicting nothing would not help.
  std::vector<WindowPiece> pieces = Pieces({{10, 0}, {10, 1}, {10, 7}, {10, 9}});
  pieces[0].is_free = true;
  const auto window = Cheapest(pieces, 10, {{20, 40, Side::kLow}});
  EXPECT_EQ(window->cost, 7.0);
  EXPECT_EQ(window->begin, size_t{2});
}

// Every run of pieces, the hole extended by its free neighbours.
double BruteForce(const std::vector<WindowPiece>& pieces, int64_t bytes, const std::vector<Group>& groups) {
  double best = kInfinite;
  for (size_t begin = 0; begin < pieces.size(); ++begin) {
    int64_t size = 0;
    double cost = 0;
    for (size_t end = begin + 1; end <= pieces.size(); ++end) {
      size += pieces[end - 1].bytes;
      cost += pieces[end - 1].cost;
      if (size < bytes || cost >= best) continue;
      const size_t low = begin > 0 && pieces[begin - 1].is_free ? begin - 1 : begin;
      const size_t high = end < pieces.size() && pieces[end].is_free ? end + 1 : end;
      for (const Group& group : groups) {
        if (group.Place(pieces[low].offset, pieces[high - 1].offset + pieces[high - 1].bytes, bytes)) best = cost;
      }
    }
  }
  return best;
}

TEST(FindsTheCheapestOfAllWindows) {
  std::mt19937 random(1);
  int64_t num_asked = 0, num_bounds = 0;
  for (int trial = 0; trial < 30000; ++trial) {
    std::vector<WindowPiece> pieces(1 + random() % 14);
    int64_t offset = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const bool is_free = random() % 4 == 0 && (i == 0 || !pieces[i - 1].is_free);
      const double cost = is_free ? 0 : random() % 7 ? static_cast<double>(random() % 10) : kInfinite;
      pieces[i] = {offset, static_cast<int64_t>(1 + random() % 8), cost, true, is_free};
      offset += pieces[i].bytes;
    }
    const int numbers[] = {1, 2, 3, 4, 6};
    const ArenaGroups made(numbers[random() % 5], offset, 1);
    const auto of_class = made.of(random() % 2 ? CostClass::kCheap : CostClass::kExpensive);
    const std::vector<Group> groups(of_class.begin(), of_class.end());
    const int64_t bytes = static_cast<int64_t>(1 + random() % 20);
    const double expected = BruteForce(pieces, bytes, groups);
    const auto window = Cheapest(pieces, bytes, groups);
    EXPECT_EQ(window ? window->cost : kInfinite, expected);
    // The same with lower bounds in place of some costs.
    std::vector<WindowPiece> bounds = pieces;
    for (WindowPiece& piece : bounds) {
      if (piece.is_free || random() % 3 == 0) continue;
      piece.is_exact = false;
      piece.cost = std::isfinite(piece.cost) ? piece.cost * (random() % 4) / 4 : 1;
      ++num_bounds;
    }
    WindowSearch search(bounds, bytes, [&](size_t i) {
      ++num_asked;
      return pieces[i].cost;
    });
    const auto by_bounds = search.Cheapest(groups);
    EXPECT_EQ(by_bounds ? by_bounds->cost : kInfinite, expected);
  }
  EXPECT_TRUE(num_asked < num_bounds);
}

}  // namespace
}  // namespace coopjax
