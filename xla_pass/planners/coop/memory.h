// The arena of a simulated schedule: which piece holds which value, and which values must stay.
#pragma once

#include <cstdint>
#include <vector>

#include "planners/coop/arena.h"
#include "planners/coop/arena_groups.h"
#include "planners/coop/eviction_cost.h"
#include "planners/coop/residency.h"
#include "program/step_program.h"

namespace coopjax {

class CoopMemory {
 public:
  static constexpr Arena::Owner kWorkspace = -2;

  // All must outlive this.
  CoopMemory(const StepProgram& program, Arena arena, Residency* residency, RecomputeCost* recompute);

  const Arena& arena() const { return arena_; }
  Arena& arena() { return arena_; }
  bool has_piece(ValueId v) const { return piece_[v] != Arena::kNoPiece; }
  int64_t offset(ValueId v) const { return arena_.piece(piece_[v]).offset; }

  // `v` is there, in `piece` (kNoPiece: it has no bytes in the arena).
  void Hold(ValueId v, Arena::PieceId piece);
  // `v` is gone; its piece is free.
  void Release(ValueId v);
  // `giver` is gone, for good if `is_lost`, and `taker` gets its piece if that is large enough and `taker`
  // takes bytes from the budget; else the piece is free. Returns what `taker` got: a piece or kNoPiece.
  Arena::PieceId TakeOver(ValueId giver, ValueId taker, bool is_lost);

  // A pinned value is never evicted: the op in flight reads it, or a pending op that waits for its last input.
  void Pin(ValueId v) { ++num_pins_[v]; }
  void Unpin(ValueId v) { --num_pins_[v]; }
  bool is_pinned(ValueId v) const { return num_pins_[v] > 0; }
  int32_t num_pins(ValueId v) const { return num_pins_[v]; }
  // A reserved value has reads by pending recomputes to come: evicted only when nothing else can go.
  void Reserve(ValueId v) { ++num_reserved_[v]; }
  void Unreserve(ValueId v) { --num_reserved_[v]; }
  bool is_reserved(ValueId v) const { return num_reserved_[v] > 0; }
  // Never evicted, whatever happens.
  void Bind(ValueId v) { is_bound_[v] = 1; }
  bool is_bound(ValueId v) const { return is_bound_[v]; }

  bool IsEvictable(Arena::Owner owner, bool spares_reserved) const {
    return owner >= 0 && num_pins_[owner] == 0 && !is_bound_[owner] && !(spares_reserved && is_reserved(owner)) &&
           residency_.CanRemake(owner);
  }

 private:
  void Leave(ValueId v, bool is_lost);

  const StepProgram& program_;
  Arena arena_;
  Residency& residency_;
  RecomputeCost& recompute_;
  std::vector<Arena::PieceId> piece_;
  std::vector<int32_t> num_pins_;
  std::vector<int32_t> num_reserved_;
  std::vector<uint8_t> is_bound_;
};

}  // namespace coopjax
