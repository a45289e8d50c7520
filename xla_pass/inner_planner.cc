#include "inner_planner.h"

#include <algorithm>

#include "list_scheduler.h"
#include "liveness.h"
#include "transform.h"

namespace coopjax {
namespace {

constexpr double kTimeShare = 0.25;   // of the time that is left, for one inner computation

int64_t PeakBytes(const StepProgram& program, const Schedule& schedule) {
  return ComputeLiveness(program, schedule).peak_bytes;
}

}  // namespace

PlannedInside InnerPlanner::Plan(int64_t limit_bytes, double share) {
  share_ = share;
  planned_ = {};
  Shrink(IdOf(analysis_.graph.module().entry), limit_bytes);
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
  const HloGraph& graph = analysis_.graph;
  const int32_t i = graph.module().instruction_index.Find(caller.hlo.op_instruction_ids[op]);
  const bool runs = graph.op(i) == Op::kWhile || graph.op(i) == Op::kConditional || graph.op(i) == Op::kCall;
  return runs ? graph.called(i) : std::span<const int32_t>();
}

// Plans what a computation's ops run, where it stands in the way of the limit.
void InnerPlanner::Shrink(int64_t computation_id, int64_t limit_bytes) {
  Came& came = CameOf(computation_id);
  const StepProgram& program = came.hlo.program;
  if (std::ranges::none_of(program.op_workspace_bytes, [](int64_t bytes) { return bytes > 0; })) return;
  if (came.order.empty()) came.order = ScheduleForMemory(program);
  const std::vector<int64_t> live_bytes = ComputeLiveness(program, came.order).live_bytes;
  for (Step step = 0; step < program.num_ops(); ++step) {
    const OpId op = came.order[step];
    const int64_t workspace_bytes = program.op_workspace_bytes[op];
    if (live_bytes[step] <= limit_bytes || workspace_bytes == 0) continue;
    const int64_t around_bytes = live_bytes[step] - workspace_bytes;
    for (const int32_t callee : Callees(came, op)) {
      Fit(IdOf(callee), came.hlo.op_names[op], std::max<int64_t>(limit_bytes - around_bytes, 0));
    }
  }
}

// Plans a computation, and before it what it runs.
void InnerPlanner::Fit(int64_t computation_id, const std::string& name, int64_t least_bytes) {
  if (CameOf(computation_id).peak_bytes <= least_bytes) return;
  Shrink(computation_id, least_bytes);
  std::optional<HloProgram> hlo = Current(computation_id);
  if (!hlo) return;
  int64_t limit_bytes = least_bytes;
  const int64_t ordered_bytes = PeakBytes(hlo->program, ScheduleForMemory(hlo->program));
  if (ordered_bytes > least_bytes) {
    planned_.depends_on_share = true;
    limit_bytes += static_cast<int64_t>(share_ * static_cast<double>(ordered_bytes - least_bytes));
  }
  std::optional<RematPlan> plan = Planned(computation_id, *hlo, limit_bytes);
  if (!plan || plan->peak_bytes >= PeakBytes(hlo->program, hlo->program.schedule)) return;
  const HloModule& module = planned_.module ? *planned_.module->module : analysis_.graph.module();
  const int32_t computation = module.computation_index.Find(computation_id);
  std::string error;
  TransformResult changed = ApplySchedule(module, hlo->op_instruction_ids, plan->schedule, computation);
  std::optional<ReadModule> read = changed.error.empty() ? ReadBytes(std::move(changed.bytes), &error) : std::nullopt;
  if (!read) return;
  planned_.module = std::make_shared<const ReadModule>(*std::move(read));
  planned_.plans.push_back({name, *std::move(hlo), *std::move(plan)});
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
std::optional<RematPlan> InnerPlanner::Planned(int64_t computation_id, const HloProgram& hlo, int64_t limit_bytes) {
  const auto first = first_.find({computation_id, share_});
  RematTask task = {.hlo = hlo, .limit_bytes = limit_bytes, .time_limit_s = kTimeShare * deadline_.Left()};
  if (first != first_.end()) {
    task.order = first->second.order;
    task.planner = first->second.planner;
  }
  std::string fault;
  std::vector<RematPlan> plans;
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
