#include "planners/coop/arena.h"

#include <algorithm>

namespace coopjax {

Arena::Arena(int64_t bytes, int64_t alignment, int64_t small_area_bytes)
    : alignment_(alignment),
      bytes_(bytes / alignment * alignment),
      main_bytes_(std::max<int64_t>(0, bytes_ - small_area_bytes / alignment * alignment)),
      free_bytes_(bytes_) {
  auto add = [this](int64_t begin, int64_t end, Holes* holes) {
    if (begin == end) return;
    const PieceId id = static_cast<PieceId>(pieces_.size());
    pieces_.push_back({begin, end - begin, kFree, kNoPiece, kNoPiece});
    holes->insert({end - begin, begin, id});
  };
  add(0, main_bytes_, &main_holes_);
  add(main_bytes_, bytes_, &small_holes_);
}

Arena::PieceId Arena::FindHole(int64_t size, const Group& group) const {
  for (auto hole = main_holes_.lower_bound({size, 0, 0}); hole != main_holes_.end(); ++hole) {
    const auto& [bytes, offset, id] = *hole;
    if (group.Place(offset, offset + bytes, size)) return id;
  }
  return kNoPiece;
}

Arena::PieceId Arena::Allocate(int64_t bytes, const Group& group, Owner owner) {
  const int64_t size = Aligned(bytes);
  const PieceId hole = FindHole(size, group);
  if (hole == kNoPiece) return kNoPiece;
  const Piece& found = pieces_[hole];
  return Take(hole, *group.Place(found.offset, found.offset + found.bytes, size), size, owner);
}

Arena::PieceId Arena::AllocateSmall(int64_t bytes, Owner owner) {
  const int64_t size = Aligned(bytes);
  const auto hole = small_holes_.lower_bound({size, 0, 0});
  if (hole == small_holes_.end()) return kNoPiece;
  const auto [hole_bytes, offset, id] = *hole;
  return Take(id, offset, size, owner);
}

// The `size` bytes at `offset` inside a hole become a piece of their own.
Arena::PieceId Arena::Take(PieceId hole, int64_t offset, int64_t size, Owner owner) {
  holes(hole).erase({pieces_[hole].bytes, pieces_[hole].offset, hole});
  PieceId taken = hole;
  if (offset > pieces_[hole].offset) {
    taken = Split(hole, offset);
    holes(hole).insert({pieces_[hole].bytes, pieces_[hole].offset, hole});
  }
  if (pieces_[taken].bytes > size) {
    const PieceId rest = Split(taken, offset + size);
    holes(rest).insert({pieces_[rest].bytes, pieces_[rest].offset, rest});
  }
  pieces_[taken].owner = owner;
  free_bytes_ -= size;
  heap_bytes_ = std::max(heap_bytes_, offset + size);
  return taken;
}

Arena::PieceId Arena::Split(PieceId id, int64_t offset) {
  PieceId upper = static_cast<PieceId>(pieces_.size());
  if (unused_.empty()) {
    pieces_.emplace_back();
  } else {
    upper = unused_.back();
    unused_.pop_back();
  }
  Piece& lower = pieces_[id];
  const int64_t end = lower.offset + lower.bytes;
  pieces_[upper] = {offset, end - offset, kFree, id, lower.after};
  if (lower.after != kNoPiece) pieces_[lower.after].before = upper;
  lower.bytes = offset - lower.offset;
  lower.after = upper;
  return upper;
}

// Takes a piece out of the chain; its lower neighbour has grown over it.
void Arena::Remove(PieceId id) {
  const Piece& gone = pieces_[id];
  pieces_[gone.before].after = gone.after;
  if (gone.after != kNoPiece) pieces_[gone.after].before = gone.before;
  unused_.push_back(id);
}

void Arena::Free(PieceId id) {
  pieces_[id].owner = kFree;
  free_bytes_ += pieces_[id].bytes;
  const PieceId after = pieces_[id].after;
  if (after != kNoPiece && pieces_[after].is_free()) {
    holes(after).erase({pieces_[after].bytes, pieces_[after].offset, after});
    pieces_[id].bytes += pieces_[after].bytes;
    Remove(after);
  }
  const PieceId before = pieces_[id].before;
  if (before != kNoPiece && pieces_[before].is_free()) {
    holes(before).erase({pieces_[before].bytes, pieces_[before].offset, before});
    pieces_[before].bytes += pieces_[id].bytes;
    Remove(id);
    id = before;
  }
  holes(id).insert({pieces_[id].bytes, pieces_[id].offset, id});
}

void Arena::HandOver(PieceId id, int64_t bytes, Owner owner) {
  pieces_[id].owner = owner;
  const int64_t size = Aligned(bytes);
  if (pieces_[id].bytes > size) Free(Split(id, pieces_[id].offset + size));
}

}  // namespace coopjax
