#include "arena.h"

#include <limits>
#include <random>
#include <vector>

#include "testing.h"

namespace coopjax {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

TEST(CoalescesAndFitsBest) {
  Arena arena(100, 10);
  const int64_t a = *arena.Allocate(25, Side::kLow, 1);    // rounded up to 30
  const int64_t b = *arena.Allocate(10, Side::kLow, 2);
  const int64_t c = *arena.Allocate(20, Side::kHigh, 3);
  EXPECT_EQ(a, 0);
  EXPECT_EQ(b, 30);
  EXPECT_EQ(c, 80);
  EXPECT_EQ(arena.free_bytes(), 40);
  arena.Free(a);
  EXPECT_EQ(*arena.Allocate(30, Side::kHigh, 4), 0);       // the hole of 30, not the one of 40
  arena.Free(b);
  EXPECT_TRUE(arena.Fits(50));
  EXPECT_TRUE(!arena.Fits(51));
  EXPECT_EQ(arena.pieces().size(), size_t{3});
}

TEST(HandsAPieceOver) {
  Arena arena(100, 10);
  const int64_t a = *arena.Allocate(50, Side::kLow, 1);
  arena.HandOver(a, 20, 2);
  EXPECT_EQ(arena.free_bytes(), 80);
  EXPECT_EQ(arena.pieces().at(a).owner, 2);
}

TEST(ShrinksTheWindowAfterTheLastPiece) {
  // (size, cost): (4,5) (4,1) (8,1), 8 bytes needed. The last piece alone costs 1; stopping when the right end is
  // reached would leave the window at the first two, cost 6, or the last two, cost 2.
  const std::vector<WindowPiece> pieces = {{4, 5}, {4, 1}, {8, 1}};
  const auto window = CheapestWindow(pieces, 8);
  EXPECT_TRUE(window.has_value());
  EXPECT_EQ(window->cost, 1.0);
  EXPECT_EQ(window->begin, size_t{2});
  EXPECT_EQ(window->end, size_t{3});
}

TEST(AnInfiniteCostBreaksTheWindowOnly) {
  // A value touched this instant has infinite cost; the window of cost 2 behind it must still be found.
  const std::vector<WindowPiece> pieces = {{8, kInfinite}, {4, 1}, {4, 1}, {8, std::numeric_limits<double>::quiet_NaN()}};
  const auto window = CheapestWindow(pieces, 8);
  EXPECT_TRUE(window.has_value());
  EXPECT_EQ(window->cost, 2.0);
  EXPECT_TRUE(!CheapestWindow(pieces, 9).has_value());
}

TEST(FindsTheCheapestOfAllWindows) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<WindowPiece> pieces(1 + random() % 12);
    for (auto& piece : pieces) piece = {static_cast<int64_t>(1 + random() % 8), random() % 6 ? static_cast<double>(random() % 10) : kInfinite};
    const int64_t need = static_cast<int64_t>(1 + random() % 24);
    double best = kInfinite;
    for (size_t begin = 0; begin < pieces.size(); ++begin) {
      int64_t size = 0;
      double cost = 0;
      for (size_t end = begin; end < pieces.size(); ++end) {
        size += pieces[end].bytes;
        cost += pieces[end].cost;
        if (size >= need) best = std::min(best, cost);
      }
    }
    const auto window = CheapestWindow(pieces, need);
    EXPECT_EQ(window ? window->cost : kInfinite, best);
  }
}

TEST(StaysConsistentUnderRandomUse) {
  std::mt19937 random(2);
  Arena arena(1000, 8);
  std::vector<int64_t> offsets;
  for (int step = 0; step < 5000; ++step) {
    if (!offsets.empty() && random() % 2) {
      const size_t i = random() % offsets.size();
      arena.Free(offsets[i]);
      offsets.erase(offsets.begin() + i);
    } else if (const auto offset = arena.Allocate(1 + random() % 90, random() % 2 ? Side::kLow : Side::kHigh, step)) {
      offsets.push_back(*offset);
    }
    int64_t end = 0, free = 0;
    bool was_free = false;
    for (const auto& [offset, piece] : arena.pieces()) {
      EXPECT_EQ(offset, end);
      EXPECT_TRUE(!(was_free && piece.owner == Arena::kFree));
      was_free = piece.owner == Arena::kFree;
      free += was_free ? piece.bytes : 0;
      end = offset + piece.bytes;
    }
    EXPECT_EQ(end, 1000);
    EXPECT_EQ(free, arena.free_bytes());
  }
}

}  // namespace
}  // namespace coopjax
