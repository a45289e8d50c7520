// The Python extension `coopjax._core`: thin bindings, one Bind function per component.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "hlo_module.h"
#include "list_scheduler.h"
#include "liveness.h"
#include "peak_planner.h"
#include "step_program.h"
#include "transform.h"
#include "verify.h"

namespace nb = nanobind;

namespace {

template <typename T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename To, typename From>
std::vector<To> ToVector(const Array<From>& array) {
  return std::vector<To>(array.data(), array.data() + array.size());
}

// A numpy array that owns a copy of `values`.
template <typename T>
nb::object ToNumpy(const std::vector<T>& values) {
  T* data = new T[values.size() + 1];
  std::copy(values.begin(), values.end(), data);
  nb::capsule owner(data, [](void* pointer) noexcept { delete[] static_cast<T*>(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {values.size()}, owner));
}

}  // namespace

static void BindProgram(nb::module_& m) {
  using coopjax::StepProgram;
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

static void BindPlanners(nb::module_& m) {
  using coopjax::StepProgram;
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
  m.def("plan_peak", [](const StepProgram& program, Array<int32_t> order, int64_t budget_bytes, double exponent,
                        bool merge_repeats, bool clean_up, double time_limit_s) {
    const coopjax::PeakOptions options = {exponent, merge_repeats, clean_up, time_limit_s};
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
    return answer;
  }, nb::arg("program"), nb::arg("order"), nb::arg("budget_bytes"), nb::kw_only(), nb::arg("exponent") = 2.0,
     nb::arg("merge_repeats") = true, nb::arg("clean_up") = true, nb::arg("time_limit_s") = 10.0,
     "Greedy rematerialization under a budget of live bytes; see peak_planner.h.");
}

static void BindTransform(nb::module_& m) {
  const auto parse = [](const nb::bytes& module) {
    std::string error;
    auto parsed = coopjax::ParseHloModule({module.c_str(), module.size()}, &error);
    if (parsed == nullptr) throw nb::value_error(error.c_str());
    return parsed;
  };
  m.def("parse_check", [](const nb::bytes& module) {
    std::string error;
    coopjax::ParseHloModule({module.c_str(), module.size()}, &error);
    return error;
  }, "What keeps a serialized HloModuleProto from being a scheduled module, or an empty string.");
  m.def("apply_schedule", [parse](const nb::bytes& module, Array<int64_t> op_instruction_ids, Array<int32_t> schedule) {
    const auto result = coopjax::ApplySchedule(*parse(module), ToVector<int64_t>(op_instruction_ids), ToVector<int32_t>(schedule));
    if (!result.error.empty()) throw nb::value_error(result.error.c_str());
    return nb::bytes(result.bytes.data(), result.bytes.size());
  }, "The module with the schedule, repeats as clones, in its entry computation; see transform.h.");
  m.def("verify_transform", [parse](const nb::bytes& before, const nb::bytes& after) {
    return coopjax::VerifyTransform(*parse(before), {after.c_str(), after.size()});
  }, "Why `after` may not compute what `before` does, or an empty string; see verify.h.");
}

NB_MODULE(_core, m) {
  m.doc() = "The C++ core of coopjax: planners over a StepProgram, and the HLO pass (bytes in, bytes out).";
  BindProgram(m);
  BindPlanners(m);
  BindTransform(m);
}
