#include "recompute_order_pass.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <tuple>
#include <utility>

#include "coop_planner.h"
#include "liveness.h"
#include "peak_planner.h"
#include "segment_planner.h"
#include "transform.h"
#include "verify.h"

namespace coopjax {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kMaxPolishedOps = 20'000;   // of programs that are not planned in segments alone
constexpr int64_t kMaxTrials = 100'000;
constexpr double kRoomToLoosen = 0.03;        // of the budget

// Adds the time that it lives to `*seconds`.
class Stopwatch {
 public:
  explicit Stopwatch(double* seconds) : seconds_(seconds), start_(Clock::now()) {}
  ~Stopwatch() { *seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;

 private:
  double* seconds_;
  const Clock::time_point start_;
};

// What became of one schedule.
struct Candidate {
  Schedule schedule;
  double cost_s = 0;
  std::string bytes;
  std::unique_ptr<HloModule> module;
  HeapResult heap;

  std::tuple<int64_t, double, int64_t> Rank(int64_t budget_bytes) const {
    return {std::max<int64_t>(heap.temp_bytes - budget_bytes, 0), cost_s, heap.temp_bytes};
  }
};

// Every op's first run right after that of the op before it: planners move originals else.
void FixOrder(StepProgram* program) {
  std::vector<OpId> before(program->num_ops(), kNoOp);
  for (Step t = 1; t < program->num_ops(); ++t) before[program->schedule[t]] = program->schedule[t - 1];
  program->op_control = {};
  for (const OpId op : before) program->op_control.AddRow({&op, op == kNoOp ? size_t{0} : size_t{1}});
}

class Pass {
 public:
  Pass(const HloAnalysis& analysis, const RecomputeOrderOptions& options)
      : analysis_(analysis), module_(analysis.graph.module()), options_(options), start_(Clock::now()) {}

  RecomputeOrderResult Run() {
    if (!Read()) return std::move(result_);
    const auto budget_bytes = options_.budget_bytes;
    if (budget_bytes && result_.before.temp_bytes <= *budget_bytes) {
      result_.reason = "the temporaries fit the budget as they are";
      return std::move(result_);
    }
    SearchOrder();
    const bool recomputes = options_.changes != RecomputeOrderChanges::kOrder && budget_bytes;
    Consider(result_.order, budget_bytes.value_or(0));
    if (recomputes && (!best_ || best_->heap.temp_bytes > *budget_bytes)) Recompute(*budget_bytes);
    Finish();
    return std::move(result_);
  }

 private:
  double TimeLeft() const {
    const std::chrono::duration<double> spent = Clock::now() - start_;
    return std::max(0.0, options_.time_limit_s - spent.count());
  }
  const StepProgram& program() const { return result_.hlo.program; }

  bool Read();
  void SearchOrder();
  int64_t PredictedTemp(const Schedule& order) const;
  int64_t Consider(const Schedule& schedule, int64_t budget_bytes);
  void Recompute(int64_t budget_bytes);
  Schedule Plan(std::span<const OpId> order, int64_t limit_bytes) const;
  Schedule PlanByCost(std::span<const OpId> order, int64_t limit_bytes) const;
  void Finish();

  const HloAnalysis& analysis_;
  const HloModule& module_;
  const RecomputeOrderOptions& options_;
  const Clock::time_point start_;
  std::optional<Candidate> best_;
  RecomputeOrderResult result_;
};

bool Pass::Read() {
  const Stopwatch stopwatch(&result_.timing.read_s);
  result_.error = BuildHloProgram(analysis_, options_.roofline, &result_.hlo);
  if (!result_.error.empty()) return false;
  StepProgram& program = result_.hlo.program;
  for (OpId op = 0; op < program.num_ops() && !options_.kept_scope.empty(); ++op) {
    if (result_.hlo.op_scopes[op].find(options_.kept_scope) != std::string::npos) program.op_can_recompute[op] = 0;
  }
  if (options_.changes == RecomputeOrderChanges::kClones) FixOrder(&program);
  result_.costs = ComputeRemakeCosts(program, program.schedule);
  result_.before = result_.after = AssignBuffers(*analysis_.alias, analysis_.ranges);
  result_.order = result_.schedule = program.schedule;
  return true;
}

// XLA's heap, were the entry computation in this order.
int64_t Pass::PredictedTemp(const Schedule& order) const {
  std::vector<int32_t> sequence;
  for (const int64_t id : EntrySequence(module_, result_.hlo.op_instruction_ids, order)) {
    const int32_t i = module_.instruction_index.at(id);
    if (!analysis_.graph.is_dropped(i)) sequence.push_back(i);
  }
  return AssignBuffers(*analysis_.alias, ComputeHloLiveRanges(*analysis_.alias, sequence)).temp_bytes;
}

void Pass::SearchOrder() {
  if (options_.changes == RecomputeOrderChanges::kClones) return;
  const Stopwatch stopwatch(&result_.timing.order_s);
  const OrderJudge judge = [this](const Schedule& order) { return PredictedTemp(order); };
  result_.orders = SearchOrders(program(), result_.costs, judge, {.time_limit_s = TimeLeft() / 2});
  result_.order = result_.orders.front().order;
}

// Carries the schedule out; the best of those that take less than the module as it came is kept. Returns the temporary
// bytes.
int64_t Pass::Consider(const Schedule& schedule, int64_t budget_bytes) {
  const Stopwatch stopwatch(&result_.timing.emit_s);
  Candidate candidate = {schedule, CountRecompute(program(), schedule).cost_s, "", nullptr, result_.before};
  if (schedule == program().schedule) return candidate.heap.temp_bytes;
  TransformResult transformed = ApplySchedule(module_, result_.hlo.op_instruction_ids, schedule);
  std::string error = transformed.error;
  if (error.empty()) candidate.module = ParseHloModule(std::move(transformed.bytes), &error);
  const auto analysis = candidate.module == nullptr ? nullptr : AnalyzeHlo(*candidate.module, &error);
  if (analysis == nullptr) {
    result_.reason = error;
    return candidate.heap.temp_bytes;
  }
  candidate.heap = AssignBuffers(*analysis->alias, analysis->ranges);
  const int64_t temp_bytes = candidate.heap.temp_bytes;
  const bool is_better = !best_ || candidate.Rank(budget_bytes) < best_->Rank(budget_bytes);
  if (temp_bytes < result_.before.temp_bytes && is_better) best_ = std::move(candidate);
  return temp_bytes;
}

void Pass::Recompute(int64_t budget_bytes) {
  int64_t limit_bytes = budget_bytes;
  for (int32_t round = 0; round < options_.max_rounds && (round == 0 || TimeLeft() > 0); ++round) {
    Schedule schedule;
    {
      const Stopwatch stopwatch(&result_.timing.plan_s);
      schedule = Plan(result_.order, std::max<int64_t>(limit_bytes, 0));
    }
    if (const std::string fault = CheckSchedule(program(), schedule); !fault.empty()) {
      result_.reason = "the planner gave no valid schedule: " + fault;
      return;
    }
    const int64_t peak_bytes = ComputeLiveness(program(), schedule).peak_bytes;
    const double cost_s = CountRecompute(program(), schedule).cost_s;
    const int64_t temp_bytes = Consider(schedule, budget_bytes);
    result_.rounds.push_back({limit_bytes, peak_bytes, temp_bytes, cost_s});
    const int64_t room_bytes = budget_bytes - temp_bytes;
    if (room_bytes < 0 && peak_bytes <= limit_bytes) {
      limit_bytes = std::min(limit_bytes, peak_bytes) + std::min(room_bytes, -budget_bytes / 200);
    } else if (static_cast<double>(room_bytes) > kRoomToLoosen * static_cast<double>(budget_bytes) && cost_s > 0) {
      limit_bytes += room_bytes;
    } else {
      break;
    }
  }
}

Schedule Pass::Plan(std::span<const OpId> order, int64_t limit_bytes) const {
  if (options_.planner) return options_.planner(program(), order, limit_bytes, TimeLeft());
  if (program().num_ops() > kMaxPolishedOps) {
    return PlanSegments(program(), order, limit_bytes, {.time_limit_s = TimeLeft()}).schedule;
  }
  return PlanByCost(order, limit_bytes);
}

Schedule Pass::PlanByCost(std::span<const OpId> order, int64_t limit_bytes) const {
  const PeakOptions options = {.max_trials = kMaxTrials, .time_limit_s = TimeLeft() / 2};
  std::vector<Schedule> plans = {PlanPeak(program(), order, limit_bytes, options).schedule};
  CoopOptions coop_options = {.cost = CostRule::kChain, .op_is_expensive = ExpensiveOps(program(), result_.costs)};
  CoopResult coop = PlanCoop(program(), order, limit_bytes, coop_options);
  if (coop.is_feasible) plans.push_back(PlanPeak(program(), coop.schedule, limit_bytes, options).schedule);
  return *std::ranges::min_element(plans, {}, [&](const Schedule& plan) {
    const int64_t excess_bytes = ComputeLiveness(program(), plan).peak_bytes - limit_bytes;
    return std::make_pair(std::max<int64_t>(excess_bytes, 0), CountRecompute(program(), plan).cost_s);
  });
}

void Pass::Finish() {
  const Stopwatch stopwatch(&result_.timing.verify_s);
  if (!best_) {
    if (result_.reason.empty()) result_.reason = "no plan takes less memory than the module as it came";
    return;
  }
  if (const std::string fault = VerifyTransform(module_, *best_->module); !fault.empty()) {
    result_.reason = "the rewritten module was not proved equivalent: " + fault;
    return;
  }
  result_.reason.clear();
  result_.bytes = best_->module->bytes;
  result_.schedule = std::move(best_->schedule);
  result_.recompute_cost_s = best_->cost_s;
  result_.after = std::move(best_->heap);
}

}  // namespace

RecomputeOrderResult RecomputeOrder(const HloAnalysis& analysis, const RecomputeOrderOptions& options) {
  return Pass(analysis, options).Run();
}

}  // namespace coopjax
