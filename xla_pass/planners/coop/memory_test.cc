#include "planners/coop/memory.h"

#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

constexpr ValueId kA = 1, kB = 2, kC = 3, kOut = 4;
constexpr Group kWhole = {0, 128, Side::kLow};

// x -> a (64) -> b (64); c (32) and an output of 16 are made from a too. The arena has 128 bytes.
StepProgram Program() {
  testing::ProgramBuilder builder;
  const ValueId a = builder.Op({.inputs = {builder.Given(1)}, .output_bytes = {64}});
  builder.Op({.inputs = {a}, .output_bytes = {64}});
  builder.Op({.inputs = {a}, .output_bytes = {32}});
  builder.Op({.inputs = {a}, .output_bytes = {16}, .kind = ValueKind::kOutput});
  return builder.program();
}

struct Simulated {
  // `v` is made, in a piece of its own.
  void Make(ValueId v) { memory.Hold(v, memory.arena().Allocate(program.value_bytes[v], kWhole, v)); }

  StepProgram program = Program();
  Residency residency{program};
  RecomputeCost recompute{program, residency, CostRule::kOwn};
  CoopMemory memory{program, Arena(128, 16), &residency, &recompute};
};

TEST(WhatIsHeldIsThereUntilItIsReleased) {
  Simulated s;
  s.Make(kA);
  EXPECT_TRUE(s.memory.has_piece(kA) && s.residency.is_resident(kA));
  s.Make(kB);
  EXPECT_EQ(s.memory.offset(kB), 64);
  EXPECT_EQ(s.memory.arena().free_bytes(), 0);
  s.memory.Release(kA);
  EXPECT_TRUE(!s.memory.has_piece(kA) && !s.residency.is_resident(kA) && s.residency.is_made(kA));
  EXPECT_EQ(s.memory.arena().free_bytes(), 64);
  s.memory.Hold(kOut, Arena::kNoPiece);   // there, but not in the arena
  EXPECT_TRUE(!s.memory.has_piece(kOut) && s.residency.is_resident(kOut));
}

TEST(PinsAndReservationsAreCounted) {
  Simulated s;
  s.Make(kA);
  EXPECT_TRUE(s.memory.IsEvictable(kA, /*spares_reserved=*/true));
  s.memory.Pin(kA);
  s.memory.Pin(kA);
  s.memory.Unpin(kA);
  EXPECT_EQ(s.memory.num_pins(kA), 1);
  EXPECT_TRUE(!s.memory.IsEvictable(kA, /*spares_reserved=*/false));
  s.memory.Unpin(kA);
  s.memory.Reserve(kA);
  EXPECT_TRUE(!s.memory.IsEvictable(kA, /*spares_reserved=*/true));
  EXPECT_TRUE(s.memory.IsEvictable(kA, /*spares_reserved=*/false));
  s.memory.Unreserve(kA);
  EXPECT_TRUE(s.memory.IsEvictable(kA, /*spares_reserved=*/true));
  s.memory.Bind(kA);
  EXPECT_TRUE(!s.memory.IsEvictable(kA, /*spares_reserved=*/false));
}

TEST(OnlyValuesThatCanComeBackAreEvictable) {
  Simulated s;
  s.Make(kA);
  s.Make(kB);
  EXPECT_TRUE(!s.memory.IsEvictable(Arena::kFree, false) && !s.memory.IsEvictable(CoopMemory::kWorkspace, false));
  EXPECT_TRUE(s.memory.IsEvictable(kB, /*spares_reserved=*/false));
  s.memory.TakeOver(kA, kC, /*is_lost=*/true);   // b can't be made again without a
  EXPECT_TRUE(!s.memory.IsEvictable(kB, /*spares_reserved=*/false));
}

// 64 bytes are enough for b's 64, and for c's 32, when the rest is freed; 32 are not enough for b.
TEST(APieceGoesToWhomItIsLargeEnoughFor) {
  Simulated s;
  s.Make(kA);
  const Arena::PieceId piece = s.memory.TakeOver(kA, kC, /*is_lost=*/false);
  EXPECT_TRUE(piece != Arena::kNoPiece);
  EXPECT_EQ(s.memory.arena().piece(piece).owner, kC);
  EXPECT_EQ(s.memory.arena().free_bytes(), 128 - 32);
  EXPECT_TRUE(s.residency.is_made(kA) && !s.residency.is_resident(kA));
  s.memory.Hold(kC, piece);
  EXPECT_EQ(s.memory.TakeOver(kC, kB, /*is_lost=*/false), Arena::kNoPiece);
  EXPECT_EQ(s.memory.arena().free_bytes(), 128);
  s.Make(kA);
  EXPECT_TRUE(s.memory.TakeOver(kA, kB, /*is_lost=*/false) == piece);
  s.memory.Hold(kB, piece);
  EXPECT_EQ(s.memory.TakeOver(kB, kOut, /*is_lost=*/false), Arena::kNoPiece);   // outputs lie elsewhere
  EXPECT_EQ(s.memory.arena().free_bytes(), 128);
}

}  // namespace
}  // namespace coopjax
