#include "planners/coop/arena.h"

#include <random>
#include <vector>

#include "testing/expect.h"

namespace coopjax {
namespace {

constexpr Group kLow = {0, 1000, Side::kLow};
constexpr Group kHigh = {0, 1000, Side::kHigh};

int64_t Offset(const Arena& arena, Arena::PieceId id) { return arena.piece(id).offset; }

TEST(CoalescesAndFitsBest) {
  Arena arena(100, 10);
  const Group low = {0, 100, Side::kLow}, high = {0, 100, Side::kHigh};
  const auto a = arena.Allocate(25, low, 1);    // rounded up to 30
  const auto b = arena.Allocate(10, low, 2);
  const auto c = arena.Allocate(20, high, 3);
  EXPECT_EQ(Offset(arena, a), 0);
  EXPECT_EQ(Offset(arena, b), 30);
  EXPECT_EQ(Offset(arena, c), 80);
  EXPECT_EQ(arena.free_bytes(), 40);
  EXPECT_EQ(arena.heap_bytes(), 100);
  arena.Free(a);
  EXPECT_EQ(Offset(arena, arena.Allocate(30, high, 4)), 0);   // the hole of 30, not the one of 40
  arena.Free(b);
  EXPECT_TRUE(arena.Fits(50, low));
  EXPECT_TRUE(!arena.Fits(51, low));
}

TEST(HandsAPieceOver) {
  Arena arena(100, 10);
  const auto a = arena.Allocate(50, kLow, 1);
  arena.HandOver(a, 20, 2);
  EXPECT_EQ(arena.free_bytes(), 80);
  EXPECT_EQ(arena.piece(a).owner, 2);
  EXPECT_EQ(arena.piece(a).bytes, 20);
}

TEST(SmallPiecesLieApart) {
  // 100 bytes, the last 20 for small requests. A free neighbour across the border is not joined.
  Arena arena(100, 10, 20);
  EXPECT_EQ(arena.main_bytes(), 80);
  const auto small = arena.AllocateSmall(5, 1);
  EXPECT_EQ(Offset(arena, small), 80);
  EXPECT_TRUE(arena.Fits(80, {0, 80, Side::kLow}) && !arena.Fits(81, {0, 80, Side::kLow}));
  EXPECT_TRUE(arena.AllocateSmall(11, 2) == Arena::kNoPiece);   // 20 are wanted, 10 are left
  EXPECT_EQ(arena.piece(arena.first()).bytes, 80);              // what eviction scans
  EXPECT_EQ(arena.piece(arena.first()).after, Arena::kNoPiece);
  arena.Free(small);
  EXPECT_TRUE(arena.Fits(80, {0, 80, Side::kLow}) && !arena.Fits(90, {0, 80, Side::kLow}));
}

TEST(StaysConsistentUnderRandomUse) {
  std::mt19937 random(2);
  Arena arena(1000, 8);
  std::vector<Arena::PieceId> owned;
  for (int step = 0; step < 5000; ++step) {
    if (!owned.empty() && random() % 2) {
      const size_t i = random() % owned.size();
      arena.Free(owned[i]);
      owned.erase(owned.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      const auto id = arena.Allocate(static_cast<int64_t>(1 + random() % 90), random() % 2 ? kLow : kHigh, step);
      if (id != Arena::kNoPiece) owned.push_back(id);
    }
    int64_t end = 0, free = 0;
    bool was_free = false;
    for (auto id = arena.first(); id != Arena::kNoPiece; id = arena.piece(id).after) {
      const Arena::Piece& piece = arena.piece(id);
      EXPECT_EQ(piece.offset, end);
      EXPECT_TRUE(!(was_free && piece.is_free()));
      was_free = piece.is_free();
      free += was_free ? piece.bytes : 0;
      end = piece.offset + piece.bytes;
    }
    EXPECT_EQ(end, 1000);
    EXPECT_EQ(free, arena.free_bytes());
  }
}

}  // namespace
}  // namespace coopjax
