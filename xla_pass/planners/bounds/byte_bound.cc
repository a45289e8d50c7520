#include "planners/bounds/byte_bound.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/allowance.h"
#include "planners/bounds/first_run_cut.h"

namespace coopjax {
namespace {

constexpr int64_t kWorkPerCut = 12;    // in edges looked at, about; building its network is 1
constexpr size_t kMostPaired = 12;     // ops whose pairs are looked at

class ByteBoundSearch {
 public:
  ByteBoundSearch(const StepProgram& program, const ByteBoundOptions& options)
      : program_(program), order_(program), shares_(program), bound_(ComputeLowerBound(program)) {
    num_edges_ = 1 + program.op_inputs.items.size() + program.op_control.items.size() + program.num_values();
    work_left_ = options.max_work;
  }

  LowerBound Run() {
    std::vector<std::pair<int64_t, OpId>> least = CutSingles();
    std::ranges::sort(least, std::greater());
    if (least.size() > kMostPaired) least.resize(kMostPaired);
    for (size_t i = 0; i < least.size(); ++i) {
      for (size_t k = 0; k < i && work_left_ > 0; ++k) CutPair(least[i].second, least[k].second);
    }
    return bound_;
  }

 private:
  // The least bytes at the first runs of the ops in the way of most.
  std::vector<std::pair<int64_t, OpId>> CutSingles() {
    std::vector<std::pair<int64_t, OpId>> most, least;
    const auto stride = static_cast<OpId>(1 + num_edges_ * program_.num_ops() / std::max<int64_t>(work_left_ / 4, 1));
    for (OpId op = 0; op < program_.num_ops(); op += stride) {
      most.emplace_back(FirstRunCut(program_, order_, shares_, op).most_bytes(), op);
      work_left_ -= num_edges_;
    }
    std::ranges::sort(most, std::greater());
    const int64_t work_for_pairs = work_left_ / 2;
    for (const auto& [_, op] : most) {
      if (work_left_ <= work_for_pairs) break;
      least.emplace_back(LeastBytes(order_, op), op);
      if (least.back().first > bound_.bytes) bound_ = {least.back().first, op};
    }
    return least;
  }

  bool MustPrecede(OpId first, OpId then) const {
    std::vector<uint8_t> is_after(program_.num_ops(), 0);
    std::vector<OpId> frontier = {first};
    while (!frontier.empty() && !is_after[then]) {
      const OpId op = frontier.back();
      frontier.pop_back();
      CountSteps(1 + std::ssize(order_.after[op]) / 2);
      for (const OpId next : order_.after[op]) {
        if (!std::exchange(is_after[next], 1)) frontier.push_back(next);
      }
    }
    return is_after[then];
  }

  void CutPair(OpId a, OpId b) {
    if (MustPrecede(a, b) || MustPrecede(b, a)) return;
    const int64_t bytes = LeastBytes(FirstRunOrder(program_, a, b), a);
    if (bytes <= bound_.bytes) return;
    bound_ = std::max(bound_, {std::min(bytes, LeastBytes(FirstRunOrder(program_, b, a), b)), a}, IsLess);
  }

  static bool IsLess(const LowerBound& a, const LowerBound& b) { return a.bytes < b.bytes; }

  int64_t LeastBytes(const FirstRunOrder& order, OpId op) {
    work_left_ -= kWorkPerCut * num_edges_;
    return FirstRunCut(program_, order, shares_, op).least_bytes();
  }

  const StepProgram& program_;
  const FirstRunOrder order_;
  const ShareIndex shares_;
  LowerBound bound_;
  int64_t num_edges_ = 0;
  int64_t work_left_ = 0;
};

}  // namespace

LowerBound ComputeByteBound(const StepProgram& program, const ByteBoundOptions& options) {
  return ByteBoundSearch(program, options).Run();
}

}  // namespace coopjax
