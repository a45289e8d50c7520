#include "planners/bounds/cost_bound.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/allowance.h"
#include "planners/bounds/first_run_cut.h"
#include "program/liveness.h"

namespace coopjax {
namespace {

// What a cut takes, about, in edges looked at; building its network is 1.
constexpr int64_t kWorkPerCut = 12;
constexpr int64_t kCutsPerSearch = 8;
constexpr size_t kNumWidest = 16;

class BoundSearch {
 public:
  BoundSearch(const StepProgram& program, int64_t budget_bytes, int64_t max_work)
      : program_(program), budget_bytes_(budget_bytes), order_(program), shares_(program) {
    const int64_t edges = 1 + program.op_inputs.items.size() + program.op_control.items.size() + program.num_values();
    num_cuts_left_ = std::max<int64_t>(max_work / (edges * kWorkPerCut), 2 * kCutsPerSearch);
    num_samples_ = std::clamp<int64_t>(num_cuts_left_ / 2, 16, 512);
    is_thorough_ = num_cuts_left_ >= num_samples_ * kCutsPerSearch;
  }

  CostBound Run() {
    const int32_t num_ops = program_.num_ops();
    Step stride = std::max<Step>(1, num_ops / num_samples_);
    std::vector<Sample> samples;
    for (Step gate : LargestGates()) {
      samples.assign(1, Measure(gate));
      Try(&samples);
    }
    if (num_cuts_left_ <= 0) return best_;
    samples.clear();
    for (Step t = 0; t < num_ops; t += stride) samples.push_back(Measure(t));
    for (Step t : WidestSteps()) {
      if (t % stride != 0) samples.push_back(Measure(t));
    }
    Try(&samples);
    while (stride > 1 && num_cuts_left_ > 0 && best_.op != kNoOp) {
      // Closer to the best so far.
      const Step centre = best_step_, half = std::max<Step>(stride / 2, 1);
      samples.clear();
      for (Step t : {centre - half, centre + half}) {
        if (t >= 0 && t < num_ops) samples.push_back(Measure(t));
      }
      Try(&samples);
      stride = half;
    }
    return best_;
  }

 private:
  struct Sample {
    Step step;
    int64_t most_bytes;
  };

  // Steps of the ops with the largest working sets: they leave least room for what is held.
  std::vector<Step> WidestSteps() const {
    std::vector<std::pair<int64_t, Step>> widths;
    for (Step t = 0; t < program_.num_ops(); ++t) {
      const OpId op = program_.schedule[t];
      int64_t bytes = program_.op_workspace_bytes[op];
      for (const auto& values : {program_.op_inputs[op], program_.op_outputs[op]}) {
        for (ValueId v : values) bytes += program_.takes_budget(v) ? program_.value_bytes[v] : 0;
      }
      widths.push_back({-bytes, t});
    }
    const size_t count = std::min<size_t>(widths.size(), kNumWidest);
    std::partial_sort(widths.begin(), widths.begin() + count, widths.end());
    std::vector<Step> steps;
    for (size_t i = 0; i < count; ++i) steps.push_back(widths[i].second);
    return steps;
  }

  // Steps of the program's own order whose op all later ones depend on and, of these, whose op depends on all earlier
  // ones, such as the loss: the one of most live bytes each. All that is live there has to be held or made again,
  // however many branches there are.
  std::vector<Step> LargestGates() const {
    const std::vector<int64_t> live_bytes = ComputeLiveness(program_, program_.schedule).live_bytes;
    const int32_t num_ops = program_.num_ops();
    std::vector<Step> step_of(num_ops);
    std::vector<uint8_t> ends_all(num_ops);
    for (Step t = 0; t < num_ops; ++t) step_of[program_.schedule[t]] = t;
    CountSteps(2 * std::ssize(order_.before.items));
    Step first_read = 0;              // of what was made, the last step to be read first
    for (Step t = 0; t < num_ops; ++t) {
      ends_all[t] = first_read <= t;
      Step first = num_ops;
      for (const OpId after : order_.after[program_.schedule[t]]) first = std::min(first, step_of[after]);
      if (first < num_ops) first_read = std::max(first_read, first);
    }
    Step largest = -1, largest_of_both = -1, least = num_ops;   // of the latest ops that later ones wait for
    for (Step t = num_ops - 1; t >= 0; --t) {
      const auto is_larger = [&](Step than) { return than < 0 || live_bytes[t] > live_bytes[than]; };
      if (least >= t && is_larger(largest)) largest = t;
      if (least >= t && ends_all[t] && is_larger(largest_of_both)) largest_of_both = t;
      Step latest = -1;
      for (const OpId before : order_.before[program_.schedule[t]]) latest = std::max(latest, step_of[before]);
      if (latest >= 0) least = std::min(least, latest);
    }
    std::vector<Step> gates;
    if (largest_of_both >= 0) gates.push_back(largest_of_both);
    if (largest >= 0 && largest != largest_of_both) gates.push_back(largest);
    return gates;
  }

  Sample Measure(Step step) const {
    return {step, FirstRunCut(program_, order_, shares_, program_.schedule[step]).most_bytes()};
  }

  // Ops in the way of most bytes first: they promise most, though what is free to be made later counts, too. Unless
  // there is work enough for all, the price of the best so far tells, in one cut, whether a search may pay.
  void Try(std::vector<Sample>* samples) {
    std::stable_sort(samples->begin(), samples->end(),
                     [](const Sample& a, const Sample& b) { return a.most_bytes > b.most_bytes; });
    for (const Sample& sample : *samples) {
      if (sample.most_bytes <= budget_bytes_ || num_cuts_left_ <= 0 || std::isinf(best_.cost_s)) return;
      const OpId op = program_.schedule[sample.step];
      FirstRunCut cut(program_, order_, shares_, op);
      if (price_ > 0 && !is_thorough_) {
        --num_cuts_left_;
        if (cut.At(price_, budget_bytes_) < 0.7 * best_.cost_s) continue;
      }
      num_cuts_left_ -= kCutsPerSearch;
      const FirstRunCut::Best found = cut.OverPrices(budget_bytes_);
      if (found.cost_s <= best_.cost_s) continue;
      best_ = {found.cost_s, op};
      best_step_ = sample.step;
      price_ = found.price;
    }
  }

  const StepProgram& program_;
  const int64_t budget_bytes_;
  const FirstRunOrder order_;
  const ShareIndex shares_;
  int64_t num_cuts_left_;
  int64_t num_samples_;
  bool is_thorough_;
  CostBound best_;
  Step best_step_ = 0;
  double price_ = 0;
};

}  // namespace

double CostUnit(const StepProgram& program) {
  double unit = std::numeric_limits<double>::infinity();
  for (OpId op = 0; op < program.num_ops(); ++op) {
    if (MayRunTwice(program, op) && program.op_cost_s[op] > 0) unit = std::min(unit, program.op_cost_s[op]);
  }
  if (std::isinf(unit)) return 0;
  for (OpId op = 0; op < program.num_ops(); ++op) {
    if (!MayRunTwice(program, op)) continue;
    const double multiple = program.op_cost_s[op] / unit;
    if (multiple > 1e9 || std::abs(multiple - std::round(multiple)) > 1e-12 * multiple) return 0;
  }
  return unit;
}

CostBound ComputeCostBound(const StepProgram& program, int64_t budget_bytes, const CostBoundOptions& options) {
  const LowerBound least = ComputeLowerBound(program);
  if (least.bytes > budget_bytes) return {std::numeric_limits<double>::infinity(), least.op};
  CostBound bound = BoundSearch(program, budget_bytes, options.max_work).Run();
  const double unit = options.rounds_up ? CostUnit(program) : 0;
  if (unit > 0 && !std::isinf(bound.cost_s)) bound.cost_s = unit * std::ceil(bound.cost_s / unit - 1e-6);
  if (bound.cost_s <= 0) bound.cost_s = 0;  // not -0
  return bound;
}

}  // namespace coopjax
