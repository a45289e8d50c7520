// One address range of fixed size, cut into pieces that are free or owned: what an eager allocator
// sees, and what Coop plans in.
//
// Pieces lie end to end in address order; freed neighbours coalesce at once. Sizes are rounded up to
// the alignment. Allocation is best fit: the smallest free piece that fits, the request put at its low
// or high end. O(log pieces) per operation.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

namespace coopjax {

enum class Side : uint8_t { kLow, kHigh };

class Arena {
 public:
  using Owner = int32_t;
  static constexpr Owner kFree = -1;
  struct Piece {
    int64_t bytes;
    Owner owner;
  };

  Arena(int64_t bytes, int64_t alignment);

  int64_t bytes() const { return bytes_; }
  int64_t free_bytes() const { return free_bytes_; }
  // Whole arena from low to high addresses: offset -> piece.
  const std::map<int64_t, Piece>& pieces() const { return pieces_; }
  int64_t Aligned(int64_t bytes) const { return (bytes + alignment_ - 1) / alignment_ * alignment_; }
  bool Fits(int64_t bytes) const { return !free_.empty() && free_.rbegin()->first >= Aligned(bytes); }

  // The offset of a new piece of `bytes` > 0, or nothing when no free piece is large enough.
  std::optional<int64_t> Allocate(int64_t bytes, Side side, Owner owner);
  void Free(int64_t offset);
  // The piece at `offset` passes to another owner; what it is too large for `bytes` is freed.
  void HandOver(int64_t offset, int64_t bytes, Owner owner);

 private:
  void Cut(std::map<int64_t, Piece>::iterator piece, int64_t bytes);
  void SetFree(std::map<int64_t, Piece>::iterator piece);

  const int64_t bytes_;
  const int64_t alignment_;
  int64_t free_bytes_;
  std::map<int64_t, Piece> pieces_;
  std::set<std::pair<int64_t, int64_t>> free_;   // (bytes, offset) of free pieces
};

// A candidate of the window search: a free piece has cost 0; one that can't be evicted has a cost that
// is not finite and breaks every window.
struct WindowPiece {
  int64_t bytes;
  double cost;
};
struct Window {
  size_t begin = 0;   // pieces [begin, end)
  size_t end = 0;
  double cost = 0;
};

// The cheapest run of neighbouring pieces with at least `bytes` (Coop, algorithm 1; with costs >= 0 the
// shortest run that ends at a piece is the cheapest). Nothing if there is none. O(pieces).
//
// Unlike OneFlow's, the window is shrunk from the left after the last piece too, and a cost that is
// infinite or not a number breaks the window where it stands instead of spoiling the running sum.
std::optional<Window> CheapestWindow(std::span<const WindowPiece> pieces, int64_t bytes);

}  // namespace coopjax
