#include "pass/budget_search.h"

#include <iterator>
#include <limits>
#include <set>

#include "planners/bounds/byte_bound.h"
#include "program/liveness.h"
#include "pass/packed_module.h"
#include "bridge/transform.h"

namespace coopjax {
namespace {

constexpr int32_t kMaxSplits = 5;             // of the budget between the entry and what it runs
constexpr double kRoomToLoosen = 0.03;        // of the budget
constexpr double kShareOfTime = 0.5;          // for a round of a planner that may take all it gets
constexpr double kNearlyPacked = 1.005;       // of the least that a packing of the same buffers takes
constexpr int32_t kMaxRepacked = 4;           // plans whose runs are moved about so that they pack better
constexpr double kRoomToSettle[] = {0.01, 0.02, 0.04};  // above the smallest peak

int64_t Times(double factor, int64_t bytes) { return static_cast<int64_t>(factor * static_cast<double>(bytes)); }

double InnerCost(const std::shared_ptr<const std::vector<InnerPlan>>& plans) {
  double cost_s = 0;
  if (plans) for (const InnerPlan& inner : *plans) cost_s += inner.plan.cost_s;
  return cost_s;
}

}  // namespace

bool IsPacked(const HeapResult& heap) {
  return static_cast<double>(heap.temp_bytes) <= kNearlyPacked * static_cast<double>(heap.least_temp_bytes);
}

bool CarryOut(const HloAnalysis& analysis, const HloProgram& hlo, CarriedOut* candidate, std::string* fault) {
  TransformResult changed = ApplySchedule(analysis.graph.module(), hlo.op_instruction_ids, candidate->plan.schedule);
  *fault = changed.error;
  if (!fault->empty()) return false;
  std::optional<ReadModule> read = ReadBytes(std::move(changed.bytes), fault);
  if (!read) return false;
  candidate->op_workspace_bytes = hlo.program.op_workspace_bytes;
  candidate->heap = read->Heap();
  candidate->module = std::move(read->module);
  return true;
}

bool BudgetSearch::Run(const HloAnalysis& analysis, const HloProgram& hlo, std::vector<Schedule> starts) {
  analysis_ = &analysis;
  hlo_ = &hlo;
  starts_ = std::move(starts);
  if (starts_.empty()) starts_.emplace_back();
  inner_.emplace(analysis, reader_, planners_, deadline_);
  tried_.clear();
  PlanShare(1);
  least_workspaces_ = inner_->LeastWorkspaces(/*looks=*/false);
  const PlanRank& alone = tried_.at(1).rank;
  if (!inside_.depends_on_share || (alone.excess_bytes == 0 && alone.cost_s == 0)) return false;
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
    if (deadline_.Left() == 0) return;
    PlanShare(NextShare());
  }
}

// Whether live bytes can't be within the budget; what XLA puts into output buffers takes nothing.
bool BudgetSearch::IsHopeless(const Tried& alone) const {
  StepProgram bound = hlo_->program;
  bound.op_workspace_bytes = least_workspaces_;
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
  tried_[share].rank = {temp_bytes_, std::numeric_limits<double>::infinity(), temp_bytes_};
  std::set<int64_t> limits;
  ModulePlan last;
  for (int64_t limit_bytes = budget_bytes; limits.insert(limit_bytes).second;) {
    const bool is_first = limits.size() == 1;
    if (!is_first && deadline_.Left() == 0) return;
    PlanInside(limit_bytes, share);
    const auto plans = is_first ? PlanStarts(limit_bytes) : PlanFrom(last.order, last.planner, limit_bytes);
    if (plans.empty()) return;
    last = plans.front();
    const int64_t room_bytes = budget_bytes - Consider(last, share);
    if (!last.fits() && is_first) {
      for (auto other = std::next(plans.begin()); other != plans.end(); ++other) Consider(*other, share);
      if (room_bytes < 0) return Settle(last, share);
    }
    const bool has_cost = last.cost_s + InnerCost(inner_plans_) > 0;
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
  const Stopwatch stopwatch(&plan_s_);
  inside_ = inner_->Plan(std::max<int64_t>(limit_bytes, 0), share);
  inner_plans_.reset();
  inner_hlo_.reset();
  carried_out_.clear();
  if (!inside_.module) return;
  HloProgram hlo;
  if (!reader_.Read(*inside_.module->analysis, &hlo).empty()) {
    inside_ = {};
    return;
  }
  inner_hlo_ = std::move(hlo);
  inner_plans_ = std::make_shared<const std::vector<InnerPlan>>(std::move(inside_.plans));
}

std::vector<ModulePlan> BudgetSearch::PlanStarts(int64_t limit_bytes) {
  std::vector<ModulePlan> plans;
  for (const Schedule& start : starts_) {
    if (!plans.empty() && deadline_.Left() == 0) break;
    std::ranges::move(PlanFrom(start, "", limit_bytes), std::back_inserter(plans));
  }
  std::ranges::stable_sort(plans, {}, &ModulePlan::Rank);
  return plans;
}

std::vector<ModulePlan> BudgetSearch::PlanFrom(std::span<const OpId> order, const std::string& planner,
                                              int64_t limit_bytes) {
  const Stopwatch stopwatch(&plan_s_);
  const double time_limit_s = planners_.given ? kShareOfTime * deadline_.Left() : deadline_.Left();
  const RematTask task = {.hlo = hlo(), .order = order, .planner = planner,
                          .limit_bytes = std::max<int64_t>(limit_bytes, 0), .time_limit_s = time_limit_s};
  return planners_.Plan(task, &fault_);
}

// The budget is out of reach: of the plans nearest to it the one that packs best, plans with a little more room among
// them. A planner that the caller brings has tried many ways; the one that came nearest may come as near in another plan.
void BudgetSearch::Settle(const ModulePlan& nearest, double share) {
  if (planners_.is_large) return;
  std::vector<int64_t> limits = {nearest.peak_bytes};
  if (planners_.given) {
    limits.push_back(options_.budget_bytes);
  } else {
    for (const double room : kRoomToSettle) limits.push_back(Times(1 + room, nearest.peak_bytes));
  }
  for (const int64_t limit_bytes : limits) {
    const bool is_packed = tried_.at(share).rank.temp_bytes <= nearest.peak_bytes;
    if (deadline_.Left() == 0 || (planners_.given && is_packed)) return;
    for (const ModulePlan& plan : PlanFrom(nearest.order, nearest.planner, limit_bytes)) Consider(plan, share);
  }
}

// Carries the plan out and returns the temporary bytes.
int64_t BudgetSearch::Consider(const ModulePlan& plan, double share) {
  const Stopwatch stopwatch(&emit_s_);
  const auto [known, is_new] = carried_out_.try_emplace(plan.schedule);
  CarriedOut& candidate = known->second;
  candidate.plan = plan;
  candidate.inner = inner_plans_;
  candidate.share = share;
  candidate.cost_s = plan.cost_s + InnerCost(inner_plans_);
  if (is_new) {
    candidate.heap.temp_bytes = temp_bytes_;
    const bool changes = &analysis() != &original_ || plan.schedule != hlo_->program.schedule;
    if (changes) CarryOut(analysis(), hlo(), &candidate, &fault_);
  }
  Log(candidate);
  const Tried tried = {candidate.Rank(options_.budget_bytes), plan.peak_bytes,
                       std::ssize(plan.schedule) > hlo_->program.num_ops()};
  if (tried.rank < tried_.at(share).rank) tried_.at(share) = tried;
  if (candidate.module) {
    if (!planners_.is_large && !IsPacked(candidate.heap)) KeepLoose(candidate);
    Keep(candidate);
  }
  return tried.rank.temp_bytes;
}

void BudgetSearch::Log(const CarriedOut& candidate) {
  const ModulePlan& plan = candidate.plan;
  rounds_.push_back({plan.limit_bytes, plan.peak_bytes, candidate.heap.temp_bytes, candidate.cost_s, plan.planner,
                     candidate.share, {}});
  if (!candidate.inner) return;
  for (const InnerPlan& inner : *candidate.inner) {
    rounds_.back().inside.push_back({inner.name, inner.plan.peak_bytes, inner.plan.planner});
  }
}

void BudgetSearch::Keep(const CarriedOut& candidate) {
  const auto is_no_better = [](const CarriedOut& a, const CarriedOut& b) {
    return a.heap.temp_bytes >= b.heap.temp_bytes && a.cost_s >= b.cost_s;
  };
  if (candidate.heap.temp_bytes >= temp_bytes_) return;
  for (const CarriedOut& other : candidates_) {
    if (is_no_better(candidate, other)) return;
  }
  std::erase_if(candidates_, [&](const CarriedOut& other) { return is_no_better(other, candidate); });
  candidates_.push_back(candidate);
}

// Of equals those that came first.
void BudgetSearch::KeepLoose(const CarriedOut& candidate) {
  const auto rank = [this](const CarriedOut& each) { return each.LeastRank(options_.budget_bytes); };
  const auto place = std::ranges::upper_bound(loose_, rank(candidate), {}, rank);
  if (place - loose_.begin() == kMaxRepacked) return;
  loose_.insert(place, candidate);
  if (std::ssize(loose_) > kMaxRepacked) loose_.pop_back();
}

// Moves the runs about inside, where something was planned there, then those of the entry, so that fewer bytes are lost.
bool BudgetSearch::MoveRuns(const PackedOrderOptions& options, CarriedOut* loose) {
  std::unique_ptr<const HloAnalysis> moved;
  const auto move = [&](Schedule* schedule, int32_t computation) {
    PackedSchedule packed = PackScheduleOf(*loose->module, reader_.roofline, *schedule, options, computation);
    std::optional<ReadModule> read;
    if (!packed.bytes.empty()) read = ReadBytes(std::move(packed.bytes), &fault_);
    if (!read) return;
    *schedule = std::move(packed.schedule);
    loose->heap = read->Heap();
    loose->module = std::move(read->module);
    moved = std::move(read->analysis);
  };
  if (loose->inner) {
    std::vector<InnerPlan> inner = *loose->inner;
    for (InnerPlan& each : inner) {
      move(&each.plan.schedule, loose->module->by_id(each.hlo.op_instruction_ids[0]).computation);
      each.plan.peak_bytes = ComputeLiveness(each.hlo.program, each.plan.schedule).peak_bytes;
    }
    loose->inner = std::make_shared<const std::vector<InnerPlan>>(std::move(inner));
  }
  move(&loose->plan.schedule, kEntryComputation);
  HloProgram runs;
  if (!moved || !reader_.Read(*moved, &runs).empty()) return false;
  const Schedule& schedule = loose->plan.schedule;
  for (size_t k = 0; k < schedule.size(); ++k) {
    loose->op_workspace_bytes[schedule[k]] = runs.program.op_workspace_bytes[k];
  }
  return true;
}

// Whether the plan would be taken if it lost no bytes between its buffers.
bool BudgetSearch::MayGain(const CarriedOut& loose) const {
  if (candidates_.empty()) return true;
  const int64_t budget_bytes = options_.budget_bytes, least_bytes = loose.heap.least_temp_bytes;
  const PlanRank least = loose.LeastRank(budget_bytes);
  const auto is_as_good = [&](const CarriedOut& each) { return each.Rank(budget_bytes) <= least; };
  if (std::ranges::any_of(candidates_, is_as_good)) return false;
  const CarriedOut& chosen = *Chosen();
  const bool would_fit = least_bytes <= budget_bytes && chosen.heap.temp_bytes > budget_bytes;
  if (would_fit || chosen.cost_s > loose.cost_s) return true;
  // A cheaper one stays the choice while it is near the smallest; of the same cost, what is as good as packed will do.
  const double near = chosen.cost_s < loose.cost_s ? std::max(options_.near_smallest, kNearlyPacked) : kNearlyPacked;
  return chosen.heap.temp_bytes > Times(near, least_bytes);
}

// Plans that lose bytes between their buffers: their runs are moved about. Every one by a seed of its own, for the same
// may stand here twice.
void BudgetSearch::Repack() {
  if (reader_.keeps_order) return;
  const Stopwatch stopwatch(&plan_s_);
  const int64_t budget_bytes = options_.budget_bytes;
  for (size_t i = 0; i < loose_.size() && deadline_.Left() > 0; ++i) {
    CarriedOut& loose = loose_[i];
    if (!MayGain(loose)) continue;
    const PackedOrderOptions options = {.target_bytes = std::max(budget_bytes, loose.heap.least_temp_bytes),
                                        .seed = i + 1, .time_limit_s = deadline_.Left() / 4};
    if (!MoveRuns(options, &loose)) continue;
    StepProgram program = hlo_->program;
    program.op_workspace_bytes = loose.op_workspace_bytes;
    loose.plan.limit_bytes = options.target_bytes;
    loose.plan.peak_bytes = ComputeLiveness(program, loose.plan.schedule).peak_bytes;
    Log(loose);
    Keep(loose);
  }
}

// The one to take.
std::vector<CarriedOut>::const_iterator BudgetSearch::Chosen() const {
  const auto bytes = [](const CarriedOut& each) { return each.heap.temp_bytes; };
  if (candidates_.empty()) return candidates_.end();
  const int64_t smallest_bytes = bytes(*std::ranges::min_element(candidates_, {}, bytes));
  const int64_t most_bytes = smallest_bytes <= options_.budget_bytes ? options_.budget_bytes
                                                                     : Times(options_.near_smallest, smallest_bytes);
  const auto cost_s = [&](const CarriedOut& each) {
    return bytes(each) <= most_bytes ? each.cost_s : std::numeric_limits<double>::infinity();
  };
  return std::ranges::min_element(candidates_, {}, cost_s);
}

std::optional<CarriedOut> BudgetSearch::TakeBest() {
  Repack();
  const auto chosen = Chosen();
  return chosen == candidates_.end() ? std::nullopt : std::optional(*chosen);
}

}  // namespace coopjax
