#include "arena.h"

#include <cmath>

namespace coopjax {

Arena::Arena(int64_t bytes, int64_t alignment)
    : bytes_(bytes / alignment * alignment), alignment_(alignment), free_bytes_(bytes_) {
  if (bytes_ > 0) {
    pieces_[0] = {bytes_, kFree};
    free_.insert({bytes_, 0});
  }
}

std::optional<int64_t> Arena::Allocate(int64_t bytes, Side side, Owner owner) {
  const int64_t size = Aligned(bytes);
  const auto fit = free_.lower_bound({size, 0});
  if (fit == free_.end()) return std::nullopt;
  auto piece = pieces_.find(fit->second);
  free_.erase(fit);
  if (side == Side::kHigh && piece->second.bytes > size) {
    const int64_t rest = piece->second.bytes - size;
    piece->second.bytes = rest;
    free_.insert({rest, piece->first});
    piece = pieces_.insert({piece->first + rest, {size, owner}}).first;
  } else {
    free_bytes_ -= piece->second.bytes;
    piece->second.owner = owner;
    Cut(piece, size);
    return piece->first;
  }
  free_bytes_ -= size;
  return piece->first;
}

// Keeps the first `bytes` of an owned piece and frees the rest.
void Arena::Cut(std::map<int64_t, Piece>::iterator piece, int64_t bytes) {
  const int64_t rest = piece->second.bytes - bytes;
  if (rest == 0) return;
  piece->second.bytes = bytes;
  SetFree(pieces_.insert({piece->first + bytes, {rest, kFree}}).first);
}

void Arena::SetFree(std::map<int64_t, Piece>::iterator piece) {
  free_bytes_ += piece->second.bytes;
  piece->second.owner = kFree;
  auto next = std::next(piece);
  if (next != pieces_.end() && next->second.owner == kFree) {
    free_.erase({next->second.bytes, next->first});
    piece->second.bytes += next->second.bytes;
    pieces_.erase(next);
  }
  if (piece != pieces_.begin() && std::prev(piece)->second.owner == kFree) {
    auto before = std::prev(piece);
    free_.erase({before->second.bytes, before->first});
    before->second.bytes += piece->second.bytes;
    pieces_.erase(piece);
    piece = before;
  }
  free_.insert({piece->second.bytes, piece->first});
}

void Arena::Free(int64_t offset) { SetFree(pieces_.find(offset)); }

void Arena::HandOver(int64_t offset, int64_t bytes, Owner owner) {
  const auto piece = pieces_.find(offset);
  piece->second.owner = owner;
  Cut(piece, Aligned(bytes));
}

std::optional<Window> CheapestWindow(std::span<const WindowPiece> pieces, int64_t bytes) {
  std::optional<Window> best;
  size_t begin = 0;
  int64_t size = 0;
  double cost = 0;
  for (size_t end = 1; end <= pieces.size(); ++end) {
    const WindowPiece& added = pieces[end - 1];
    if (!std::isfinite(added.cost)) {
      begin = end;
      size = 0;
      cost = 0;
      continue;
    }
    size += added.bytes;
    cost += added.cost;
    while (begin + 1 < end && size - pieces[begin].bytes >= bytes) {
      size -= pieces[begin].bytes;
      cost -= pieces[begin].cost;
      ++begin;
    }
    if (size >= bytes && (!best || cost < best->cost)) best = Window{begin, end, cost};
  }
  return best;
}

}  // namespace coopjax
