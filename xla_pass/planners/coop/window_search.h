// Coop's sliding window (algorithm 1 of the paper): the cheapest run of neighbouring pieces whose eviction
// makes room for a request.
//
// Differs from OneFlow's in three faults that are gone: the window is shrunk after the last piece too; a
// cost that is infinite or not a number breaks the window where it stands instead of spoiling the running
// sum; and a window counts only if the allocator's own rule (Group::Place) accepts the hole that it leaves.
//
// A piece may come with a lower bound instead of its cost. Costs are asked for only inside windows that
// could still be the cheapest by their bounds; the window found is the same.
//
// O(pieces) per group and sweep, of which there are at most nine, plus the length of every window asked about.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "planners/coop/arena_groups.h"

namespace coopjax {

struct WindowPiece {
  int64_t offset;
  int64_t bytes;
  double cost;           // >= 0, or not finite: can't be evicted
  bool is_exact = true;  // else `cost` is a lower bound
  bool is_free = false;  // with cost 0
};

struct Window {
  size_t begin = 0;      // pieces [begin, end)
  size_t end = 0;
  double cost = 0;
  size_t group = 0;      // of those asked for: one that accepts the hole
};

class WindowSearch {
 public:
  using CostOf = std::function<double(size_t piece)>;

  // `pieces` lie end to end, no two free ones side by side; `bytes` is aligned. `cost_of` is asked at most
  // once for each piece that is not exact.
  WindowSearch(std::vector<WindowPiece> pieces, int64_t bytes, CostOf cost_of);

  // The cheapest window that one of `groups` accepts; nothing if there is none.
  std::optional<Window> Cheapest(std::span<const Group> groups);

 private:
  struct Sum;

  void SweepAll(std::span<const Group> groups, bool asks);
  void Sweep(const Group& group, size_t number, bool asks);
  void TryBorder(const Group& group, size_t number, bool asks);
  void Try(size_t begin, size_t end, size_t number, bool asks);
  bool Accepts(const Group& group, size_t begin, size_t end) const;
  bool IsExact(const Window& window) const;
  double SumOf(size_t begin, size_t end) const;

  std::vector<WindowPiece> pieces_;
  const int64_t bytes_;
  const CostOf cost_of_;
  std::optional<Window> best_;
};

}  // namespace coopjax
