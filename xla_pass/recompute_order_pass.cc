#include "recompute_order_pass.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <tuple>
#include <utility>

#include "coop_planner.h"
#include "liveness.h"
#include "packed_module.h"
#include "peak_planner.h"
#include "segment_planner.h"
#include "transform.h"
#include "verify.h"

namespace coopjax {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kMaxPolishedOps = 20'000;   // of programs that are not planned in segments alone
constexpr int32_t kMaxPolishedOfLarge = 4'000;
constexpr int32_t kLeastOrderedOps = 3;       // inside loops and branches: fewer have no order to speak of
constexpr int32_t kJudged = 12, kJudgedOfLarge = 3;   // orders whose packing is looked at
constexpr int32_t kMaxStarts = 3;             // orders that plans are made from
// Rewriting and reading back more instructions takes longer than planning: one start, and few rounds.
constexpr int64_t kLargeModule = 50'000;
constexpr int32_t kMaxRoundsOfLarge = 2;
constexpr int64_t kMaxTrials = 100'000;
constexpr double kRoomToLoosen = 0.03;        // of the budget
constexpr double kNearlyPacked = 1.005;       // of the least that a packing of the same buffers takes
constexpr int32_t kMaxRepacked = 4;           // plans whose runs are moved about so that they pack better
constexpr double kRoomToSettle[] = {0, 0.01, 0.02, 0.04};   // above the smallest peak

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

// A plan that was not carried out yet.
struct Proposal {
  Schedule order;                          // that it was made from
  Schedule schedule;
  int64_t peak_bytes = 0;                  // live
  double cost_s = 0;
  std::pair<int64_t, double> Rank(int64_t limit_bytes) const {
    return {std::max<int64_t>(peak_bytes - limit_bytes, 0), cost_s};
  }
};

// What became of one.
struct Candidate {
  Proposal plan;
  HeapResult heap;
  std::shared_ptr<const HloModule> module;

  using Ranked = std::tuple<int64_t, double, int64_t>;
  Ranked Rank(int64_t budget_bytes) const { return RankAt(heap.temp_bytes, budget_bytes); }
  // Were nothing lost between its buffers.
  Ranked LeastRank(int64_t budget_bytes) const { return RankAt(heap.least_temp_bytes, budget_bytes); }

 private:
  Ranked RankAt(int64_t temp_bytes, int64_t budget_bytes) const {
    return {std::max<int64_t>(temp_bytes - budget_bytes, 0), plan.cost_s, temp_bytes};
  }
};

bool IsPacked(const HeapResult& heap) {
  return static_cast<double>(heap.temp_bytes) <= kNearlyPacked * static_cast<double>(heap.least_temp_bytes);
}

// Every op's first run right after that of the op before it: planners move originals else.
void FixOrder(StepProgram* program) {
  std::vector<OpId> before(program->num_ops(), kNoOp);
  for (Step t = 1; t < program->num_ops(); ++t) before[program->schedule[t]] = program->schedule[t - 1];
  program->op_control = {};
  for (const OpId op : before) program->op_control.AddRow({&op, op == kNoOp ? size_t{0} : size_t{1}});
}

// A module with what was derived from it.
struct ReadModule {
  std::unique_ptr<const HloModule> module;
  std::unique_ptr<const HloAnalysis> analysis;

  HeapResult Heap() const { return AssignBuffers(*analysis->alias, analysis->ranges); }
};

// Nothing, and a sentence in `error`, when the bytes are no such module.
std::optional<ReadModule> ReadBytes(std::string bytes, std::string* error) {
  ReadModule read = {ParseHloModule(std::move(bytes), error), nullptr};
  if (read.module == nullptr) return std::nullopt;
  read.analysis = AnalyzeHlo(*read.module, error);
  if (read.analysis == nullptr) return std::nullopt;
  return read;
}

class Pass {
 public:
  Pass(const HloAnalysis& analysis, const RecomputeOrderOptions& options)
      : original_(analysis), analysis_(&analysis), options_(options), start_(Clock::now()) {}

  RecomputeOrderResult Run() {
    result_.before = result_.after = AssignBuffers(*original_.alias, original_.ranges);
    const auto budget_bytes = options_.budget_bytes;
    if (!Read(&result_.hlo)) return std::move(result_);
    result_.costs = ComputeRemakeCosts(program(), program().schedule);
    result_.order = result_.schedule = program().schedule;
    if (budget_bytes && result_.before.temp_bytes <= *budget_bytes) {
      result_.reason = "the temporaries fit the budget as they are";
      return std::move(result_);
    }
    SearchOrder();
    const bool recomputes = options_.changes != RecomputeOrderChanges::kOrder && budget_bytes;
    if (recomputes && OrderedBytes() > *budget_bytes) Recompute(*budget_bytes);
    if (!best_) Consider({result_.order, result_.order}, 0, budget_bytes.value_or(0));
    Finish();
    return std::move(result_);
  }

 private:
  double TimeLeft() const {
    const std::chrono::duration<double> spent = Clock::now() - start_;
    return std::max(0.0, options_.time_limit_s - spent.count());
  }
  const StepProgram& program() const { return result_.hlo.program; }
  const HloModule& module() const { return analysis_->graph.module(); }
  bool IsLarge() const {
    return std::ssize(module().instructions) > kLargeModule || program().num_ops() > kMaxPolishedOps;
  }

  bool Read(HloProgram* hlo);
  void SearchOrder();
  void PackOrder();
  void SearchInnerOrders();
  std::string InnerOrdered(int32_t computation) const;
  int64_t Consider(const Proposal& proposal, int64_t limit_bytes, int64_t budget_bytes);
  std::optional<Candidate> CarryOut(const Proposal& proposal);
  void Keep(Candidate candidate, int64_t budget_bytes);
  int64_t OrderedBytes() const;
  void Recompute(int64_t budget_bytes);
  void PlanInRounds(std::vector<Proposal> proposals, int64_t budget_bytes);
  void Settle(const std::vector<Proposal>& proposals, int64_t budget_bytes);
  void Repack(int64_t budget_bytes);
  std::vector<Proposal> FirstProposals(int64_t limit_bytes);
  std::vector<Proposal> Propose(const Schedule& order, int64_t limit_bytes);
  std::vector<Schedule> Plan(std::span<const OpId> order, int64_t limit_bytes) const;
  void Finish();

  const HloAnalysis& original_;
  const HloAnalysis* analysis_;              // of the module whose entry is planned: `original_` or `inner_ordered_`
  std::optional<ReadModule> inner_ordered_;  // the module with other orders inside loops, branches and calls
  const RecomputeOrderOptions& options_;
  const Clock::time_point start_;
  std::optional<Candidate> best_;
  std::vector<Candidate> loose_;             // those that lose bytes between their buffers
  RecomputeOrderResult result_;
};

bool Pass::Read(HloProgram* hlo) {
  const Stopwatch stopwatch(&result_.timing.read_s);
  result_.error = BuildHloProgram(*analysis_, options_.roofline, hlo);
  if (!result_.error.empty()) return false;
  for (OpId op = 0; op < hlo->program.num_ops() && !options_.kept_scope.empty(); ++op) {
    if (hlo->op_scopes[op].find(options_.kept_scope) != std::string::npos) hlo->program.op_can_recompute[op] = 0;
  }
  if (options_.changes == RecomputeOrderChanges::kClones) FixOrder(&hlo->program);
  return true;
}

void Pass::SearchOrder() {
  if (options_.changes == RecomputeOrderChanges::kClones) return;
  const Stopwatch stopwatch(&result_.timing.order_s);
  SearchInnerOrders();
  const OrderJudge judge = [this](const Schedule& order) {
    return HeapInOrder(*analysis_, result_.hlo.op_instruction_ids, order).temp_bytes;
  };
  const OrderSearchOptions options = {.num_judged = IsLarge() ? kJudgedOfLarge : kJudged,
                                      .time_limit_s = TimeLeft() / 2};
  result_.orders = SearchOrders(program(), result_.costs, judge, options);
  PackOrder();
  result_.order = result_.orders.front().order;
}

// Where the best order loses bytes between its buffers, one like it that loses fewer.
void Pass::PackOrder() {
  const Schedule& best = result_.orders.front().order;
  const HeapResult heap = HeapInOrder(*analysis_, result_.hlo.op_instruction_ids, best);
  if (IsLarge() || IsPacked(heap)) return;
  PackedOrder packed = SearchPackedOrder(*analysis_, result_.hlo, best,
                                         {.target_bytes = heap.least_temp_bytes, .time_limit_s = TimeLeft() / 4});
  if (packed.heap.temp_bytes == heap.temp_bytes) return;
  const int64_t peak_bytes = ComputeLiveness(program(), packed.order).peak_bytes;
  result_.orders.insert(result_.orders.begin(),
                        {std::move(packed.order), packed.heap.temp_bytes, peak_bytes, "packed"});
}

// Callees first, so that a loop is ordered around the smallest loops inside.
void Pass::SearchInnerOrders() {
  for (int32_t c = 0; c < std::ssize(module().computations); ++c) {
    if (c == module().entry || !analysis_->graph.is_control_flow(c)) continue;
    std::string bytes = InnerOrdered(c), error;
    if (bytes.empty()) continue;
    std::optional<ReadModule> ordered = ReadBytes(std::move(bytes), &error);
    if (!ordered || ordered->Heap().temp_bytes > AssignBuffers(*analysis_->alias, analysis_->ranges).temp_bytes) continue;
    HloProgram hlo;
    const HloAnalysis* const before = std::exchange(analysis_, ordered->analysis.get());
    if (Read(&hlo)) {
      inner_ordered_ = std::move(ordered);
      result_.hlo = std::move(hlo);
    } else {
      analysis_ = before;
      result_.error.clear();
    }
  }
}

// The module with a computation's ops in the order of least peak; empty where that is the order it has.
std::string Pass::InnerOrdered(int32_t computation) const {
  HloProgram inner;
  if (!BuildHloProgram(*analysis_, options_.roofline, &inner, computation).empty()) return "";
  if (inner.program.num_ops() < kLeastOrderedOps) return "";
  const OrderJudge judge = [&](const Schedule& order) { return ComputeLiveness(inner.program, order).peak_bytes; };
  const RemakeCosts costs = ComputeRemakeCosts(inner.program, inner.program.schedule);
  const auto orders = SearchOrders(inner.program, costs, judge, {.time_limit_s = TimeLeft() / 4});
  if (orders.front().judged_bytes >= judge(inner.program.schedule)) return "";
  return ApplySchedule(module(), inner.op_instruction_ids, orders.front().order, computation).bytes;
}

// Carries the plan out; the best of those that take less than the module as it came is kept. Returns the temporary
// bytes.
int64_t Pass::Consider(const Proposal& proposal, int64_t limit_bytes, int64_t budget_bytes) {
  int64_t temp_bytes = result_.before.temp_bytes;
  if (std::optional<Candidate> candidate = CarryOut(proposal)) {
    temp_bytes = candidate->heap.temp_bytes;
    if (!IsLarge() && !IsPacked(candidate->heap)) loose_.push_back(*candidate);
    Keep(*std::move(candidate), budget_bytes);
  }
  if (std::ssize(proposal.schedule) > program().num_ops()) {
    result_.rounds.push_back({limit_bytes, proposal.peak_bytes, temp_bytes, proposal.cost_s});
  }
  return temp_bytes;
}

void Pass::Keep(Candidate candidate, int64_t budget_bytes) {
  if (candidate.heap.temp_bytes >= result_.before.temp_bytes) return;
  if (!best_ || candidate.Rank(budget_bytes) < best_->Rank(budget_bytes)) best_ = std::move(candidate);
}

// Nothing where nothing would change.
std::optional<Candidate> Pass::CarryOut(const Proposal& proposal) {
  const Stopwatch stopwatch(&result_.timing.emit_s);
  if (proposal.schedule == program().schedule && !inner_ordered_) return std::nullopt;
  TransformResult transformed = ApplySchedule(module(), result_.hlo.op_instruction_ids, proposal.schedule);
  result_.reason = transformed.error;
  if (!result_.reason.empty()) return std::nullopt;
  std::optional<ReadModule> read = ReadBytes(std::move(transformed.bytes), &result_.reason);
  if (!read) return std::nullopt;
  return Candidate{proposal, read->Heap(), std::move(read->module)};
}

// Temporary bytes of the best order.
int64_t Pass::OrderedBytes() const {
  return result_.orders.empty() ? result_.before.temp_bytes : result_.orders.front().judged_bytes;
}

void Pass::Recompute(int64_t budget_bytes) {
  std::vector<Proposal> proposals = FirstProposals(budget_bytes);
  if (proposals.empty()) return;
  std::ranges::stable_sort(proposals, {}, [&](const Proposal& each) { return each.Rank(budget_bytes); });
  if (proposals.front().peak_bytes > budget_bytes) {
    Settle(proposals, budget_bytes);
  } else {
    PlanInRounds(std::move(proposals), budget_bytes);
  }
  Repack(budget_bytes);
}

void Pass::PlanInRounds(std::vector<Proposal> proposals, int64_t budget_bytes) {
  int64_t limit_bytes = budget_bytes;
  const int32_t max_rounds = IsLarge() ? std::min(kMaxRoundsOfLarge, options_.max_rounds) : options_.max_rounds;
  for (int32_t round = 1; !proposals.empty(); ++round) {
    const Proposal& proposal = proposals.front();
    const int64_t room_bytes = budget_bytes - Consider(proposal, limit_bytes, budget_bytes);
    const bool may_loosen = static_cast<double>(room_bytes) > kRoomToLoosen * static_cast<double>(budget_bytes);
    if (room_bytes < 0 && proposal.peak_bytes <= limit_bytes) {
      limit_bytes = std::min(limit_bytes, proposal.peak_bytes) + std::min(room_bytes, -budget_bytes / 200);
    } else if (may_loosen && proposal.cost_s > 0) {
      limit_bytes += room_bytes;
    } else {
      return;
    }
    if (round >= max_rounds || TimeLeft() == 0) return;
    proposals = Propose(Schedule(proposal.order), limit_bytes);
  }
}

// Plans that lose bytes between their buffers, and would be better than the best if they lost none: their runs are moved
// about so that they lose fewer. Every one by a seed of its own, for the same may stand here twice.
void Pass::Repack(int64_t budget_bytes) {
  if (options_.changes != RecomputeOrderChanges::kBoth) return;
  std::ranges::stable_sort(loose_, {}, [&](const Candidate& each) { return each.LeastRank(budget_bytes); });
  if (loose_.size() > kMaxRepacked) loose_.resize(kMaxRepacked);
  for (uint64_t seed = 1; Candidate& loose : loose_) {
    if (TimeLeft() == 0 || (best_ && loose.LeastRank(budget_bytes) >= best_->Rank(budget_bytes))) return;
    const PackedOrderOptions options = {.target_bytes = std::max(budget_bytes, loose.heap.least_temp_bytes),
                                        .seed = seed++, .time_limit_s = TimeLeft() / 4};
    PackedSchedule packed = SearchPackedSchedule(*loose.module, options_.roofline, loose.plan.schedule, options);
    if (packed.bytes.empty()) continue;
    std::optional<ReadModule> read = ReadBytes(std::move(packed.bytes), &result_.reason);
    if (!read) continue;
    loose.plan.schedule = std::move(packed.schedule);
    loose.plan.peak_bytes = ComputeLiveness(program(), loose.plan.schedule).peak_bytes;
    loose.heap = read->Heap();
    loose.module = std::move(read->module);
    result_.rounds.push_back({options.target_bytes, loose.plan.peak_bytes, loose.heap.temp_bytes, loose.plan.cost_s});
    Keep(std::move(loose), budget_bytes);
  }
}

// The budget is out of reach: of the plans nearest to it the one that packs best, plans with a little more room among
// them.
void Pass::Settle(const std::vector<Proposal>& proposals, int64_t budget_bytes) {
  for (const Proposal& each : proposals) Consider(each, budget_bytes, budget_bytes);
  if (IsLarge()) return;
  for (const double room : kRoomToSettle) {
    if (TimeLeft() == 0) return;
    const auto limit_bytes = static_cast<int64_t>((1 + room) * static_cast<double>(proposals.front().peak_bytes));
    for (const Proposal& each : Propose(proposals.front().order, limit_bytes)) {
      Consider(each, limit_bytes, budget_bytes);
    }
  }
}

// Plans from several orders: the best, the one that came, and the next best.
std::vector<Proposal> Pass::FirstProposals(int64_t limit_bytes) {
  const int32_t max_starts = IsLarge() || options_.planner ? 1 : kMaxStarts;
  std::vector<Schedule> starts = {result_.order};
  const auto add = [&](const Schedule& order) {
    if (std::ssize(starts) < max_starts && std::ranges::find(starts, order) == starts.end()) starts.push_back(order);
  };
  add(program().schedule);
  for (const RankedOrder& ranked : result_.orders) add(ranked.order);
  std::vector<Proposal> proposals;
  for (const Schedule& start : starts) {
    if (!proposals.empty() && TimeLeft() == 0) break;
    std::ranges::move(Propose(start, limit_bytes), std::back_inserter(proposals));
  }
  return proposals;
}

// The plans from one order, the best first.
std::vector<Proposal> Pass::Propose(const Schedule& order, int64_t limit_bytes) {
  const Stopwatch stopwatch(&result_.timing.plan_s);
  std::vector<Proposal> proposals;
  for (Schedule& schedule : Plan(order, std::max<int64_t>(limit_bytes, 0))) {
    if (const std::string fault = CheckSchedule(program(), schedule); !fault.empty()) {
      result_.reason = "the planner gave no valid schedule: " + fault;
      continue;
    }
    const int64_t peak_bytes = ComputeLiveness(program(), schedule).peak_bytes;
    const double cost_s = CountRecompute(program(), schedule).cost_s;
    proposals.push_back({order, std::move(schedule), peak_bytes, cost_s});
  }
  std::ranges::stable_sort(proposals, {}, [&](const Proposal& each) { return each.Rank(limit_bytes); });
  return proposals;
}

std::vector<Schedule> Pass::Plan(std::span<const OpId> order, int64_t limit_bytes) const {
  if (options_.planner) return {options_.planner(program(), order, limit_bytes, TimeLeft())};
  std::vector<Schedule> plans;
  if (!IsLarge()) {
    const PeakOptions options = {.max_trials = kMaxTrials, .time_limit_s = TimeLeft() / 3};
    plans.push_back(PlanPeak(program(), order, limit_bytes, options).schedule);
    CoopOptions coop_options = {.cost = CostRule::kChain, .op_is_expensive = ExpensiveOps(program(), result_.costs)};
    CoopResult coop = PlanCoop(program(), order, limit_bytes, coop_options);
    if (coop.is_feasible) plans.push_back(PlanPeak(program(), coop.schedule, limit_bytes, options).schedule);
  }
  SegmentOptions options = {.time_limit_s = TimeLeft() / 3};
  if (IsLarge()) options.max_polished_ops = kMaxPolishedOfLarge;
  plans.push_back(PlanSegments(program(), order, limit_bytes, options).schedule);
  return plans;
}

void Pass::Finish() {
  const Stopwatch stopwatch(&result_.timing.verify_s);
  if (!best_) {
    if (result_.reason.empty()) result_.reason = "no plan takes less memory than the module as it came";
    return;
  }
  if (const std::string fault = VerifyTransform(original_.graph.module(), *best_->module); !fault.empty()) {
    result_.reason = "the rewritten module was not proved equivalent: " + fault;
    return;
  }
  result_.reason.clear();
  result_.bytes = best_->module->bytes;
  result_.order = std::move(best_->plan.order);
  result_.schedule = std::move(best_->plan.schedule);
  result_.recompute_cost_s = best_->plan.cost_s;
  result_.after = std::move(best_->heap);
}

}  // namespace

RecomputeOrderResult RecomputeOrder(const HloAnalysis& analysis, const RecomputeOrderOptions& options) {
  return Pass(analysis, options).Run();
}

}  // namespace coopjax
