// Bindings of the HLO pass as a whole, and of the recompute costs that it goes by.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "pass/recompute_order.h"
#include "program/remake_costs.h"
#include "python/bindings.h"
#include "python/fields.h"
#include "python/parsed_module.h"

namespace coopjax::python {
namespace {

// A Python callable (program's fields, order or None, planner, limit_bytes, max_steps) -> (schedule, order,
// planner).
RematPlanner PlannerOf(const nb::object& planner) {
  if (planner.is_none()) return nullptr;
  return [&planner](const RematTask& task) {
    const nb::gil_scoped_acquire acquire;
    const nb::object order = task.order.empty() ? nb::none() : ToNumpy(Schedule(task.order.begin(), task.order.end()));
    const nb::object found = planner(ProgramFields(task.hlo), order, task.planner, task.limit_bytes, task.max_steps);
    ModulePlan plan;
    plan.schedule = ToVector<OpId>(nb::cast<Array<int32_t>>(found[0]));
    plan.order = ToVector<OpId>(nb::cast<Array<int32_t>>(found[1]));
    plan.planner = nb::cast<std::string>(found[2]);
    return plan;
  };
}

nb::tuple ToTuple(const PlanRound& round) {
  nb::list inside;
  for (const PlanRound::Inside& each : round.inside) {
    inside.append(nb::make_tuple(ToText(each.name), each.peak_live_bytes, each.planner));
  }
  return nb::make_tuple(round.limit_bytes, round.peak_live_bytes, round.temp_bytes, round.recompute_cost_s,
                        round.planner, round.share, nb::tuple(inside));
}

nb::dict ToDict(const RecomputeOrderResult& result) {
  nb::list orders, rounds, inner;
  for (const RankedOrder& order : result.orders) {
    orders.append(nb::make_tuple(order.name, order.judged_bytes, order.peak_bytes));
  }
  for (const PlanRound& round : result.rounds) rounds.append(ToTuple(round));
  for (size_t i = 0; result.inner && i < result.inner->size(); ++i) {
    const InnerPlan& each = (*result.inner)[i];
    inner.append(nb::make_tuple(ToText(each.name), ProgramFields(each.hlo), ToNumpy(each.plan.schedule),
                                each.plan.planner, each.plan.limit_bytes, ToNumpy(each.plan.order)));
  }
  nb::dict program = ProgramFields(result.hlo), timing, answer;
  program["op_workspace_bytes"] = ToNumpy(result.op_workspace_bytes);
  timing["read"] = result.timing.read_s;
  timing["order"] = result.timing.order_s;
  timing["plan"] = result.timing.plan_s;
  timing["emit"] = result.timing.emit_s;
  timing["verify"] = result.timing.verify_s;
  answer["module_bytes"] = nb::bytes(result.bytes.data(), result.bytes.size());
  answer["reason"] = result.reason;
  answer["order"] = ToNumpy(result.plan.order);
  answer["schedule"] = ToNumpy(result.plan.schedule);
  answer["planner"] = result.plan.planner;
  answer["limit_bytes"] = result.plan.limit_bytes;
  answer["inner"] = nb::tuple(inner);
  answer["program"] = program;
  answer["least_workspaces"] = ToNumpy(result.least_workspaces);
  answer["recompute_cost_s"] = result.recompute_cost_s;
  answer["before"] = HeapFields(result.before);
  answer["after"] = HeapFields(result.after);
  answer["remake_s"] = ToNumpy(result.costs.seconds);
  answer["cost_rank"] = ToNumpy(result.costs.rank);
  answer["orders"] = nb::tuple(orders);
  answer["rounds"] = nb::tuple(rounds);
  answer["timing_s"] = timing;
  return answer;
}

}  // namespace

void BindRecomputeOrder(nb::module_& m) {
  m.def(
      "remake_costs",
      [](const StepProgram& program, Array<int32_t> order) {
        const RemakeCosts costs = ComputeRemakeCosts(program, {order.data(), order.size()});
        return nb::make_tuple(ToNumpy(costs.seconds), ToNumpy(costs.rank));
      },
      "Seconds to make each value again and its rank by cost per byte; see remake_costs.h.");
  m.def(
      "recompute_order",
      [](const ParsedModule& parsed, int changes, std::optional<int64_t> budget_bytes,
         std::tuple<double, double, double, double> roofline, std::string kept_scope, nb::object planner,
         bool searches_order, double near_smallest, int64_t max_steps) {
        const auto [flops_per_s, transcendentals_per_s, bytes_per_s, op_overhead_s] = roofline;
        const RecomputeOrderOptions options = {
            .changes = static_cast<RecomputeOrderChanges>(changes),
            .budget_bytes = budget_bytes,
            .roofline = {flops_per_s, transcendentals_per_s, bytes_per_s, op_overhead_s},
            .kept_scope = std::move(kept_scope),
            .planner = PlannerOf(planner),
            .searches_order = searches_order,
            .near_smallest = near_smallest,
            .max_steps = max_steps};
        const HloAnalysis& analysis = parsed.Analysis();
        const HeapResult& before = parsed.Heap();
        RecomputeOrderResult result;
        {
          nb::gil_scoped_release release;
          result = RecomputeOrder(analysis, options, before);
        }
        if (!result.error.empty()) throw nb::value_error(result.error.c_str());
        return ToDict(result);
      },
      nb::arg("module"), nb::kw_only(), nb::arg("changes"), nb::arg("budget_bytes").none(), nb::arg("roofline"),
      nb::arg("kept_scope"), nb::arg("planner").none(), nb::arg("searches_order"), nb::arg("near_smallest"),
      nb::arg("max_steps"), "A module in less memory, by its order and by recomputing; see pass/recompute_order.h.");
  m.def(
      "least_workspaces",
      [](const ParsedModule& parsed) {
        const ProgramReader reader = {};
        const RematPlanners planners = {};
        return ToNumpy(InnerPlanner(parsed.Analysis(), reader, planners, Allowance(0)).LeastWorkspaces(/*looks=*/true));
      },
      "A lower bound on the workspace of each of the entry's ops, whatever is planned inside; see inner_planner.h.");
}

}  // namespace coopjax::python
