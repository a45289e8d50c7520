// Bindings of what MODeL's planner is made of: orders without repeats.
#include <nanobind/nanobind.h>

#include <vector>

#include "planners/orders/order_cut.h"
#include "program/dependences.h"
#include "program/step_program.h"
#include "python/bindings.h"

namespace coopjax::python {

void BindOrders(nb::module_& m) {
  m.def(
      "op_predecessors",
      [](const StepProgram& program) {
        const Csr predecessors = OpPredecessors(program);
        return nb::make_tuple(ToNumpy(predecessors.offsets), ToNumpy(predecessors.items));
      },
      "The ops that must run before each op when none is repeated, CSR (offsets, op ids); see dependences.h.");
  m.def(
      "reorder_by_cuts",
      [](const StepProgram& program, Array<int32_t> order, int32_t max_cuts, int32_t max_descents, double relative_gap,
         int64_t bound_bytes, int64_t max_steps) {
        const OrderCutOptions options = {max_cuts, max_descents, relative_gap, bound_bytes, max_steps};
        const std::vector<int32_t> steps = ToVector<int32_t>(order);
        OrderCutResult result;
        {
          nb::gil_scoped_release release;
          result = ReorderByCuts(program, steps, options);
        }
        nb::dict answer;
        answer["schedule"] = ToNumpy(result.schedule);
        answer["peak_bytes"] = result.peak_bytes;
        answer["bound_bytes"] = result.bound_bytes;
        answer["stuck_at"] = ToNumpy(result.stuck_at);
        answer["num_cuts"] = result.num_cuts;
        answer["is_cut_short"] = result.is_cut_short;
        return answer;
      },
      nb::arg("program"), nb::arg("order"), nb::kw_only(), nb::arg("max_cuts") = 400, nb::arg("max_descents") = 12,
      nb::arg("relative_gap") = 0.0, nb::arg("bound_bytes") = 0, nb::arg("max_steps") = kDefaultSteps,
      "An order of smaller peak by minimum cuts, and a bound on every order's peak; see order_cut.h.");
}

}  // namespace coopjax::python
