#include "buffers/running_heap.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "buffers/platform.h"

namespace coopjax {

RunningHeap::Piece RunningHeap::Choose(int64_t bytes) {
  Piece best = free_.end();
  int64_t least_room = std::numeric_limits<int64_t>::max();
  for (auto piece = free_.begin(); piece != free_.end(); ++piece) {
    const int64_t room = piece->second - RoundUp(piece->first, alignment_);
    if (piece->second == bytes_ || room < bytes || room >= least_room) continue;
    best = piece;
    least_room = room;
  }
  if (best != free_.end() || free_.empty()) return best;
  const auto last = std::prev(free_.end());
  return last->second == bytes_ ? last : best;
}

int64_t RunningHeap::Allocate(int64_t bytes) {
  const Piece piece = Choose(bytes);
  const int64_t begin = piece == free_.end() ? bytes_ : piece->first;
  const int64_t end = piece == free_.end() ? bytes_ : piece->second;
  if (piece != free_.end()) free_.erase(piece);
  const int64_t offset = RoundUp(begin, alignment_);
  if (begin < offset && begin < end) free_[begin] = std::min(offset, end);
  if (offset + bytes < end) free_[offset + bytes] = end;
  bytes_ = std::max(bytes_, offset + bytes);
  return offset;
}

void RunningHeap::Free(int64_t offset, int64_t bytes) {
  auto [piece, is_new] = free_.emplace(offset, offset + bytes);
  const auto next = std::next(piece);
  if (next != free_.end() && AreJoined(piece->second, next->first)) {
    piece->second = next->second;
    free_.erase(next);
  }
  if (piece == free_.begin()) return;
  const auto last = std::prev(piece);
  if (!AreJoined(last->second, piece->first)) return;
  last->second = piece->second;
  free_.erase(piece);
}

bool RunningHeap::AreJoined(int64_t end, int64_t begin) const {
  return begin == end || begin == RoundUp(end, alignment_);
}

}  // namespace coopjax
