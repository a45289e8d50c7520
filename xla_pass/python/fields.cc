#include "python/fields.h"

#include <cstdint>
#include <vector>

#include "program/step_program.h"
#include "python/parsed_module.h"

namespace coopjax::python {

nb::dict HeapFields(const HeapResult& heap) {
  std::vector<int64_t> instruction_ids, bytes, offsets;
  std::vector<int32_t> allocations, starts, ends;
  std::vector<uint8_t> kinds;
  nb::list shape_indices;
  for (const HeapBuffer& buffer : heap.buffers) {
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
  fields["least_temp_bytes"] = heap.least_temp_bytes;
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

nb::dict ProgramFields(const HloProgram& hlo) {
  const StepProgram& program = hlo.program;
  std::vector<int32_t> may_share;
  for (const MayShare& share : program.may_share) {
    may_share.insert(may_share.end(), {share.op, share.input, share.output});
  }
  std::vector<uint8_t> kinds;
  for (const ValueKind kind : program.value_kind) kinds.push_back(static_cast<uint8_t>(kind));
  const auto csr = [](const Csr& rows) { return nb::make_tuple(ToNumpy(rows.offsets), ToNumpy(rows.items)); };
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
  fields["op_kinds"] = ToTexts(hlo.op_kinds);
  fields["op_scopes"] = ToTexts(hlo.op_scopes);
  fields["op_sources"] = ToTexts(hlo.op_sources);
  fields["value_types"] = ToTexts(hlo.value_types);
  return fields;
}

}  // namespace coopjax::python
