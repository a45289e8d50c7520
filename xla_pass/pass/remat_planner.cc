#include "pass/remat_planner.h"

#include "planners/coop/planner.h"
#include "planners/orders/list_scheduler.h"
#include "planners/peak/planner.h"
#include "planners/segments/planner.h"
#include "program/liveness.h"
#include "program/remake_costs.h"

namespace coopjax {
namespace {

constexpr int32_t kMaxPolishedOfLarge = 4'000;   // ops
constexpr int64_t kMaxTrials = 100'000;
constexpr int64_t kMaxPolishingTrials = 300'000;
constexpr double kNearSmallest = 1.01;           // the last percent often costs the most

void Measure(const StepProgram& program, int64_t limit_bytes, ModulePlan* plan) {
  plan->limit_bytes = limit_bytes;
  plan->peak_bytes = ComputeLiveness(program, plan->schedule).peak_bytes;
  plan->cost_s = CountRecompute(program, plan->schedule).cost_s;
}

std::vector<ModulePlan> OwnPlans(const RematTask& task, bool is_large) {
  const StepProgram& program = task.hlo.program;
  const Schedule order =
      task.order.empty() ? ScheduleForMemory(program) : Schedule(task.order.begin(), task.order.end());
  const int64_t max_steps = task.max_steps / 3;
  std::vector<ModulePlan> plans;
  if (!is_large) {
    const PeakOptions options = {.max_trials = kMaxTrials, .max_steps = max_steps};
    plans.push_back({PlanPeak(program, order, task.limit_bytes, options).schedule, order, "peak"});
    const RemakeCosts costs = ComputeRemakeCosts(program, program.schedule);
    const CoopOptions coop_options = {.cost = CostRule::kChain, .op_is_expensive = ExpensiveOps(program, costs)};
    const CoopResult coop = PlanCoop(program, order, task.limit_bytes, coop_options);
    if (coop.is_feasible) {
      plans.push_back({PlanPeak(program, coop.schedule, task.limit_bytes, options).schedule, order, "coop"});
    }
  }
  SegmentOptions options = {.max_trials = kMaxPolishingTrials, .max_steps = max_steps};
  if (is_large) options.max_polished_ops = kMaxPolishedOfLarge;
  plans.push_back({PlanSegments(program, order, task.limit_bytes, options).schedule, order, "segments"});
  return plans;
}

}  // namespace

std::vector<ModulePlan> RematPlanners::Plan(const RematTask& task, std::string* fault) const {
  std::vector<ModulePlan> plans;
  for (ModulePlan& plan : given ? std::vector<ModulePlan>{given(task)} : OwnPlans(task, is_large)) {
    std::string wrong = CheckSchedule(task.hlo.program, plan.schedule);
    if (wrong.empty() && !plan.order.empty()) wrong = CheckSchedule(task.hlo.program, plan.order);
    if (!wrong.empty()) {
      *fault = "the planner gave no valid schedule: " + wrong;
      continue;
    }
    Measure(task.hlo.program, task.limit_bytes, &plan);
    plans.push_back(std::move(plan));
  }
  std::ranges::stable_sort(plans, {}, &ModulePlan::Rank);
  return plans;
}

ModulePlan PlanQuickly(const RematTask& task) {
  const StepProgram& program = task.hlo.program;
  ModulePlan plan;
  plan.order = task.order.empty() ? ScheduleForMemory(program) : Schedule(task.order.begin(), task.order.end());
  plan.planner = "peak";
  const auto planned = [&](int64_t limit_bytes) {
    ModulePlan made = plan;
    made.schedule = PlanPeak(program, plan.order, limit_bytes, {.max_steps = task.max_steps}).schedule;
    Measure(program, limit_bytes, &made);
    return made;
  };
  plan = planned(task.limit_bytes);
  if (plan.fits()) return plan;
  ModulePlan near = planned(static_cast<int64_t>(kNearSmallest * static_cast<double>(plan.peak_bytes)));
  return near.fits() ? near : plan;
}

}  // namespace coopjax
