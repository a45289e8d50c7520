#include "pass/recompute_order.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include "bridge/transform.h"
#include "pass/carried_out.h"
#include "pass/output_room.h"
#include "pass/packed_module.h"
#include "program/liveness.h"
#include "verify/verify.h"

namespace coopjax {
namespace {

constexpr int32_t kMaxPolishedOps = 20'000;   // of programs that are not planned in segments alone
constexpr int32_t kLeastOrderedOps = 3;       // inside loops and branches: fewer have no order to speak of
constexpr int32_t kJudged = 12, kJudgedOfLarge = 3;   // orders whose packing is looked at
constexpr int32_t kMaxStarts = 3;             // orders that plans are made from
// Rewriting and reading back more instructions takes longer than planning: one start, and few rounds. Where these miss
// the budget, programs of not too many ops are planned like others.
constexpr int32_t kMaxOpsOfSecondSearch = 5'000;
constexpr int64_t kLargeModule = 50'000;
constexpr int32_t kMaxRounds = 6, kMaxRoundsOfLarge = 2;
constexpr double kNextToNothing = 0.001;      // of the program's cost

class Pass {
 public:
  Pass(const HloAnalysis& analysis, const RecomputeOrderOptions& options)
      : original_(analysis),
        analysis_(&analysis),
        options_(options),
        allowance_(options.max_steps),
        reader_{options.roofline, options.kept_scope, options.changes == RecomputeOrderChanges::kClones} {}

  RecomputeOrderResult Run(std::optional<HeapResult> before) {
    result_.before = before ? *std::move(before) : AssignBuffers(*original_.alias, original_.ranges);
    result_.after = result_.before;
    const auto budget_bytes = options_.budget_bytes;
    if (!Read()) return std::move(result_);
    result_.costs = ComputeRemakeCosts(program(), program().schedule);
    result_.plan = {.schedule = program().schedule, .order = program().schedule, .planner = order_planner_};
    result_.op_workspace_bytes = program().op_workspace_bytes;
    result_.least_workspaces.assign(program().num_ops(), 0);
    if (budget_bytes && result_.before.temp_bytes <= *budget_bytes) {
      result_.reason = "the temporaries fit the budget as they are";
      return std::move(result_);
    }
    SearchOrder();
    const bool recomputes = options_.changes != RecomputeOrderChanges::kOrder && budget_bytes;
    if (recomputes && OrderedBytes() > *budget_bytes) Recompute(*budget_bytes);
    if (!best_ || OrderedBytes() < best_->heap.temp_bytes) TakeOrder();
    Finish();
    return std::move(result_);
  }

 private:
  const StepProgram& program() const { return result_.hlo.program; }
  const hlo::Module& module() const { return analysis_->graph.module(); }
  HeapResult HeapOf(const Schedule& order) const {
    return HeapInOrder(*analysis_, result_.hlo.op_instruction_ids, order);
  }
  bool IsLarge() const {
    return std::ssize(module().instructions) > kLargeModule || program().num_ops() > kMaxPolishedOps;
  }

  bool Read();
  void SearchOrder();
  void SearchInnerOrders();
  std::vector<ComputationSchedule> InnerOrder(int32_t computation) const;
  void OrderInside(std::span<const ComputationSchedule> orders);
  void AddCountedOrders(const OrderJudge& judge, const OrderSearchOptions& options);
  void PackOrder();
  void PlanOrder();
  int64_t OrderedBytes() const;
  void Recompute(int64_t budget_bytes);
  void Search(int64_t budget_bytes, bool is_large);
  bool HoldsForNextToNothing(int64_t budget_bytes) const;
  void TakeBestOf(BudgetSearch* search);
  std::vector<Schedule> Starts(bool is_large) const;
  void TakeOrder();
  void Finish();

  const HloAnalysis& original_;
  const HloAnalysis* analysis_;              // of the module whose entry is planned: `original_` or `inner_ordered_`
  std::optional<ReadModule> inner_ordered_;  // the module with other orders inside loops, branches and calls
  const RecomputeOrderOptions& options_;
  const Allowance allowance_;
  const ProgramReader reader_;
  std::string order_planner_ = "order";      // that made the best order; this search by default
  std::optional<CarriedOut> best_;
  RecomputeOrderResult result_;
};

bool Pass::Read() {
  const Stopwatch stopwatch(&result_.timing.read_s);
  result_.error = reader_.Read(*analysis_, &result_.hlo);
  return result_.error.empty();
}

void Pass::SearchOrder() {
  if (options_.changes == RecomputeOrderChanges::kClones || !options_.searches_order) return;
  const Stopwatch stopwatch(&result_.timing.order_s);
  SearchInnerOrders();
  if (options_.changes == RecomputeOrderChanges::kOrder && options_.planner) return PlanOrder();
  const OrderJudge judge = [this](const Schedule& order) { return HeapOf(order).temp_bytes; };
  const OrderSearchOptions options = {.num_judged = IsLarge() ? kJudgedOfLarge : kJudged,
                                      .max_steps = allowance_.Left() / 2};
  result_.orders = SearchOrders(program(), result_.costs, judge, options);
  if (!IsLarge() && UsesOutputRoom(result_.hlo, result_.before.temp_bytes)) AddCountedOrders(judge, options);
  if (!IsLarge()) PackOrder();
}

// Orders that are small where outputs count.
void Pass::AddCountedOrders(const OrderJudge& judge, const OrderSearchOptions& options) {
  const CountedOutputs counted = CountOutputs(result_.hlo);
  const StepProgram& program = counted.hlo.program;
  const OrderJudge judge_shorter = [&](const Schedule& order) { return judge(WithoutLastOp(counted, order)); };
  for (RankedOrder& ranked :
       SearchOrders(program, ComputeRemakeCosts(program, program.schedule), judge_shorter, options)) {
    ranked.order = WithoutLastOp(counted, ranked.order);
    ranked.peak_bytes = ComputeLiveness(this->program(), ranked.order).peak_bytes;
    if (std::ranges::find(result_.orders, ranked.order, &RankedOrder::order) == result_.orders.end())
      result_.orders.push_back(std::move(ranked));
  }
  std::ranges::stable_sort(result_.orders, {}, &RankedOrder::judged_bytes);
}

// Where the best order loses bytes between its buffers, one like it that loses fewer.
void Pass::PackOrder() {
  const Schedule& best = result_.orders.front().order;
  const HeapResult heap = HeapOf(best);
  if (IsPacked(heap)) return;
  PackedOrder packed = PackOrderOf(*analysis_, result_.hlo, best,
                                   {.target_bytes = heap.least_temp_bytes, .max_steps = allowance_.Left() / 4});
  if (packed.heap.temp_bytes == heap.temp_bytes) return;
  const int64_t peak_bytes = ComputeLiveness(program(), packed.order).peak_bytes;
  result_.orders.insert(result_.orders.begin(),
                        {std::move(packed.order), packed.heap.temp_bytes, peak_bytes, "packed"});
}

// As small as the caller's planner makes it without repeats.
void Pass::PlanOrder() {
  HloProgram fixed = result_.hlo;
  fixed.program.op_can_recompute.assign(program().num_ops(), 0);
  const RematTask task = {
      .hlo = fixed, .limit_bytes = ComputeLowerBound(program()).bytes, .max_steps = allowance_.Left()};
  for (ModulePlan& plan : RematPlanners{options_.planner}.Plan(task, &result_.reason)) {
    result_.orders.push_back({plan.schedule, HeapOf(plan.schedule).temp_bytes, plan.peak_bytes, "planner"});
    order_planner_ = plan.planner;
  }
}

// Callees first, so that a loop is ordered around the smallest loops inside. What no other stands around is ordered at
// once: modules have hundreds of loops, and reading one back takes as long as finding an order for many.
void Pass::SearchInnerOrders() {
  std::map<int32_t, std::vector<int32_t>> levels;
  std::vector<int32_t> level_of(module().computations.size(), 0);
  for (int32_t c = 0; c < std::ssize(module().computations); ++c) {
    if (c == module().entry || !analysis_->graph.is_control_flow(c)) continue;
    for (const int32_t i : module().computations[c].instructions) {
      if (!hlo::IsControlFlowCall(analysis_->graph.op(i))) continue;
      for (const int32_t callee : analysis_->graph.called(i)) level_of[c] = std::max(level_of[c], level_of[callee] + 1);
    }
    levels[level_of[c]].push_back(c);
  }
  for (const auto& [level, computations] : levels) {
    std::vector<ComputationSchedule> orders;
    for (const int32_t c : computations) {
      if (allowance_.Left() > 0) std::ranges::move(InnerOrder(c), std::back_inserter(orders));
    }
    OrderInside(orders);
  }
}

// A computation's ops in the order of least peak; nothing where that is the order it has.
std::vector<ComputationSchedule> Pass::InnerOrder(int32_t computation) const {
  HloProgram inner;
  if (!BuildHloProgram(*analysis_, options_.roofline, &inner, computation).empty()) return {};
  if (inner.program.num_ops() < kLeastOrderedOps) return {};
  const OrderJudge judge = [&](const Schedule& order) { return ComputeLiveness(inner.program, order).peak_bytes; };
  const RemakeCosts costs = ComputeRemakeCosts(inner.program, inner.program.schedule);
  auto orders = SearchOrders(inner.program, costs, judge, {.max_steps = allowance_.Left() / 4});
  if (orders.front().judged_bytes >= judge(inner.program.schedule)) return {};
  return {{computation, std::move(inner.op_instruction_ids), std::move(orders.front().order)}};
}

// Takes the orders that take no more memory: all of them, or, where they do, of each half what it can.
void Pass::OrderInside(std::span<const ComputationSchedule> orders) {
  if (orders.empty() || allowance_.Left() == 0) return;
  std::string error;
  std::optional<ReadModule> ordered = ReadBytes(ApplySchedules(module(), orders).bytes, &error);
  HloProgram hlo;
  const bool is_better = ordered &&
                         ordered->Heap().temp_bytes <= AssignBuffers(*analysis_->alias, analysis_->ranges).temp_bytes &&
                         reader_.Read(*ordered->analysis, &hlo).empty();
  if (is_better) {
    inner_ordered_ = std::move(ordered);
    analysis_ = inner_ordered_->analysis.get();
    result_.hlo = std::move(hlo);
  } else if (orders.size() > 1) {
    OrderInside(orders.first(orders.size() / 2));
    OrderInside(orders.subspan(orders.size() / 2));
  }
}

// Temporary bytes of the best order.
int64_t Pass::OrderedBytes() const {
  return result_.orders.empty() ? result_.before.temp_bytes : result_.orders.front().judged_bytes;
}

void Pass::Recompute(int64_t budget_bytes) {
  Search(budget_bytes, IsLarge());
  if (!IsLarge() || options_.planner || program().num_ops() > kMaxOpsOfSecondSearch) return;
  if (!best_ || best_->heap.temp_bytes > budget_bytes) Search(budget_bytes, false);
}

// Insides are planned from the orders that were found for them, and from those that they came in: what peaks lowest
// without repeats need not with them. Planners that the caller brings look at other orders themselves.
void Pass::Search(int64_t budget_bytes, bool is_large) {
  const RematPlanners planners = {options_.planner, is_large};
  const BudgetSearchOptions options = {.budget_bytes = budget_bytes,
                                       .came_bytes = result_.before.temp_bytes,
                                       .max_rounds = is_large ? kMaxRoundsOfLarge : kMaxRounds,
                                       .near_smallest = options_.near_smallest};
  if (UsesOutputRoom(result_.hlo, result_.before.temp_bytes)) {
    BudgetSearch search(original_, reader_, planners, options, Allowance(allowance_.Left() / 2));
    search.RunCounted(*analysis_, result_.hlo, Starts(is_large));
    TakeBestOf(&search);
    if (HoldsForNextToNothing(budget_bytes)) return;
  }
  BudgetSearch search(original_, reader_, planners, options, allowance_);
  HloProgram came;
  bool plans_as_it_came = inner_ordered_ && reader_.Read(original_, &came).empty();
  if (!plans_as_it_came || !options_.planner) {
    plans_as_it_came &= search.Run(*analysis_, result_.hlo, Starts(is_large)) && !is_large;
  }
  if (plans_as_it_came) search.Run(original_, came, Starts(is_large));
  TakeBestOf(&search);
  result_.least_workspaces = search.report().least_workspaces;
}

bool Pass::HoldsForNextToNothing(int64_t budget_bytes) const {
  if (!best_ || best_->heap.temp_bytes > budget_bytes) return false;
  const std::vector<double>& costs = program().op_cost_s;
  return best_->cost_s <= kNextToNothing * std::accumulate(costs.begin(), costs.end(), 0.0);
}

void Pass::TakeBestOf(BudgetSearch* search) {
  std::optional<CarriedOut> found = search->TakeBest();
  const int64_t budget_bytes = *options_.budget_bytes;
  if (!best_ || (found && found->Rank(budget_bytes) < best_->Rank(budget_bytes))) best_ = std::move(found);
  const BudgetSearchReport& report = search->report();
  std::ranges::copy(report.rounds, std::back_inserter(result_.rounds));
  result_.reason = report.fault;
  result_.timing.plan_s += report.plan_s;
  result_.timing.emit_s += report.emit_s;
}

// The best order, the one that came, and the next best; none where planners choose.
std::vector<Schedule> Pass::Starts(bool is_large) const {
  if (!options_.searches_order && options_.changes != RecomputeOrderChanges::kClones) return {};
  const int32_t max_starts = is_large || options_.planner ? 1 : kMaxStarts;
  std::vector<Schedule> starts;
  const auto add = [&](const Schedule& order) {
    if (std::ssize(starts) < max_starts && std::ranges::find(starts, order) == starts.end()) starts.push_back(order);
  };
  if (!result_.orders.empty()) add(result_.orders.front().order);
  add(program().schedule);
  for (const RankedOrder& ranked : result_.orders) add(ranked.order);
  return starts;
}

// The module in the best order, if that is another than it came in.
void Pass::TakeOrder() {
  if (result_.orders.empty()) return;
  const RankedOrder& best = result_.orders.front();
  if (best.order == program().schedule && !inner_ordered_) return;
  const Stopwatch stopwatch(&result_.timing.emit_s);
  CarriedOut ordered = {.plan = {best.order, best.order, order_planner_, best.judged_bytes, best.peak_bytes}};
  if (!CarryOut(*analysis_, result_.hlo, &ordered, &result_.reason)) return;
  if (ordered.heap.temp_bytes < result_.before.temp_bytes) best_ = std::move(ordered);
}

void Pass::Finish() {
  const Stopwatch stopwatch(&result_.timing.verify_s);
  if (!best_) {
    if (result_.reason.empty()) result_.reason = "no plan takes less memory than the module as it came";
    return;
  }
  if (const std::string fault = verify::VerifyTransform(original_.graph.module(), *best_->module); !fault.empty()) {
    result_.reason = "the rewritten module was not proved equivalent: " + fault;
    return;
  }
  result_.reason.clear();
  result_.bytes = best_->module->bytes;
  result_.plan = std::move(best_->plan);
  result_.inner = std::move(best_->inner);
  result_.op_workspace_bytes = std::move(best_->op_workspace_bytes);
  result_.recompute_cost_s = best_->cost_s;
  result_.after = std::move(best_->heap);
}

}  // namespace

RecomputeOrderResult RecomputeOrder(const HloAnalysis& analysis, const RecomputeOrderOptions& options,
                                    std::optional<HeapResult> before) {
  return Pass(analysis, options).Run(std::move(before));
}

}  // namespace coopjax
