#include "planners/coop/window_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace coopjax {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
// Running sums of n doubles are off by less than this share of the largest sum since they were taken anew.
constexpr double kSumError = 1e-12;
constexpr int kMaxRounds = 8;   // sweeps by bounds alone

}  // namespace

// The pieces of the moving window, by position in sweep direction: [tail, head).
struct WindowSearch::Sum {
  size_t tail = 0;
  size_t head = 0;
  int64_t bytes = 0;
  double cost = 0;
  double largest = 0;   // of the running sums

  void Add(const WindowPiece& piece) {
    ++head;
    bytes += piece.bytes;
    cost += piece.cost;
    largest = std::max(largest, cost);
  }
  void Drop(const WindowPiece& piece) {
    ++tail;
    bytes -= piece.bytes;
    cost -= piece.cost;
  }
  double at_least() const { return cost - kSumError * largest; }
};

WindowSearch::WindowSearch(std::vector<WindowPiece> pieces, int64_t bytes, CostOf cost_of)
    : pieces_(std::move(pieces)), bytes_(bytes), cost_of_(std::move(cost_of)) {}

std::optional<Window> WindowSearch::Cheapest(std::span<const Group> groups) {
  // The window that is cheapest by its bounds is the cheapest of all once its own costs are exact.
  for (int round = 0; round < kMaxRounds; ++round) {
    best_.reset();
    SweepAll(groups, /*asks=*/false);
    if (!best_ || IsExact(*best_)) return best_;
    const Window first = *std::exchange(best_, std::nullopt);
    Try(first.begin, first.end, first.group, /*asks=*/true);
  }
  // What the last round found is hard to beat, so few other windows are asked about.
  SweepAll(groups, /*asks=*/true);
  return best_;
}

void WindowSearch::SweepAll(std::span<const Group> groups, bool asks) {
  for (size_t number = 0; number < groups.size(); ++number) {
    Sweep(groups[number], number, asks);
    TryBorder(groups[number], number, asks);
  }
}

bool WindowSearch::IsExact(const Window& window) const {
  return std::all_of(pieces_.begin() + static_cast<std::ptrdiff_t>(window.begin),
                     pieces_.begin() + static_cast<std::ptrdiff_t>(window.end),
                     [](const WindowPiece& piece) { return piece.is_exact; });
}

// Every smallest window: for each last piece the latest first one, or the other way round for a group whose
// requests lie at the low end of the hole, so that the end that decides on acceptance is the one enumerated.
void WindowSearch::Sweep(const Group& group, size_t number, bool asks) {
  const size_t n = pieces_.size();
  const bool is_reversed = group.side == Side::kLow;
  auto at = [&](size_t position) -> const WindowPiece& { return pieces_[is_reversed ? n - 1 - position : position]; };
  Sum sum;
  while (sum.head < n) {
    if (!std::isfinite(at(sum.head).cost)) {
      sum = {.tail = sum.head + 1, .head = sum.head + 1};
      continue;
    }
    sum.Add(at(sum.head));
    while (sum.bytes - at(sum.tail).bytes >= bytes_) sum.Drop(at(sum.tail));
    if (sum.bytes < bytes_ || (best_ && sum.at_least() >= best_->cost)) continue;
    const size_t begin = is_reversed ? n - sum.head : sum.tail;
    const size_t end = is_reversed ? n - sum.tail : sum.head;
    if (!Accepts(group, begin, end)) continue;
    Try(begin, end, number, asks);
    // Costs may have come in: add up anew what is left after the last piece that turned out to break.
    Sum anew = {.tail = sum.tail, .head = sum.tail};
    for (size_t position = sum.tail; position < sum.head; ++position) {
      if (std::isfinite(at(position).cost)) {
        anew.Add(at(position));
      } else {
        anew = {.tail = position + 1, .head = position + 1};
      }
    }
    sum = anew;
  }
}

// A hole that reaches across the group's border is accepted wherever it begins if the request fits behind
// the border: the one window to try is that of the pieces under this place.
void WindowSearch::TryBorder(const Group& group, size_t number, bool asks) {
  const int64_t low = group.side == Side::kLow ? group.begin : group.end - bytes_;
  const auto first = std::ranges::upper_bound(pieces_, low, {}, &WindowPiece::offset);
  const auto last = std::ranges::lower_bound(pieces_, low + bytes_, {}, &WindowPiece::offset);
  if (first == pieces_.begin() || last == pieces_.begin()) return;
  const size_t begin = static_cast<size_t>(first - pieces_.begin()) - 1;
  const size_t end = static_cast<size_t>(last - pieces_.begin());
  if (pieces_[end - 1].offset + pieces_[end - 1].bytes < low + bytes_ || !Accepts(group, begin, end)) return;
  Try(begin, end, number, asks);
}

// Takes the window if it is the cheapest so far; without `asks`, by its bounds.
void WindowSearch::Try(size_t begin, size_t end, size_t number, bool asks) {
  const double limit = best_ ? best_->cost : kInfinite;
  double cost = SumOf(begin, end);
  for (size_t i = begin; asks && i < end && cost < limit; ++i) {
    if (pieces_[i].is_exact) continue;
    const double bound = pieces_[i].cost;
    pieces_[i].is_exact = true;
    pieces_[i].cost = cost_of_(i);
    cost += std::isfinite(pieces_[i].cost) ? pieces_[i].cost - bound : kInfinite;
  }
  if (cost < limit) cost = SumOf(begin, end);
  if (cost < limit) best_ = Window{begin, end, cost, number};
}

// The hole that eviction leaves includes the free neighbours of the window.
bool WindowSearch::Accepts(const Group& group, size_t begin, size_t end) const {
  if (begin > 0 && pieces_[begin - 1].is_free) --begin;
  if (end < pieces_.size() && pieces_[end].is_free) ++end;
  return group.Place(pieces_[begin].offset, pieces_[end - 1].offset + pieces_[end - 1].bytes, bytes_).has_value();
}

double WindowSearch::SumOf(size_t begin, size_t end) const {
  double cost = 0;
  for (size_t i = begin; i < end; ++i) cost += std::isfinite(pieces_[i].cost) ? pieces_[i].cost : kInfinite;
  return cost;
}

}  // namespace coopjax
