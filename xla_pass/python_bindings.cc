// The Python extension `coopjax._core`: thin bindings, one Bind function per component.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "buffer_assignment.h"
#include "coop_planner.h"
#include "hlo_analysis.h"
#include "hlo_heap.h"
#include "hlo_module.h"
#include "hlo_program.h"
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

// A module that is parsed once and then read, rewritten and verified.
struct ParsedModule {
  explicit ParsedModule(const nb::bytes& module_bytes) {
    std::string copy(module_bytes.c_str(), module_bytes.size()), error;
    {
      nb::gil_scoped_release release;
      module = coopjax::ParseHloModule(std::move(copy), &error);
    }
    if (module == nullptr) throw nb::value_error(error.c_str());
  }

  // Made when first asked for; the GIL serializes the asking.
  const coopjax::HloAnalysis& Analysis() const {
    std::string error;
    if (analysis == nullptr) analysis = coopjax::AnalyzeHlo(*module, &error);
    if (analysis == nullptr) throw nb::value_error(error.c_str());
    return *analysis;
  }

  std::unique_ptr<const coopjax::HloModule> module;
  mutable std::unique_ptr<const coopjax::HloAnalysis> analysis;
};

static void BindTransform(nb::module_& m) {
  nb::class_<ParsedModule>(m, "HloModule", "A parsed HloModuleProto; ValueError says what keeps bytes from being one.")
      .def(nb::init<const nb::bytes&>());
  m.def("apply_schedule", [](const ParsedModule& parsed, Array<int64_t> op_instruction_ids, Array<int32_t> schedule) {
    const auto ids = ToVector<int64_t>(op_instruction_ids);
    const auto steps = ToVector<int32_t>(schedule);
    coopjax::TransformResult result;
    {
      nb::gil_scoped_release release;
      result = coopjax::ApplySchedule(*parsed.module, ids, steps);
    }
    if (!result.error.empty()) throw nb::value_error(result.error.c_str());
    return nb::bytes(result.bytes.data(), result.bytes.size());
  }, "The module with the schedule, repeats as clones, in its entry computation; see transform.h.");
  m.def("verify_transform", [](const ParsedModule& before, const ParsedModule& after) {
    nb::gil_scoped_release release;
    return coopjax::VerifyTransform(*before.module, *after.module);
  }, "Why `after` may not compute what `before` does, or an empty string; see verify.h.");
}

// Text from a module: UTF-8 unless somebody damaged it, and then it must not stop anything.
static nb::tuple ToTexts(const std::vector<std::string>& texts) {
  nb::list list;
  for (const std::string& text : texts) {
    list.append(nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace")));
  }
  return nb::tuple(list);
}

static nb::dict ToDict(const coopjax::HloProgram& hlo) {
  const coopjax::StepProgram& program = hlo.program;
  std::vector<int32_t> may_share;
  for (const coopjax::MayShare& share : program.may_share) {
    may_share.insert(may_share.end(), {share.op, share.input, share.output});
  }
  std::vector<uint8_t> kinds;
  for (const coopjax::ValueKind kind : program.value_kind) kinds.push_back(static_cast<uint8_t>(kind));
  const auto csr = [](const coopjax::Csr& rows) { return nb::make_tuple(ToNumpy(rows.offsets), ToNumpy(rows.items)); };
  nb::dict fields;
  fields["op_inputs"] = csr(program.op_inputs);
  fields["op_outputs"] = csr(program.op_outputs);
  fields["op_control"] = csr(program.op_control);
  fields["op_cost_s"] = ToNumpy(program.op_cost_s);
  fields["op_flops"] = ToNumpy(program.op_flops);
  fields["op_workspace_bytes"] = ToNumpy(program.op_workspace_bytes);
  fields["op_can_recompute"] = ToNumpy(program.op_can_recompute);
  fields["value_bytes"] = ToNumpy(program.value_bytes);
  fields["value_producer"] = ToNumpy(program.value_producer);
  fields["value_kind"] = ToNumpy(kinds);
  fields["value_in_place_of"] = ToNumpy(program.value_in_place_of);
  fields["may_share"] = ToNumpy(may_share);
  fields["schedule"] = ToNumpy(program.schedule);
  fields["op_names"] = ToTexts(hlo.op_names);
  fields["op_scopes"] = ToTexts(hlo.op_scopes);
  fields["op_sources"] = ToTexts(hlo.op_sources);
  fields["value_types"] = ToTexts(hlo.value_types);
  return fields;
}

static nb::dict ToDict(const coopjax::HeapResult& heap) {
  std::vector<int64_t> instruction_ids, bytes, offsets;
  std::vector<int32_t> allocations, starts, ends;
  std::vector<uint8_t> kinds;
  nb::list shape_indices;
  for (const coopjax::HeapBuffer& buffer : heap.buffers) {
    instruction_ids.push_back(buffer.instruction_id);
    bytes.push_back(buffer.bytes);
    offsets.push_back(buffer.offset);
    allocations.push_back(buffer.allocation);
    kinds.push_back(static_cast<uint8_t>(buffer.kind));
    starts.push_back(buffer.start);
    ends.push_back(buffer.end);
    nb::list index;
    for (const int64_t element : buffer.shape_index) index.append(element);
    shape_indices.append(nb::tuple(index));
  }
  nb::dict fields;
  fields["temp_bytes"] = heap.temp_bytes;
  fields["argument_bytes"] = heap.argument_bytes;
  fields["output_bytes"] = heap.output_bytes;
  fields["alias_bytes"] = heap.alias_bytes;
  fields["heap_bytes"] = heap.heap_bytes;
  fields["peak_live_bytes"] = heap.peak_live_bytes;
  fields["buffer_instruction_ids"] = ToNumpy(instruction_ids);
  fields["buffer_shape_indices"] = nb::tuple(shape_indices);
  fields["buffer_bytes"] = ToNumpy(bytes);
  fields["buffer_offsets"] = ToNumpy(offsets);
  fields["buffer_allocations"] = ToNumpy(allocations);
  fields["buffer_kinds"] = ToNumpy(kinds);
  fields["buffer_starts"] = ToNumpy(starts);
  fields["buffer_ends"] = ToNumpy(ends);
  return fields;
}

static nb::dict ToDict(const coopjax::BufferAssignment& assignment) {
  nb::list buffers, allocations;
  for (const coopjax::LogicalBuffer& buffer : assignment.logical_buffers) {
    nb::list index;
    for (const int64_t element : buffer.shape_index) index.append(element);
    buffers.append(nb::make_tuple(buffer.id, buffer.bytes, buffer.instruction_id, buffer.instruction_name,
                                  nb::tuple(index), buffer.color));
  }
  for (const coopjax::BufferAllocation& allocation : assignment.allocations) {
    nb::list assigned;
    for (const auto& entry : allocation.assigned) {
      assigned.append(nb::make_tuple(entry.logical_buffer_id, entry.offset, entry.bytes));
    }
    allocations.append(nb::make_tuple(allocation.index, allocation.bytes, allocation.is_thread_local,
                                      allocation.is_tuple, allocation.is_entry_parameter, allocation.is_constant,
                                      allocation.maybe_live_out, allocation.parameter_number, allocation.color,
                                      nb::tuple(assigned)));
  }
  nb::dict fields;
  fields["logical_buffers"] = nb::tuple(buffers);
  fields["allocations"] = nb::tuple(allocations);
  return fields;
}

static void BindHloProgram(nb::module_& m) {
  m.def("read_step_program", [](const ParsedModule& parsed, double flops_per_s, double transcendentals_per_s,
                                double bytes_per_s, double op_overhead_s) {
    const coopjax::Roofline roofline = {flops_per_s, transcendentals_per_s, bytes_per_s, op_overhead_s};
    coopjax::HloProgram hlo;
    const std::string error = coopjax::BuildHloProgram(parsed.Analysis(), roofline, &hlo);
    if (!error.empty()) throw nb::value_error(error.c_str());
    return nb::make_tuple(ToDict(hlo), ToNumpy(hlo.op_instruction_ids));
  }, "The fields of a StepProgram, and the instruction id of each op; see hlo_program.h.");
  m.def("predict_memory", [](const ParsedModule& parsed) {
    const coopjax::HloAnalysis& analysis = parsed.Analysis();
    return ToDict(coopjax::AssignBuffers(*analysis.alias, analysis.ranges));
  }, "What XLA:CPU's buffer assignment will do with a scheduled module; see hlo_heap.h.");
  m.def("module_cost", [](const ParsedModule& parsed, bool count_iterations) {
    const auto cost = coopjax::CostModel(parsed.Analysis().graph, count_iterations).ComputationCost(parsed.module->entry);
    return nb::make_tuple(cost.flops, cost.transcendentals, cost.bytes_accessed);
  }, "FLOPs, transcendentals and bytes accessed of one run of a module; see hlo_cost.h.");
  m.def("parse_buffer_assignment", [](const nb::bytes& proto, bool is_hlo_proto) {
    std::string_view message(proto.c_str(), proto.size());
    if (is_hlo_proto) message = coopjax::BufferAssignmentOfHloProto(message);
    coopjax::BufferAssignment assignment;
    if (!coopjax::ParseBufferAssignment(message, &assignment)) {
      throw nb::value_error("the bytes are not a BufferAssignmentProto");
    }
    return ToDict(assignment);
  }, "The logical buffers and allocations of a BufferAssignmentProto; see buffer_assignment.h.");
}

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // outcomes that are kept for the life of the process are no leak
  m.doc() = "The C++ core of coopjax: planners over a StepProgram, and the HLO pass (bytes in, bytes out).";
  BindProgram(m);
  BindPlanners(m);
  BindTransform(m);
  BindHloProgram(m);
}
