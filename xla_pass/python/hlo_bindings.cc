// Bindings of the HLO pass: bytes in, bytes out.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bridge/hlo_program.h"
#include "bridge/read_module.h"
#include "bridge/transform.h"
#include "buffers/buffer_assignment.h"
#include "buffers/heap.h"
#include "python/bindings.h"
#include "python/fields.h"
#include "python/parsed_module.h"
#include "verify/verify.h"

namespace coopjax::python {

namespace {

using namespace nb::literals;

void BindTransform(nb::module_& m) {
  nb::class_<ParsedModule>(m, "HloModule", "A parsed HloModuleProto; ValueError says what keeps bytes from being one.")
      .def(nb::init<const nb::bytes&>())
      .def_prop_ro("name", [](const ParsedModule& parsed) { return ToText(parsed.module->name); })
      .def_prop_ro(
          "num_instructions", [](const ParsedModule& parsed) { return parsed.module->instructions.size(); },
          "Of all computations, fused ones included.");
  m.def(
      "apply_schedule",
      [](const ParsedModule& parsed, Array<int64_t> op_instruction_ids, Array<int32_t> schedule,
         std::optional<int64_t> computation_id) {
        const int32_t computation = parsed.ComputationIndex(computation_id);
        const auto ids = ToVector<int64_t>(op_instruction_ids);
        const auto steps = ToVector<int32_t>(schedule);
        coopjax::TransformResult result;
        {
          nb::gil_scoped_release release;
          result = coopjax::ApplySchedule(*parsed.module, ids, steps, computation);
        }
        if (!result.error.empty()) throw nb::value_error(result.error.c_str());
        return nb::bytes(result.bytes.data(), result.bytes.size());
      },
      "module"_a, "op_instruction_ids"_a, "schedule"_a, "computation_id"_a = nb::none(),
      "The module with the schedule, repeats as clones, in a computation, by default the entry; see transform.h.");
  m.def(
      "verify_transform",
      [](const ParsedModule& before, const ParsedModule& after) {
        nb::gil_scoped_release release;
        return verify::VerifyTransform(*before.module, *after.module);
      },
      "Why `after` may not compute what `before` does, or an empty string; see verify.h.");
}

nb::dict ToDict(const coopjax::BufferAssignment& assignment) {
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

void BindHloProgram(nb::module_& m) {
  m.attr("TRANSCENDENTAL_FLOPS") = coopjax::kTranscendentalFlops;
  m.def(
      "read_step_program",
      [](const ParsedModule& parsed, double flops_per_s, double transcendentals_per_s, double bytes_per_s,
         double op_overhead_s, std::optional<int64_t> computation_id, std::string kept_scope) {
        const coopjax::ProgramReader reader = {
            .roofline = {flops_per_s, transcendentals_per_s, bytes_per_s, op_overhead_s},
            .kept_scope = std::move(kept_scope)};
        coopjax::HloProgram hlo;
        const std::string error = reader.Read(parsed.Analysis(), &hlo, parsed.ComputationIndex(computation_id));
        if (!error.empty()) throw nb::value_error(error.c_str());
        return nb::make_tuple(ProgramFields(hlo), ToNumpy(hlo.op_instruction_ids));
      },
      "module"_a, "flops_per_s"_a, "transcendentals_per_s"_a, "bytes_per_s"_a, "op_overhead_s"_a, "computation_id"_a,
      "kept_scope"_a,
      "The fields of a computation's StepProgram, by default the entry's, and the instruction id of each op; see "
      "hlo_program.h.");
  m.def(
      "predict_memory", [](const ParsedModule& parsed) { return HeapFields(parsed.Heap()); },
      "What XLA's buffer assignment will do with a scheduled module; see buffers/heap.h.");
  m.def(
      "module_cost",
      [](const ParsedModule& parsed, bool count_iterations) {
        const auto cost =
            coopjax::CostModel(parsed.Analysis().graph, count_iterations).ComputationCost(parsed.module->entry);
        return nb::make_tuple(cost.flops, cost.transcendentals, cost.bytes_accessed);
      },
      "FLOPs, transcendentals and bytes accessed of one run of a module; see bridge/cost.h.");
  m.def(
      "parse_buffer_assignment",
      [](const nb::bytes& proto, bool is_hlo_proto) {
        std::string_view message(proto.c_str(), proto.size());
        if (is_hlo_proto) message = coopjax::BufferAssignmentOfHloProto(message);
        coopjax::BufferAssignment assignment;
        if (!coopjax::ParseBufferAssignment(message, &assignment)) {
          throw nb::value_error("the bytes are not a BufferAssignmentProto");
        }
        return ToDict(assignment);
      },
      "The logical buffers and allocations of a BufferAssignmentProto; see buffer_assignment.h.");
}

}  // namespace

void BindHlo(nb::module_& m) {
  BindTransform(m);
  BindHloProgram(m);
}

}  // namespace coopjax::python
