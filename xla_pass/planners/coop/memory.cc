#include "planners/coop/memory.h"

#include <utility>

namespace coopjax {

CoopMemory::CoopMemory(const StepProgram& program, Arena arena, Residency* residency, RecomputeCost* recompute)
    : program_(program),
      arena_(std::move(arena)),
      residency_(*residency),
      recompute_(*recompute),
      piece_(program.num_values(), Arena::kNoPiece),
      num_pins_(program.num_values(), 0),
      num_reserved_(program.num_values(), 0),
      is_bound_(program.num_values(), 0) {}

void CoopMemory::Hold(ValueId v, Arena::PieceId piece) {
  piece_[v] = piece;
  if (residency_.is_resident(v)) return;
  residency_.SetResident(v);
  recompute_.OnResident(v);
}

void CoopMemory::Leave(ValueId v, bool is_lost) {
  piece_[v] = Arena::kNoPiece;
  const bool was_resident = residency_.is_resident(v);
  if (is_lost) {
    residency_.SetLost(v);
  } else {
    residency_.SetEvicted(v);
  }
  if (was_resident && program_.value_producer[v] != kNoOp) recompute_.OnEvicted(v);
}

void CoopMemory::Release(ValueId v) {
  if (has_piece(v)) arena_.Free(piece_[v]);
  Leave(v, /*is_lost=*/false);
}

Arena::PieceId CoopMemory::TakeOver(ValueId giver, ValueId taker, bool is_lost) {
  const Arena::PieceId piece = piece_[giver];
  Leave(giver, is_lost);
  if (piece == Arena::kNoPiece) return piece;
  const int64_t bytes = program_.value_bytes[taker];
  if (program_.takes_budget(taker) && bytes > 0 && arena_.Aligned(bytes) <= arena_.piece(piece).bytes) {
    arena_.HandOver(piece, bytes, taker);
    return piece;
  }
  arena_.Free(piece);
  return Arena::kNoPiece;
}

}  // namespace coopjax
