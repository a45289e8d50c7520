// Bindings of the Coop planners: options as an object, results as dicts.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "planners/coop/planner.h"
#include "planners/coop/window_planner.h"
#include "python/bindings.h"

namespace coopjax::python {
namespace {

nb::dict ToDict(const CoopResult& result) {
  std::vector<int64_t> placements;
  for (const auto& placed : result.placements) {
    placements.insert(placements.end(), {placed.value, placed.step, placed.offset});
  }
  nb::dict answer;
  answer["schedule"] = ToNumpy(result.schedule);
  answer["placements"] = ToNumpy(placements);
  answer["is_feasible"] = result.is_feasible;
  answer["failed_step"] = result.failed_step;
  answer["failed_bytes"] = result.failed_bytes;
  answer["evictions"] = result.counters.evictions;
  answer["searches"] = result.counters.searches;
  answer["candidates"] = result.counters.candidates;
  answer["scanned"] = result.counters.scanned;
  answer["search_s"] = result.counters.search_s;
  answer["fragmentation"] = result.counters.fragmentation;
  answer["heap_bytes"] = result.counters.heap_bytes;
  return answer;
}

void BindOptions(nb::module_& m) {
  nb::class_<CoopOptions>(m, "CoopOptions", "The switches of the Coop planner; see planners/coop/options.h.")
      .def(nb::init<>())
      .def_prop_rw(
          "eviction", [](const CoopOptions& options) { return static_cast<int>(options.eviction); },
          [](CoopOptions& options, int rule) { options.eviction = static_cast<EvictionRule>(rule); })
      .def_prop_rw(
          "cost", [](const CoopOptions& options) { return static_cast<int>(options.cost); },
          [](CoopOptions& options, int rule) { options.cost = static_cast<CostRule>(rule); })
      .def_prop_rw(
          "op_is_expensive", [](const CoopOptions& options) { return ToNumpy(options.op_is_expensive); },
          [](CoopOptions& options, Array<uint8_t> ops) { options.op_is_expensive = ToVector<uint8_t>(ops); })
      .def_rw("num_groups", &CoopOptions::num_groups)
      .def_rw("cheap_below_s_per_byte", &CoopOptions::cheap_below_s_per_byte)
      .def_rw("recomputes_in_place", &CoopOptions::recomputes_in_place)
      .def_rw("evicts_eagerly", &CoopOptions::evicts_eagerly)
      .def_rw("knows_future", &CoopOptions::knows_future)
      .def_rw("reuses_costs", &CoopOptions::reuses_costs)
      .def_rw("alignment_bytes", &CoopOptions::alignment_bytes)
      .def_rw("small_piece_bytes", &CoopOptions::small_piece_bytes)
      .def_rw("num_small_pieces", &CoopOptions::num_small_pieces)
      .def_rw("max_overhead", &CoopOptions::max_overhead);
}

}  // namespace

void BindCoop(nb::module_& m) {
  BindOptions(m);
  m.def(
      "plan_coop",
      [](const StepProgram& program, Array<int32_t> order, int64_t budget_bytes, const CoopOptions& options) {
        const std::vector<int32_t> steps = ToVector<int32_t>(order);
        CoopResult result;
        {
          nb::gil_scoped_release release;
          result = PlanCoop(program, steps, budget_bytes, options);
        }
        return ToDict(result);
      },
      "Coop, DTR or DTE simulated in an arena of the budget's size; see planners/coop/planner.h. `placements` has rows "
      "(value, step of production, offset), flattened.");
  m.def(
      "plan_windows",
      [](const StepProgram& program, Array<int32_t> order, Array<int64_t> offsets, int64_t budget_bytes) {
        const std::vector<int32_t> steps = ToVector<int32_t>(order);
        const std::vector<int64_t> places = ToVector<int64_t>(offsets);
        WindowResult result;
        {
          nb::gil_scoped_release release;
          result = PlanWindows(program, steps, places, budget_bytes);
        }
        nb::dict answer;
        answer["schedule"] = ToNumpy(result.schedule);
        answer["is_feasible"] = result.is_feasible;
        answer["num_windows"] = result.num_windows;
        answer["num_evicted"] = result.num_evicted;
        return answer;
      },
      "Coop's windows over given offsets, one per value, -1 for what stays; see window_planner.h.");
}

}  // namespace coopjax::python
