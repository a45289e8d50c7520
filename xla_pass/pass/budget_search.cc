#include "pass/budget_search.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "pass/repacking.h"
#include "planners/bounds/byte_bound.h"

namespace coopjax {
namespace {

constexpr int32_t kMaxSplits = 5;             // of the budget between the entry and what it runs
constexpr double kRoomToLoosen = 0.015;       // of the budget
constexpr int64_t kPartOfSteps = 2;           // for a round of a planner that may take all it gets
constexpr double kRoomToSettle[] = {0.01, 0.02, 0.04};  // above the smallest peak

double InnerCost(const std::shared_ptr<const std::vector<InnerPlan>>& plans) {
  double cost_s = 0;
  if (plans)
    for (const InnerPlan& inner : *plans) cost_s += inner.plan.cost_s;
  return cost_s;
}

PlanRound RoundOf(const CarriedOut& done) {
  PlanRound round = {done.plan.limit_bytes,
                     done.plan.peak_bytes,
                     done.heap.temp_bytes,
                     done.cost_s,
                     done.plan.planner,
                     done.share,
                     {}};
  if (!done.inner) return round;
  for (const InnerPlan& inner : *done.inner) {
    round.inside.push_back({inner.name, inner.plan.peak_bytes, inner.plan.planner});
  }
  return round;
}

}  // namespace

void BudgetSearch::Begin(const HloAnalysis& analysis, const HloProgram& hlo, std::vector<Schedule> starts) {
  analysis_ = &analysis;
  hlo_ = &hlo;
  starts_ = std::move(starts);
  if (starts_.empty()) starts_.emplace_back();
  inner_.emplace(analysis, reader_, planners_, allowance_);
  tried_.clear();
  room_bytes_ = 0;
}

void BudgetSearch::RunCounted(const HloAnalysis& analysis, const HloProgram& hlo, std::vector<Schedule> starts) {
  Begin(analysis, hlo, std::move(starts));
  room_bytes_ = CountOutputs(hlo).bytes;
  PlanShare(1);
}

bool BudgetSearch::Run(const HloAnalysis& analysis, const HloProgram& hlo, std::vector<Schedule> starts) {
  Begin(analysis, hlo, std::move(starts));
  PlanShare(1);
  report_.least_workspaces = inner_->LeastWorkspaces(/*looks=*/false);
  const PlanRank& alone = tried_.at(1).rank;
  if (!round_.inside.depends_on_share || (alone.excess_bytes == 0 && alone.cost_s == 0)) return false;
  Split();
  return true;
}

// Lets the insides give way, then both sides, as long as that may gain.
void BudgetSearch::Split() {
  const Tried alone = tried_.at(1);
  if (planners_.given && IsHopeless(alone)) inner_->Hurry();
  PlanShare(0);
  const bool entry_can_help = alone.rank.excess_bytes == 0 || alone.recomputes;
  while (tried_.at(0).rank.excess_bytes == 0 && entry_can_help && std::ssize(tried_) < kMaxSplits) {
    if (allowance_.Left() == 0) return;
    PlanShare(NextShare());
  }
}

// Whether live bytes can't be within the budget; what XLA puts into output buffers takes nothing.
bool BudgetSearch::IsHopeless(const Tried& alone) const {
  StepProgram bound = hlo_->program;
  bound.op_workspace_bytes = report_.least_workspaces;
  const int64_t unseen_bytes = std::max<int64_t>(alone.peak_bytes - alone.rank.temp_bytes, 0);
  return ComputeByteBound(bound).bytes - unseen_bytes > options_.budget_bytes;
}

// Between the best split and the better of its neighbours.
double BudgetSearch::NextShare() const {
  const auto by_rank = [](const auto& a, const auto& b) { return a.second.rank < b.second.rank; };
  const auto best = std::ranges::min_element(tried_, by_rank);
  const auto above = std::next(best);
  if (best == tried_.begin()) return (best->first + above->first) / 2;
  const auto below = std::prev(best);
  const bool is_above = above != tried_.end() && above->second.rank < below->second.rank;
  return (best->first + (is_above ? above : below)->first) / 2;
}

// A few rounds with one split.
void BudgetSearch::PlanShare(double share) {
  const int64_t budget_bytes = options_.budget_bytes;
  tried_[share].rank = {options_.came_bytes, std::numeric_limits<double>::infinity(), options_.came_bytes};
  std::set<int64_t> limits;
  ModulePlan last;
  for (int64_t limit_bytes = budget_bytes + room_bytes_; limits.insert(limit_bytes).second;) {
    const bool is_first = limits.size() == 1;
    if (!is_first && allowance_.Left() == 0) return;
    PlanInside(limit_bytes, share);
    const auto plans = is_first ? PlanStarts(limit_bytes) : PlanFrom(last.order, last.planner, limit_bytes);
    if (plans.empty()) return;
    last = plans.front();
    const int64_t room_bytes = budget_bytes - Consider(last, share);
    if (!last.fits() && is_first) {
      for (auto other = std::next(plans.begin()); other != plans.end(); ++other) Consider(*other, share);
      if (room_bytes < 0) return Settle(last, share);
    }
    const bool has_cost = last.cost_s + InnerCost(round_.inner) > 0;
    if (room_bytes < 0 && last.fits()) {
      limit_bytes = std::min(limit_bytes, last.peak_bytes) + std::min(room_bytes, -budget_bytes / 200);
    } else if (room_bytes > Times(kRoomToLoosen, budget_bytes) && has_cost) {
      limit_bytes += room_bytes;
    } else {
      return;
    }
    if (std::ssize(limits) == options_.max_rounds) return;
  }
}

void BudgetSearch::PlanInside(int64_t limit_bytes, double share) {
  const Stopwatch stopwatch(&report_.plan_s);
  round_ = {};
  PlannedInside inside = inner_->Plan(std::max<int64_t>(limit_bytes, 0), share);
  HloProgram hlo;
  if (inside.module && !reader_.Read(*inside.module->analysis, &hlo).empty()) return;
  if (inside.module) {
    round_.hlo = std::move(hlo);
    round_.inner = std::make_shared<const std::vector<InnerPlan>>(std::move(inside.plans));
  }
  round_.inside = std::move(inside);
  if (room_bytes_ > 0) round_.counted = CountOutputs(this->hlo());
}

std::vector<ModulePlan> BudgetSearch::PlanStarts(int64_t limit_bytes) {
  std::vector<ModulePlan> plans;
  for (const Schedule& start : starts_) {
    if (!plans.empty() && allowance_.Left() == 0) break;
    std::ranges::move(PlanFrom(start, "", limit_bytes), std::back_inserter(plans));
  }
  std::ranges::stable_sort(plans, {}, &ModulePlan::Rank);
  return plans;
}

std::vector<ModulePlan> BudgetSearch::PlanFrom(std::span<const OpId> order, const std::string& planner,
                                               int64_t limit_bytes) {
  const Stopwatch stopwatch(&report_.plan_s);
  const int64_t max_steps = planners_.given ? allowance_.Left() / kPartOfSteps : allowance_.Left();
  const Schedule longer = round_.counted ? WithLastOp(*round_.counted, order) : Schedule(order.begin(), order.end());
  const RematTask task = {.hlo = round_.counted ? round_.counted->hlo : hlo(),
                          .order = longer,
                          .planner = planner,
                          .limit_bytes = std::max<int64_t>(limit_bytes, 0),
                          .max_steps = max_steps};
  std::vector<ModulePlan> plans = planners_.Plan(task, &report_.fault);
  if (round_.counted) {
    for (ModulePlan& plan : plans) {
      plan.schedule = WithoutLastOp(*round_.counted, std::move(plan.schedule));
      plan.order = WithoutLastOp(*round_.counted, std::move(plan.order));
    }
  }
  return plans;
}

// The budget is out of reach: of the plans nearest to it the one that packs best, plans with a little more room among
// them. A planner that the caller brings has tried many ways; the one that came nearest may come as near in another
// plan.
void BudgetSearch::Settle(const ModulePlan& nearest, double share) {
  if (planners_.is_large) return;
  std::vector<int64_t> limits = {nearest.peak_bytes};
  if (planners_.given) {
    limits.push_back(options_.budget_bytes + room_bytes_);
  } else {
    for (const double room : kRoomToSettle) limits.push_back(Times(1 + room, nearest.peak_bytes));
  }
  for (const int64_t limit_bytes : limits) {
    const bool is_packed = tried_.at(share).rank.temp_bytes + room_bytes_ <= nearest.peak_bytes;
    if (allowance_.Left() == 0 || (planners_.given && is_packed)) return;
    for (const ModulePlan& plan : PlanFrom(nearest.order, nearest.planner, limit_bytes)) Consider(plan, share);
  }
}

// Carries the plan out and returns the temporary bytes.
int64_t BudgetSearch::Consider(const ModulePlan& plan, double share) {
  const Stopwatch stopwatch(&report_.emit_s);
  const auto [known, is_new] = round_.carried_out.try_emplace(plan.schedule);
  CarriedOut& done = known->second;
  done.plan = plan;
  done.inner = round_.inner;
  done.share = share;
  done.cost_s = plan.cost_s + InnerCost(round_.inner);
  if (is_new) {
    done.heap.temp_bytes = options_.came_bytes;
    const bool changes = &analysis() != &original_ || plan.schedule != hlo_->program.schedule;
    if (changes) CarryOut(analysis(), hlo(), &done, &report_.fault);
  }
  report_.rounds.push_back(RoundOf(done));
  const Tried tried = {done.Rank(options_.budget_bytes), plan.peak_bytes,
                       std::ssize(plan.schedule) > hlo_->program.num_ops()};
  if (tried.rank < tried_.at(share).rank) tried_.at(share) = tried;
  if (done.module) {
    if (!planners_.is_large && !IsPacked(done.heap)) archive_.KeepLoose(done);
    archive_.Keep(done);
  }
  return tried.rank.temp_bytes;
}

// Plans that lose bytes between their buffers: their runs are moved about. Every one by a seed of its own, for the same
// may stand here twice.
void BudgetSearch::Repack() {
  if (reader_.keeps_order) return;
  const Stopwatch stopwatch(&report_.plan_s);
  uint64_t seed = 0;
  for (const CarriedOut& loose : archive_.loose()) {
    ++seed;
    if (allowance_.Left() == 0) return;
    if (!archive_.MayGain(loose)) continue;
    const PackedOrderOptions options = {.target_bytes = std::max(options_.budget_bytes, loose.heap.least_temp_bytes),
                                        .seed = seed,
                                        .max_steps = allowance_.Left() / 4};
    const auto repacked = Repacked(loose, hlo_->program, reader_, options, &report_.fault);
    if (!repacked) continue;
    report_.rounds.push_back(RoundOf(*repacked));
    archive_.Keep(*repacked);
  }
}

std::optional<CarriedOut> BudgetSearch::TakeBest() {
  Repack();
  const CarriedOut* chosen = archive_.Chosen();
  return chosen == nullptr ? std::nullopt : std::optional(*chosen);
}

}  // namespace coopjax
