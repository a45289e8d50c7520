// Bindings of StepProgram and of everything that plans one.
#include <nanobind/nanobind.h>

#include <utility>
#include <vector>

#include "planners/bounds/byte_bound.h"
#include "planners/bounds/cost_bound.h"
#include "planners/improve/exchange_search.h"
#include "planners/improve/neighbourhood_search.h"
#include "planners/orders/list_scheduler.h"
#include "planners/peak/planner.h"
#include "program/liveness.h"
#include "program/step_program.h"
#include "python/bindings.h"

namespace coopjax::python {
namespace {

void BindProgram(nb::module_& m) {
  nb::class_<StepProgram>(m, "StepProgram", "A training step as the planners see it; see step_program.h.")
      .def("__init__",
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
  m.def(
      "live_bytes",
      [](const StepProgram& program, Array<int32_t> schedule) {
        return ToNumpy(coopjax::ComputeLiveness(program, {schedule.data(), schedule.size()}).live_bytes);
      },
      "Live bytes at each step of a valid schedule, int64.");
  m.def(
      "recompute_totals",
      [](const StepProgram& program, Array<int32_t> schedule) {
        const auto totals = coopjax::CountRecompute(program, {schedule.data(), schedule.size()});
        return nb::make_tuple(totals.cost_s, totals.flops, totals.num_ops);
      },
      "Modelled seconds, FLOPs and number of the repeats in a schedule.");
  m.def(
      "lower_bound",
      [](const StepProgram& program) {
        const auto bound = coopjax::ComputeByteBound(program);
        return nb::make_tuple(bound.bytes, bound.op);
      },
      "Bytes that no schedule avoids, and the op that forces them (-1: no ops).");
}

void BindRemat(nb::module_& m) {
  m.attr("NUM_ORDER_RULES") = coopjax::kNumOrderRules;
  m.def(
      "schedule_by_rule",
      [](const StepProgram& program, int rule) {
        coopjax::Schedule schedule;
        {
          nb::gil_scoped_release release;
          schedule = coopjax::ScheduleByRule(program, static_cast<coopjax::OrderRule>(rule));
        }
        return ToNumpy(schedule);
      },
      "An order without repeats by one of NUM_ORDER_RULES rules; see list_scheduler.h.");
  m.def(
      "schedule_for_memory",
      [](const StepProgram& program) {
        coopjax::Schedule schedule;
        {
          nb::gil_scoped_release release;
          schedule = coopjax::ScheduleForMemory(program);
        }
        return ToNumpy(schedule);
      },
      "The best order of all rules.");
  m.def(
      "plan_peak",
      [](const StepProgram& program, Array<int32_t> order, int64_t budget_bytes, double exponent,
         int32_t num_price_rounds, bool merge_repeats, bool clean_up, bool swap, int64_t max_trials,
         int64_t max_steps) {
        const coopjax::PeakOptions options = {exponent, num_price_rounds, merge_repeats, clean_up,
                                              swap,     max_trials,       max_steps};
        const std::vector<int32_t> steps = ToVector<int32_t>(order);
        coopjax::PeakResult result;
        {
          nb::gil_scoped_release release;
          result = coopjax::PlanPeak(program, steps, budget_bytes, options);
        }
        nb::dict answer;
        answer["schedule"] = ToNumpy(result.schedule);
        answer["is_cut_short"] = result.is_cut_short;
        answer["trials"] = result.counters.trials;
        answer["moves"] = result.counters.moves;
        answer["removals"] = result.counters.removals;
        answer["swaps"] = result.counters.swaps;
        return answer;
      },
      nb::arg("program"), nb::arg("order"), nb::arg("budget_bytes"), nb::kw_only(), nb::arg("exponent") = 2.0,
      nb::arg("num_price_rounds") = 24, nb::arg("merge_repeats") = true, nb::arg("clean_up") = true,
      nb::arg("swap") = true, nb::arg("max_trials") = 1000000, nb::arg("max_steps") = kDefaultSteps,
      "Rematerialization under a budget of live bytes; see planners/peak/planner.h.");
}

// A search that makes a plan better: all take and give the same.
template <typename Options, auto kSearch>
void BindSearch(nb::module_& m, const char* name, const char* doc) {
  const Options defaults;
  m.def(
      name,
      [](const StepProgram& program, Array<int32_t> start, int64_t budget_bytes, int64_t max_work, int32_t patience,
         double stop_at_cost_s, uint64_t seed, int64_t max_steps) {
        const Options options = {max_work, patience, stop_at_cost_s, seed, max_steps};
        const std::vector<int32_t> steps = ToVector<int32_t>(start);
        const auto result = [&] {
          nb::gil_scoped_release release;
          return kSearch(program, steps, budget_bytes, options);
        }();
        nb::dict answer;
        answer["schedule"] = ToNumpy(result.schedule);
        answer["rounds"] = result.rounds;
        answer["improvements"] = result.improvements;
        answer["is_cut_short"] = result.is_cut_short;
        return answer;
      },
      nb::arg("program"), nb::arg("start"), nb::arg("budget_bytes"), nb::kw_only(),
      nb::arg("max_work") = defaults.max_work, nb::arg("patience") = defaults.patience,
      nb::arg("stop_at_cost_s") = defaults.stop_at_cost_s, nb::arg("seed") = defaults.seed,
      nb::arg("max_steps") = defaults.max_steps, doc);
}

void BindImprovement(nb::module_& m) {
  BindSearch<NeighbourhoodOptions, SearchNeighbourhood>(
      m, "search_neighbourhood",
      "A plan that is not worse than `start`, by large-neighbourhood search; see neighbourhood_search.h.");
  BindSearch<ExchangeOptions, SearchExchanges>(
      m, "search_exchanges",
      "A plan that is not worse than `start`, by exchanging many moves at once; see exchange_search.h.");
}

void BindBounds(nb::module_& m) {
  m.def(
      "cost_bound",
      [](const StepProgram& program, int64_t budget_bytes) {
        nb::gil_scoped_release release;
        return coopjax::ComputeCostBound(program, budget_bytes).cost_s;
      },
      "Seconds of recompute that no schedule under a budget avoids, inf where none holds it; see cost_bound.h.");
  m.def("cost_unit", &coopjax::CostUnit,
        "What every recompute cost is a multiple of, 0 for nothing; see cost_bound.h.");
}

}  // namespace

void BindPlanners(nb::module_& m) {
  BindProgram(m);
  BindBounds(m);
  BindRemat(m);
  BindImprovement(m);
}

}  // namespace coopjax::python
