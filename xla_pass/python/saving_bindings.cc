// Bindings of what a checkpointed region saves.
#include <nanobind/nanobind.h>

#include <utility>
#include <vector>

#include "planners/saving/save_frontier.h"
#include "python/bindings.h"

namespace coopjax::python {

void BindSaving(nb::module_& m) {
  const SaveFrontierOptions defaults;
  m.def(
      "save_frontier",
      [](Array<double> op_cost, Array<int32_t> input_offsets, Array<int32_t> inputs, Array<int32_t> output_offsets,
         Array<int32_t> outputs, Array<int64_t> value_bytes, Array<int32_t> wanted, int32_t max_sets, int64_t max_cuts,
         double relative_gap, bool is_early) {
        const SavingProblem problem = {{ToVector<int32_t>(input_offsets), ToVector<int32_t>(inputs)},
                                       {ToVector<int32_t>(output_offsets), ToVector<int32_t>(outputs)},
                                       ToVector<double>(op_cost),
                                       ToVector<int64_t>(value_bytes),
                                       ToVector<int32_t>(wanted)};
        std::vector<SavedSet> found;
        {
          nb::gil_scoped_release release;
          found = SaveFrontier(problem, {max_sets, max_cuts, relative_gap, is_early});
        }
        nb::list answer;
        for (const SavedSet& set : found) {
          answer.append(nb::make_tuple(ToNumpy(set.values), set.bytes, set.cost, set.least_cost));
        }
        return nb::tuple(answer);
      },
      nb::arg("op_cost"), nb::arg("input_offsets"), nb::arg("inputs"), nb::arg("output_offsets"), nb::arg("outputs"),
      nb::arg("value_bytes"), nb::arg("wanted"), nb::kw_only(), nb::arg("max_sets") = defaults.max_sets,
      nb::arg("max_cuts") = defaults.max_cuts, nb::arg("relative_gap") = defaults.relative_gap,
      nb::arg("is_early") = defaults.is_early,
      "What a checkpointed region saves, from the fewest bytes to the least cost; see "
      "planners/saving/save_frontier.h.");
}

}  // namespace coopjax::python
