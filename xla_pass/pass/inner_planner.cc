#include "pass/inner_planner.h"

#include <algorithm>
#include <iterator>

#include "bridge/transform.h"
#include "planners/orders/list_scheduler.h"
#include "program/liveness.h"

namespace coopjax {
namespace {

constexpr int64_t kPartOfSteps = 4;   // of those that are left, for one inner computation

int64_t PeakBytes(const StepProgram& program, const Schedule& schedule) {
  return ComputeLiveness(program, schedule).peak_bytes;
}

}  // namespace

PlannedInside InnerPlanner::Plan(int64_t limit_bytes, double share) {
  share_ = share;
  planned_ = {};
  wanted_.clear();
  Want(IdOf(analysis_.graph.module().entry), limit_bytes);
  for (const auto& [_, level] : wanted_) Fit(level);
  return std::move(planned_);
}

std::vector<int64_t> InnerPlanner::LeastWorkspaces(bool looks) {
  return LeastWorkspacesOf(IdOf(analysis_.graph.module().entry), looks);
}

std::vector<int64_t> InnerPlanner::LeastWorkspacesOf(int64_t computation_id, bool looks) {
  const Came& came = CameOf(computation_id);
  std::vector<int64_t> least(came.hlo.program.num_ops(), 0);
  for (OpId op = 0; op < came.hlo.program.num_ops(); ++op) {
    const int64_t workspace_bytes = came.hlo.program.op_workspace_bytes[op];
    if (workspace_bytes == 0) continue;
    const std::span<const int32_t> callees = Callees(came, op);
    if (callees.empty()) least[op] = workspace_bytes;   // and stays it: nothing inside is planned
    for (const int32_t callee : callees) {
      const int64_t id = IdOf(callee);
      if (!looks && !came_.contains(id)) continue;
      StepProgram inner = CameOf(id).hlo.program;
      inner.op_workspace_bytes = LeastWorkspacesOf(id, looks);
      least[op] = std::max(least[op], ComputeLowerBound(inner).bytes);
    }
  }
  return least;
}

// Without ops where the computation can't be read.
InnerPlanner::Came& InnerPlanner::CameOf(int64_t computation_id) {
  const auto [entry, is_new] = came_.try_emplace(computation_id);
  Came& came = entry->second;
  if (!is_new) return came;
  const int32_t computation = analysis_.graph.module().computation_index.Find(computation_id);
  if (!reader_.Read(analysis_, &came.hlo, computation).empty()) came.hlo = {};
  came.peak_bytes = PeakBytes(came.hlo.program, came.hlo.program.schedule);
  return came;
}

// What a loop, a conditional or a call runs.
std::span<const int32_t> InnerPlanner::Callees(const Came& caller, OpId op) const {
  const hlo::Graph& graph = analysis_.graph;
  const int32_t i = graph.module().instruction_index.Find(caller.hlo.op_instruction_ids[op]);
  const bool runs =
      graph.op(i) == hlo::Op::kWhile || graph.op(i) == hlo::Op::kConditional || graph.op(i) == hlo::Op::kCall;
  return runs ? graph.called(i) : std::span<const int32_t>();
}

// Notes what a computation's ops run, where it stands in the way of the limit; returns how many levels of that there
// are.
int32_t InnerPlanner::Want(int64_t computation_id, int64_t limit_bytes) {
  Came& came = CameOf(computation_id);
  const StepProgram& program = came.hlo.program;
  if (std::ranges::none_of(program.op_workspace_bytes, [](int64_t bytes) { return bytes > 0; })) return 0;
  if (came.order.empty()) came.order = ScheduleForMemory(program);
  const std::vector<int64_t> live_bytes = ComputeLiveness(program, came.order).live_bytes;
  int32_t num_levels = 0;
  for (Step step = 0; step < program.num_ops(); ++step) {
    const OpId op = came.order[step];
    const int64_t workspace_bytes = program.op_workspace_bytes[op];
    if (live_bytes[step] <= limit_bytes || workspace_bytes == 0) continue;
    const int64_t around_bytes = live_bytes[step] - workspace_bytes;
    const int64_t inner_limit_bytes = std::max<int64_t>(limit_bytes - around_bytes, 0);
    for (const int32_t callee : Callees(came, op)) {
      if (CameOf(IdOf(callee)).peak_bytes <= inner_limit_bytes) continue;
      const int32_t level = Want(IdOf(callee), inner_limit_bytes);
      wanted_[level].push_back({IdOf(callee), came.hlo.op_names[op], inner_limit_bytes});
      num_levels = std::max(num_levels, level + 1);
    }
  }
  return num_levels;
}

// Plans computations of which none runs another.
void InnerPlanner::Fit(std::span<const Wanted> level) {
  std::vector<InnerPlan> plans;
  for (const Wanted& wanted : level) {
    if (std::optional<InnerPlan> plan = Fitted(wanted)) plans.push_back(*std::move(plan));
  }
  Apply(plans);
}

// Nothing where that does not become smaller.
std::optional<InnerPlan> InnerPlanner::Fitted(const Wanted& wanted) {
  std::optional<HloProgram> hlo = Current(wanted.computation_id);
  if (!hlo) return std::nullopt;
  int64_t limit_bytes = wanted.limit_bytes;
  const int64_t ordered_bytes = PeakBytes(hlo->program, ScheduleForMemory(hlo->program));
  if (ordered_bytes > limit_bytes) {
    planned_.depends_on_share = true;
    limit_bytes += static_cast<int64_t>(share_ * static_cast<double>(ordered_bytes - limit_bytes));
  }
  std::optional<ModulePlan> plan = Planned(wanted.computation_id, *hlo, limit_bytes);
  if (!plan || plan->peak_bytes >= PeakBytes(hlo->program, hlo->program.schedule)) return std::nullopt;
  return InnerPlan{wanted.name, *std::move(hlo), *std::move(plan)};
}

// Carries the plans into the module: all of them, or, where they can't be, of each half what can.
void InnerPlanner::Apply(std::span<InnerPlan> plans) {
  if (plans.empty()) return;
  const hlo::Module& module = planned_.module ? *planned_.module->module : analysis_.graph.module();
  std::vector<ComputationSchedule> schedules;
  for (const InnerPlan& each : plans) {
    const std::vector<int64_t>& ids = each.hlo.op_instruction_ids;
    schedules.push_back({module.by_id(ids[0]).computation, ids, each.plan.schedule});
  }
  std::string error;
  TransformResult changed = ApplySchedules(module, schedules);
  std::optional<ReadModule> read = changed.error.empty() ? ReadBytes(std::move(changed.bytes), &error) : std::nullopt;
  if (read) {
    planned_.module = std::make_shared<const ReadModule>(*std::move(read));
    std::ranges::move(plans, std::back_inserter(planned_.plans));
  } else if (plans.size() > 1) {
    const size_t half = plans.size() / 2;
    Apply(plans.first(half));
    Apply(plans.subspan(half));
  }
}

// The computation with what was planned inside it; nothing where it can't be read.
std::optional<HloProgram> InnerPlanner::Current(int64_t computation_id) const {
  if (!planned_.module) return came_.at(computation_id).hlo;
  HloProgram hlo;
  const int32_t computation = planned_.module->module->computation_index.Find(computation_id);
  if (!reader_.Read(*planned_.module->analysis, &hlo, computation).empty()) return std::nullopt;
  return hlo;
}

// The first planner and its order are kept for nearby limits.
std::optional<ModulePlan> InnerPlanner::Planned(int64_t computation_id, const HloProgram& hlo, int64_t limit_bytes) {
  const auto first = first_.find({computation_id, share_});
  RematTask task = {.hlo = hlo, .limit_bytes = limit_bytes, .max_steps = allowance_.Left() / kPartOfSteps};
  if (first != first_.end()) {
    task.order = first->second.order;
    task.planner = first->second.planner;
  }
  std::string fault;
  std::vector<ModulePlan> plans;
  if (hurries_) {
    plans.push_back(PlanQuickly(task));
  } else {
    plans = planners_.Plan(task, &fault);
  }
  if (plans.empty()) return std::nullopt;
  first_.try_emplace({computation_id, share_}, plans.front());
  return std::move(plans.front());
}

}  // namespace coopjax
