#include "planners/coop/eviction.h"

#include <limits>
#include <utility>
#include <vector>

#include "base/allowance.h"
#include "base/stopwatch.h"
#include "planners/coop/window_search.h"

namespace coopjax {
namespace {

constexpr double kUnevictable = std::numeric_limits<double>::infinity();

}  // namespace

CoopEviction::CoopEviction(const CoopOptions& options, CoopMemory* memory, EvictionCost* cost)
    : options_(options),
      memory_(*memory),
      cost_(*cost),
      groups_(options.num_groups, memory->arena().main_bytes(), options.alignment_bytes) {}

CoopCounters CoopEviction::counters() const {
  CoopCounters counters = counters_;
  counters.candidates = cost_.num_evaluations();
  counters.fragmentation = num_holes_ > 0 ? sum_free_share_ / static_cast<double>(num_holes_) : 0;
  counters.heap_bytes = memory_.arena().heap_bytes();
  return counters;
}

Arena::PieceId CoopEviction::Allocate(int64_t bytes, CostClass cost_class, Arena::Owner owner) {
  CountSteps(30);
  if (options_.IsSmall(bytes)) {
    const Arena::PieceId piece = memory_.arena().AllocateSmall(bytes, owner);
    if (piece != Arena::kNoPiece) return piece;
  }
  const Arena::PieceId piece = AllocateAsIs(bytes, cost_class, owner);
  if (piece != Arena::kNoPiece) return piece;
  const Stopwatch stopwatch(&counters_.search_s);
  return AllocateByEviction(bytes, cost_class, owner);
}

Arena::PieceId CoopEviction::AllocateAsIs(int64_t bytes, CostClass cost_class, Arena::Owner owner) {
  const auto groups = groups_.of(cost_class);
  for (size_t i = 0; i < groups.size(); ++i) {
    const Arena::PieceId piece = memory_.arena().Allocate(bytes, groups[i], owner);
    if (piece == Arena::kNoPiece) continue;
    groups_.Use(cost_class, i);
    return piece;
  }
  return Arena::kNoPiece;
}

Arena::PieceId CoopEviction::AllocateByEviction(int64_t bytes, CostClass cost_class, Arena::Owner owner) {
  Arena& arena = memory_.arena();
  for (bool spares_reserved : {true, false}) {
    if (!Evict(bytes, groups_.of(cost_class), spares_reserved)) continue;
    sum_free_share_ += static_cast<double>(arena.free_bytes()) / static_cast<double>(arena.bytes());
    ++num_holes_;
    return AllocateAsIs(bytes, cost_class, owner);
  }
  const Group whole = {0, arena.main_bytes(), groups_.of(cost_class).front().side};
  if (!arena.Fits(bytes, whole) && !Evict(bytes, {&whole, 1}, /*spares_reserved=*/false)) return Arena::kNoPiece;
  return arena.Allocate(bytes, whole, owner);
}

bool CoopEviction::Evict(int64_t bytes, std::span<const Group> groups, bool spares_reserved) {
  return options_.eviction == EvictionRule::kWindow ? EvictWindow(bytes, groups, spares_reserved)
                                                    : EvictOneByOne(bytes, groups, spares_reserved);
}

bool CoopEviction::EvictWindow(int64_t bytes, std::span<const Group> groups, bool spares_reserved) {
  ++counters_.searches;
  const Arena& arena = memory_.arena();
  std::vector<WindowPiece> pieces;
  std::vector<Arena::Owner> owners;
  for (Arena::PieceId id = arena.first(); id != Arena::kNoPiece; id = arena.piece(id).after) {
    const Arena::Piece& piece = arena.piece(id);
    WindowPiece& made = pieces.emplace_back(WindowPiece{piece.offset, piece.bytes, 0, true, piece.is_free()});
    owners.push_back(piece.owner);
    if (piece.is_free()) continue;
    if (!memory_.IsEvictable(piece.owner, spares_reserved)) {
      made.cost = kUnevictable;
      continue;
    }
    ++counters_.scanned;
    if (options_.reuses_costs) {
      made.cost = cost_.AtLeast(piece.owner);
      made.is_exact = false;
    } else {
      made.cost = cost_.Of(piece.owner);
    }
  }
  CountSteps(10 * std::ssize(owners));
  WindowSearch search(std::move(pieces), arena.Aligned(bytes), [&](size_t i) { return cost_.Of(owners[i]); });
  const auto window = search.Cheapest(groups);
  if (!window) return false;
  for (size_t i = window->begin; i < window->end; ++i) {
    if (owners[i] != Arena::kFree) Release(owners[i]);
  }
  return true;
}

bool CoopEviction::EvictOneByOne(int64_t bytes, std::span<const Group> groups, bool spares_reserved) {
  auto fits = [&] {
    for (const Group& group : groups) {
      if (memory_.arena().Fits(bytes, group)) return true;
    }
    return false;
  };
  while (!fits()) {
    ++counters_.searches;
    const ValueId victim = CheapestValue(spares_reserved);
    if (victim == kNoValue) return false;
    Release(victim);
  }
  return true;
}

ValueId CoopEviction::CheapestValue(bool spares_reserved) {
  const Arena& arena = memory_.arena();
  double best = kUnevictable;
  ValueId victim = kNoValue;
  for (Arena::PieceId id = arena.first(); id != Arena::kNoPiece; id = arena.piece(id).after) {
    CountSteps(2);
    const Arena::Piece& piece = arena.piece(id);
    if (!memory_.IsEvictable(piece.owner, spares_reserved)) continue;
    ++counters_.scanned;
    const double size = static_cast<double>(options_.eviction == EvictionRule::kDte ? SizeWithHoles(id) : piece.bytes);
    if (options_.reuses_costs && cost_.AtLeast(piece.owner) / size >= best) continue;
    const double cost = cost_.Of(piece.owner) / size;
    if (cost >= best) continue;
    best = cost;
    victim = piece.owner;
  }
  return victim;
}

int64_t CoopEviction::SizeWithHoles(Arena::PieceId id) const {
  const Arena& arena = memory_.arena();
  int64_t bytes = arena.piece(id).bytes;
  for (Arena::PieceId beside : {arena.piece(id).before, arena.piece(id).after}) {
    if (beside != Arena::kNoPiece && arena.piece(beside).is_free()) bytes += arena.piece(beside).bytes;
  }
  return bytes;
}

void CoopEviction::Release(ValueId v) {
  ++counters_.evictions;
  memory_.Release(v);
}

}  // namespace coopjax
