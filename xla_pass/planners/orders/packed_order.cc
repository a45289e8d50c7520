#include "planners/orders/packed_order.h"

#include <algorithm>
#include <array>
#include <random>
#include <tuple>
#include <utility>

#include "base/allowance.h"
#include "program/dependences.h"

namespace coopjax {
namespace {

constexpr uint64_t kMostDoublings = 3;    // of the number of moves in one trial
constexpr int32_t kLooks = 8;             // for an op that can move, per move

class OrderPacker {
 public:
  OrderPacker(const StepProgram& program, const Schedule& start, const HeapJudge& judge,
              const PackedOrderOptions& options)
      : judge_(judge),
        options_(options),
        before_(OpPredecessors(program)),
        after_(Transpose(before_, program.num_ops())),
        step_of_(program.num_ops()),
        random_(options.seed),
        best_{start, judge(start, options.target_bytes), 0} {}

  PackedOrder Run() {
    const Allowance allowance(options_.max_steps);
    Schedule current = best_.order;
    auto nearness = Nearness(best_.heap);
    while (best_.num_trials < options_.max_trials && best_.heap.temp_bytes > options_.target_bytes) {
      if (allowance.IsOver()) break;
      ++best_.num_trials;
      CountSteps(10 + std::ssize(current));
      Schedule moved = Moved(current);
      if (moved == current) continue;
      const OrderHeap heap = judge_(moved, options_.target_bytes);
      if (Nearness(heap) > nearness) continue;
      nearness = Nearness(heap);
      if (Rank(heap) < Rank(best_.heap)) {
        best_.order = moved;
        best_.heap = heap;
      }
      current = std::move(moved);
    }
    return std::move(best_);
  }

 private:
  static std::pair<int64_t, int64_t> Rank(const OrderHeap& heap) { return {heap.temp_bytes, heap.over_bytes}; }

  static std::pair<int64_t, double> Nearness(const OrderHeap& heap) { return {heap.over_bytes, heap.height}; }

  uint64_t Below(uint64_t n) { return random_() % n; }

  // `order` with a few ops elsewhere.
  Schedule Moved(Schedule order) {
    for (Step t = 0; t < std::ssize(order); ++t) step_of_[order[t]] = t;
    const uint64_t num_moves = uint64_t{1} << Below(kMostDoublings + 1);
    for (uint64_t move = 0; move < num_moves; ++move) {
      for (int32_t look = 0; look < kLooks && !MoveOne(&order); ++look) {
      }
    }
    return order;
  }

  // As early as it can be, as late, or anywhere between; false where it can't move.
  bool MoveOne(Schedule* order) {
    const Step from = static_cast<Step>(Below(order->size()));
    const OpId op = (*order)[from];
    Step first = 0, last = static_cast<Step>(order->size()) - 1;
    for (const OpId other : before_[op]) first = std::max(first, step_of_[other] + 1);
    for (const OpId other : after_[op]) last = std::min(last, step_of_[other] - 1);
    if (first >= last) return false;
    const std::array<Step, 3> choices = {first, last, first + static_cast<Step>(Below(last - first + 1))};
    const Step to = choices[Below(choices.size())];
    if (to == from) return false;
    const auto begin = order->begin();
    if (to < from) {
      std::rotate(begin + to, begin + from, begin + from + 1);
    } else {
      std::rotate(begin + from, begin + from + 1, begin + to + 1);
    }
    for (Step t = std::min(from, to); t <= std::max(from, to); ++t) step_of_[(*order)[t]] = t;
    return true;
  }

  const HeapJudge& judge_;
  const PackedOrderOptions& options_;
  const Csr before_, after_;
  std::vector<Step> step_of_;        // by op, in the order at hand
  std::mt19937_64 random_;
  PackedOrder best_;
};

}  // namespace

PackedOrder SearchPackedOrder(const StepProgram& program, const Schedule& start, const HeapJudge& judge,
                              const PackedOrderOptions& options) {
  return OrderPacker(program, start, judge, options).Run();
}

}  // namespace coopjax
