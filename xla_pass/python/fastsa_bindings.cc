// Bindings of FastSA.
#include <nanobind/nanobind.h>

#include <vector>

#include "planners/fastsa/anneal.h"
#include "program/step_program.h"
#include "python/bindings.h"

namespace coopjax::python {

void BindAnneal(nb::module_& m) {
  m.def(
      "plan_fastsa",
      [](const StepProgram& program, Array<int32_t> order, int64_t budget_bytes, bool group, bool retry_ungrouped,
         bool order_only, uint64_t seed, int64_t num_slots, int64_t stage1_iterations, int64_t stage2_iterations,
         double start_temperature, double stage2_temperature, bool stays_within, double cooling, int64_t max_steps) {
        const coopjax::AnnealOptions options = {group,
                                                retry_ungrouped,
                                                order_only,
                                                seed,
                                                num_slots,
                                                stage1_iterations,
                                                stage2_iterations,
                                                start_temperature,
                                                stage2_temperature,
                                                stays_within,
                                                cooling,
                                                max_steps};
        const std::vector<int32_t> steps = ToVector<int32_t>(order);
        coopjax::AnnealResult result;
        {
          nb::gil_scoped_release release;
          result = coopjax::Anneal(program, steps, budget_bytes, options);
        }
        nb::dict answer;
        answer["schedule"] = ToNumpy(result.schedule);
        answer["is_cut_short"] = result.is_cut_short;
        answer["tried"] = result.counters.tried;
        answer["legal"] = result.counters.legal;
        answer["accepted"] = result.counters.accepted;
        answer["num_groups"] = result.counters.num_groups;
        return answer;
      },
      nb::arg("program"), nb::arg("order"), nb::arg("budget_bytes"), nb::kw_only(), nb::arg("group") = true,
      nb::arg("retry_ungrouped") = true, nb::arg("order_only") = false, nb::arg("seed") = 0,
      nb::arg("num_slots") = int64_t{1} << 20, nb::arg("stage1_iterations") = int64_t{20'000'000},
      nb::arg("stage2_iterations") = int64_t{2'000'000}, nb::arg("start_temperature") = 1e-3,
      nb::arg("stage2_temperature") = 0.0, nb::arg("stays_within") = false, nb::arg("cooling") = 1e-4,
      nb::arg("max_steps") = kDefaultSteps, "FastSA from a valid schedule, which may have repeats; see anneal.h.");
}

}  // namespace coopjax::python
