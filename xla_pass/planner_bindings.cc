// Bindings of StepProgram and of everything that plans one.
#include <nanobind/nanobind.h>

#include <utility>
#include <vector>

#include "bindings.h"
#include "coop_planner.h"
#include "list_scheduler.h"
#include "liveness.h"
#include "peak_planner.h"
#include "step_program.h"

namespace coopjax::python {
namespace {

void BindProgram(nb::module_& m) {
  
  nb::class_<StepProgram>(m, "StepProgram", "A training step as the planners see it; see step_program.h.")
      .def(
          "__init__",
          [](StepProgram* self, Array<int32_t> input_offsets, Array<int32_t> inputs, Array<int32_t> output_offsets,
             Array<int32_t> outputs, Array<int32_t> control_offsets, Array<int32_t> control, Array<double> cost_s,
             Array<double> flops, Array<int64_t> workspace_bytes, Array<uint8_t> can_recompute,
             Array<int64_t> value_bytes, Array<int32_t> producer, Array<uint8_t> kind, Array<int32_t> in_place_of,
             nb::ndarray<const int32_t, nb::shape<-1, 3>, nb::c_contig, nb::device::cpu> may_share,
             Array<int32_t> schedule) {
            new (self) StepProgram();
            self->op_inputs = {ToVector<int32_t>(input_offsets), ToVector<int32_t>(inputs)};
            self->op_outputs = {ToVector<int32_t>(output_offsets), ToVector<int32_t>(outputs)};
            self->op_control = {ToVector<int32_t>(control_offsets), ToVector<int32_t>(control)};
            self->op_cost_s = ToVector<double>(cost_s);
            self->op_flops = ToVector<double>(flops);
            self->op_workspace_bytes = ToVector<int64_t>(workspace_bytes);
            self->op_can_recompute = ToVector<uint8_t>(can_recompute);
            self->value_bytes = ToVector<int64_t>(value_bytes);
            self->value_producer = ToVector<int32_t>(producer);
            for (size_t v = 0; v < kind.size(); ++v) {
              self->value_kind.push_back(static_cast<coopjax::ValueKind>(kind.data()[v]));
            }
            self->value_in_place_of = ToVector<int32_t>(in_place_of);
            for (size_t i = 0; i < may_share.shape(0); ++i) {
              const int32_t* row = may_share.data() + 3 * i;
              self->may_share.push_back({row[0], row[1], row[2]});
            }
            self->schedule = ToVector<int32_t>(schedule);
          })
      .def("check", &coopjax::CheckProgram, "The first fault in one sentence, or an empty string.");
  m.def("check_schedule", [](const StepProgram& program, Array<int32_t> schedule) {
    return coopjax::CheckSchedule(program, {schedule.data(), schedule.size()});
  });
  m.def("live_bytes", [](const StepProgram& program, Array<int32_t> schedule) {
    return ToNumpy(coopjax::ComputeLiveness(program, {schedule.data(), schedule.size()}).live_bytes);
  }, "Live bytes at each step of a valid schedule, int64.");
  m.def("recompute_totals", [](const StepProgram& program, Array<int32_t> schedule) {
    const auto totals = coopjax::CountRecompute(program, {schedule.data(), schedule.size()});
    return nb::make_tuple(totals.cost_s, totals.flops, totals.num_ops);
  }, "Modelled seconds, FLOPs and number of the repeats in a schedule.");
  m.def("lower_bound", [](const StepProgram& program) {
    const auto bound = coopjax::ComputeLowerBound(program);
    return nb::make_tuple(bound.bytes, bound.op);
  }, "Bytes that no schedule avoids, and the op that forces them (-1: no ops).");
}

void BindRemat(nb::module_& m) {
  
  m.attr("NUM_ORDER_RULES") = coopjax::kNumOrderRules;
  m.def("schedule_by_rule", [](const StepProgram& program, int rule) {
    coopjax::Schedule schedule;
    {
      nb::gil_scoped_release release;
      schedule = coopjax::ScheduleByRule(program, static_cast<coopjax::OrderRule>(rule));
    }
    return ToNumpy(schedule);
  }, "An order without repeats by one of NUM_ORDER_RULES rules; see list_scheduler.h.");
  m.def("schedule_for_memory", [](const StepProgram& program) {
    coopjax::Schedule schedule;
    {
      nb::gil_scoped_release release;
      schedule = coopjax::ScheduleForMemory(program);
    }
    return ToNumpy(schedule);
  }, "The best order of all rules.");
  m.def("plan_coop", [](const StepProgram& program, Array<int32_t> order, int64_t budget_bytes, int eviction, int cost,
                        bool partitions_by_density, double cheap_below_s_per_byte, bool recomputes_in_place,
                        bool knows_future, int64_t alignment_bytes, double max_overhead) {
    const coopjax::CoopOptions options = {static_cast<coopjax::EvictionRule>(eviction),
                                          static_cast<coopjax::CostRule>(cost),
                                          partitions_by_density,
                                          cheap_below_s_per_byte,
                                          recomputes_in_place,
                                          knows_future,
                                          alignment_bytes,
                                          max_overhead};
    const std::vector<int32_t> steps = ToVector<int32_t>(order);
    coopjax::CoopResult result;
    {
      nb::gil_scoped_release release;
      result = coopjax::PlanCoop(program, steps, budget_bytes, options);
    }
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
    answer["fragmentation"] = result.counters.fragmentation;
    return answer;
  }, nb::arg("program"), nb::arg("order"), nb::arg("budget_bytes"), nb::kw_only(), nb::arg("eviction") = 0,
     nb::arg("cost") = 1, nb::arg("partitions_by_density") = true, nb::arg("cheap_below_s_per_byte") = 0.0,
     nb::arg("recomputes_in_place") = true, nb::arg("knows_future") = true, nb::arg("alignment_bytes") = 64,
     nb::arg("max_overhead") = 4.0,
     "Coop, DTR or DTE simulated in an arena of the budget's size; see coop_planner.h. `placements` has rows (value, "
     "step of production, offset), flattened.");
  m.def("plan_peak", [](const StepProgram& program, Array<int32_t> order, int64_t budget_bytes, double exponent,
                        int32_t num_price_rounds, bool merge_repeats, bool clean_up, bool swap, int64_t max_trials,
                        double time_limit_s) {
    const coopjax::PeakOptions options = {exponent, num_price_rounds, merge_repeats, clean_up,
                                          swap,     max_trials,       time_limit_s};
    const std::vector<int32_t> steps = ToVector<int32_t>(order);
    coopjax::PeakResult result;
    {
      nb::gil_scoped_release release;
      result = coopjax::PlanPeak(program, steps, budget_bytes, options);
    }
    nb::dict answer;
    answer["schedule"] = ToNumpy(result.schedule);
    answer["is_feasible"] = result.is_feasible;
    answer["timed_out"] = result.timed_out;
    answer["trials"] = result.counters.trials;
    answer["moves"] = result.counters.moves;
    answer["removals"] = result.counters.removals;
    answer["swaps"] = result.counters.swaps;
    return answer;
  }, nb::arg("program"), nb::arg("order"), nb::arg("budget_bytes"), nb::kw_only(), nb::arg("exponent") = 2.0,
     nb::arg("num_price_rounds") = 24, nb::arg("merge_repeats") = true, nb::arg("clean_up") = true,
     nb::arg("swap") = true, nb::arg("max_trials") = 200000, nb::arg("time_limit_s") = 10.0,
     "Rematerialization under a budget of live bytes; see peak_planner.h.");
}

}  // namespace

void BindPlanners(nb::module_& m) {
  BindProgram(m);
  BindRemat(m);
}

}  // namespace coopjax::python
