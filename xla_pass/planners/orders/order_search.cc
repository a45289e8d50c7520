#include "planners/orders/order_search.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

#include "base/allowance.h"
#include "planners/orders/list_scheduler.h"
#include "planners/orders/order_cut.h"
#include "program/liveness.h"

namespace coopjax {
namespace {

constexpr std::array<const char*, kNumOrderRules> kRuleNames = {"given",      "most freed", "free first",
                                                                "look ahead", "backward",   "late backward"};
constexpr int64_t kCheapestWeight = 1, kDearestWeight = 4;

class OrderSearch {
 public:
  OrderSearch(const StepProgram& program, const OrderJudge& judge, const OrderSearchOptions& options)
      : program_(program), judge_(judge), options_(options), allowance_(options.max_steps) {}

  std::vector<RankedOrder> Run(const RemakeCosts& costs) {
    AddRules(program_, true);
    const bool is_small = program_.num_ops() <= options_.max_searched_ops;
    if (is_small) {
      AddRules(WeightedByRank(costs), false);
      for (const int32_t i : SmallestPeaks(options_.num_cut)) {
        Add(ReorderByCuts(program_, found_[i].order, {.max_steps = allowance_.Left()}).schedule, "cut");
      }
    }
    Judge();
    return std::move(found_);
  }

 private:
  // `model` has the program's ops, and sizes of its own.
  void AddRules(const StepProgram& model, bool has_given) {
    for (int rule = has_given ? 0 : 1; rule < kNumOrderRules; ++rule) {
      Add(ScheduleByRule(model, static_cast<OrderRule>(rule)), has_given ? kRuleNames[rule] : "by cost");
    }
  }

  StepProgram WeightedByRank(const RemakeCosts& costs) const {
    StepProgram weighted = program_;
    const auto last = std::max<int64_t>(1, program_.num_values() - 1);
    for (ValueId v = 0; v < program_.num_values(); ++v) {
      const int64_t rank = costs.rank[v] < 0 ? last : costs.rank[v];
      weighted.value_bytes[v] *= kCheapestWeight + (kDearestWeight - kCheapestWeight) * rank / last;
    }
    return weighted;
  }

  void Add(Schedule order, const char* name) {
    if (std::ranges::any_of(found_, [&](const RankedOrder& other) { return other.order == order; })) return;
    const Liveness liveness = ComputeLiveness(program_, order);
    sums_.push_back(std::accumulate(liveness.live_bytes.begin(), liveness.live_bytes.end(), 0.0));
    found_.push_back({std::move(order), 0, liveness.peak_bytes, name});
  }

  std::vector<int32_t> SmallestPeaks(int32_t count) const {
    std::vector<int32_t> by_peak(found_.size());
    std::iota(by_peak.begin(), by_peak.end(), 0);
    std::ranges::sort(by_peak, {}, [&](int32_t i) { return std::make_tuple(found_[i].peak_bytes, sums_[i], i); });
    by_peak.resize(std::min<size_t>(by_peak.size(), count));
    return by_peak;
  }

  // Those of smallest peaks and the one that came, which is found_[0].
  void Judge() {
    std::vector<int32_t> by_peak = SmallestPeaks(options_.num_judged);
    if (std::ranges::find(by_peak, 0) == by_peak.end()) by_peak.push_back(0);
    std::vector<RankedOrder> judged;
    for (const int32_t i : by_peak) {
      judged.push_back(std::move(found_[i]));
      judged.back().judged_bytes = judge_(judged.back().order);
    }
    std::ranges::stable_sort(judged, {}, &RankedOrder::judged_bytes);
    found_ = std::move(judged);
  }

  const StepProgram& program_;
  const OrderJudge& judge_;
  const OrderSearchOptions& options_;
  const Allowance allowance_;
  std::vector<RankedOrder> found_;
  std::vector<double> sums_;        // of live bytes over the steps, by order
};

}  // namespace

std::vector<RankedOrder> SearchOrders(const StepProgram& program, const RemakeCosts& costs, const OrderJudge& judge,
                                      const OrderSearchOptions& options) {
  return OrderSearch(program, judge, options).Run(costs);
}

}  // namespace coopjax
