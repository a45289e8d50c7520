// Bindings of the HLO pass as a whole, and of the recompute costs that it goes by.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "hlo_fields.h"
#include "parsed_module.h"
#include "recompute_order_pass.h"
#include "remake_costs.h"

namespace coopjax::python {
namespace {

// A Python callable (op_workspace_bytes, order, limit_bytes, time_limit_s) -> schedule.
RematPlanner PlannerOf(const nb::object& planner) {
  if (planner.is_none()) return nullptr;
  return [&planner](const StepProgram& program, std::span<const OpId> order, int64_t limit_bytes, double time_limit_s) {
    const nb::gil_scoped_acquire acquire;
    const nb::object found = planner(ToNumpy(program.op_workspace_bytes), ToNumpy(Schedule(order.begin(), order.end())),
                                     limit_bytes, time_limit_s);
    return ToVector<OpId>(nb::cast<Array<int32_t>>(found));
  };
}

nb::dict ToDict(const RecomputeOrderResult& result) {
  nb::list orders, rounds;
  for (const RankedOrder& order : result.orders) {
    orders.append(nb::make_tuple(order.name, order.judged_bytes, order.peak_bytes));
  }
  for (const RecomputeOrderRound& round : result.rounds) {
    rounds.append(nb::make_tuple(round.limit_bytes, round.peak_live_bytes, round.temp_bytes, round.recompute_cost_s));
  }
  nb::dict timing, answer;
  timing["read"] = result.timing.read_s;
  timing["order"] = result.timing.order_s;
  timing["plan"] = result.timing.plan_s;
  timing["emit"] = result.timing.emit_s;
  timing["verify"] = result.timing.verify_s;
  answer["module_bytes"] = nb::bytes(result.bytes.data(), result.bytes.size());
  answer["reason"] = result.reason;
  answer["order"] = ToNumpy(result.order);
  answer["schedule"] = ToNumpy(result.schedule);
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
  m.def("remake_costs", [](const StepProgram& program, Array<int32_t> order) {
    const RemakeCosts costs = ComputeRemakeCosts(program, {order.data(), order.size()});
    return nb::make_tuple(ToNumpy(costs.seconds), ToNumpy(costs.rank));
  }, "Seconds to make each value again and its rank by cost per byte; see remake_costs.h.");
  m.def("recompute_order", [](const ParsedModule& parsed, int changes, std::optional<int64_t> budget_bytes,
                              std::tuple<double, double, double, double> roofline, std::string kept_scope,
                              nb::object planner, double time_limit_s) {
    const auto [flops_per_s, transcendentals_per_s, bytes_per_s, op_overhead_s] = roofline;
    const RecomputeOrderOptions options = {.changes = static_cast<RecomputeOrderChanges>(changes),
                                           .budget_bytes = budget_bytes,
                                           .roofline = {flops_per_s, transcendentals_per_s, bytes_per_s, op_overhead_s},
                                           .kept_scope = std::move(kept_scope),
                                           .planner = PlannerOf(planner),
                                           .time_limit_s = time_limit_s};
    const HloAnalysis& analysis = parsed.Analysis();
    RecomputeOrderResult result;
    {
      nb::gil_scoped_release release;
      result = RecomputeOrder(analysis, options);
    }
    if (!result.error.empty()) throw nb::value_error(result.error.c_str());
    return ToDict(result);
  }, nb::arg("module"), nb::kw_only(), nb::arg("changes"), nb::arg("budget_bytes").none(), nb::arg("roofline"),
     nb::arg("kept_scope"), nb::arg("planner").none(), nb::arg("time_limit_s"),
     "A module in less memory, by its order and by recomputing; see recompute_order_pass.h.");
}

}  // namespace coopjax::python
