// One address range of fixed size, cut into pieces that are free or owned: what an eager allocator
// sees, and what Coop plans in.
//
// Pieces lie end to end in address order; freed neighbours coalesce at once. Sizes are rounded up to
// the alignment. Allocation is best fit: the smallest free piece that the request's group accepts.
// O(log free pieces) per operation, plus the free pieces that a group turns down.
//
// The last `small_area_bytes` are apart: small requests go there and eviction never scans them, so that
// little values neither cut up the space of the large ones nor cost the search anything.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "planners/coop/arena_groups.h"

namespace coopjax {

class Arena {
 public:
  using Owner = int32_t;
  using PieceId = int32_t;
  static constexpr Owner kFree = -1;
  static constexpr PieceId kNoPiece = -1;
  struct Piece {
    int64_t offset;
    int64_t bytes;
    Owner owner;
    PieceId before;   // by address, inside its area
    PieceId after;
    bool is_free() const { return owner == kFree; }
  };

  // Sizes are rounded down to the alignment.
  Arena(int64_t bytes, int64_t alignment, int64_t small_area_bytes = 0);

  int64_t bytes() const { return bytes_; }
  int64_t free_bytes() const { return free_bytes_; }
  // Where the small area begins: the size of what groups divide and eviction scans.
  int64_t main_bytes() const { return main_bytes_; }
  // The highest address that was ever used, plus one.
  int64_t heap_bytes() const { return heap_bytes_; }
  int64_t Aligned(int64_t bytes) const { return (bytes + alignment_ - 1) / alignment_ * alignment_; }

  // The lowest piece of the main area; kNoPiece in an empty one. The others follow by `after`.
  PieceId first() const { return main_bytes_ > 0 ? 0 : kNoPiece; }
  const Piece& piece(PieceId id) const { return pieces_[id]; }

  // A new piece of `bytes` > 0 where `group` accepts it, or kNoPiece.
  PieceId Allocate(int64_t bytes, const Group& group, Owner owner);
  bool Fits(int64_t bytes, const Group& group) const { return FindHole(Aligned(bytes), group) != kNoPiece; }
  // The same in the small area.
  PieceId AllocateSmall(int64_t bytes, Owner owner);
  void Free(PieceId id);
  // The piece passes to another owner; what it is too large for `bytes` is freed.
  void HandOver(PieceId id, int64_t bytes, Owner owner);

 private:
  using Holes = std::set<std::tuple<int64_t, int64_t, PieceId>>;   // (bytes, offset, id)

  PieceId FindHole(int64_t size, const Group& group) const;
  PieceId Take(PieceId hole, int64_t offset, int64_t size, Owner owner);
  // Cuts an owned piece at `offset`; the id of its upper part, which is free.
  PieceId Split(PieceId id, int64_t offset);
  void Remove(PieceId id);
  Holes& holes(PieceId id) { return pieces_[id].offset < main_bytes_ ? main_holes_ : small_holes_; }

  const int64_t alignment_;
  const int64_t bytes_;
  const int64_t main_bytes_;
  int64_t free_bytes_;
  int64_t heap_bytes_ = 0;
  std::vector<Piece> pieces_;      // by id; the piece at address 0 always has id 0
  std::vector<PieceId> unused_;    // ids to give out again
  Holes main_holes_;
  Holes small_holes_;
};

}  // namespace coopjax
