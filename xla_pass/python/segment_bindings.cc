// Bindings of the planner of large programs.
#include <nanobind/nanobind.h>

#include <vector>

#include "planners/segments/planner.h"
#include "program/step_program.h"
#include "python/bindings.h"

namespace coopjax::python {

void BindSegments(nb::module_& m) {
  m.def(
      "plan_segments",
      [](const StepProgram& program, Array<int32_t> order, int64_t budget_bytes, int32_t num_rounds, int32_t max_levels,
         bool clean_up, int32_t max_polished_ops, int64_t max_trials, int64_t max_steps, double stop_at_cost_s) {
        const SegmentOptions options = {num_rounds, max_levels, clean_up,      max_polished_ops,
                                        max_trials, max_steps,  stop_at_cost_s};
        const std::vector<int32_t> steps = ToVector<int32_t>(order);
        SegmentResult result;
        {
          nb::gil_scoped_release release;
          result = PlanSegments(program, steps, budget_bytes, options);
        }
        nb::dict answer;
        answer["schedule"] = ToNumpy(result.schedule);
        answer["is_cut_short"] = result.is_cut_short;
        answer["first_plan_steps"] = result.first_plan_steps;
        answer["evaluations"] = result.evaluations;
        answer["segments"] = result.segments;
        answer["kinds"] = result.kinds;
        answer["cuts"] = result.cuts;
        answer["removals"] = result.removals;
        answer["moves"] = result.moves;
        return answer;
      },
      nb::arg("program"), nb::arg("order"), nb::arg("budget_bytes"), nb::kw_only(), nb::arg("num_rounds") = 14,
      nb::arg("max_levels") = 6, nb::arg("clean_up") = true, nb::arg("max_polished_ops") = 2000000,
      nb::arg("max_trials") = 100000000, nb::arg("max_steps") = SegmentOptions{}.max_steps,
      nb::arg("stop_at_cost_s") = 0.0,
      "Rematerialization of large programs; see planners/segments/planner.h. `order` has no repeats.");
}

}  // namespace coopjax::python
