#include "buffers/buffer_assignment.h"

#include "hlo/wire.h"

namespace coopjax {
namespace {

bool ParseLocation(std::string_view message, LogicalBuffer* buffer) {
  hlo::WireReader reader(message);
  for (hlo::WireField field; reader.Next(&field);) {
    if (field.number == 2) buffer->instruction_name = field.bytes;
    if (field.number == 3 && !hlo::ReadRepeatedInt64(field, &buffer->shape_index)) return false;
    if (field.number == 4) buffer->instruction_id = field.as_int64();
  }
  return reader.ok();
}

bool ParseLogicalBuffer(std::string_view message, LogicalBuffer* buffer) {
  hlo::WireReader reader(message);
  for (hlo::WireField field; reader.Next(&field);) {
    if (field.number == 1) buffer->id = field.as_int64();
    if (field.number == 2) buffer->bytes = field.as_int64();
    if (field.number == 3 && !ParseLocation(field.bytes, buffer)) return false;
    if (field.number == 4) buffer->color = field.as_int64();
  }
  return reader.ok();
}

bool ParseAssigned(std::string_view message, BufferAllocation::Assigned* assigned) {
  hlo::WireReader reader(message);
  for (hlo::WireField field; reader.Next(&field);) {
    if (field.number == 1) assigned->logical_buffer_id = field.as_int64();
    if (field.number == 2) assigned->offset = field.as_int64();
    if (field.number == 3) assigned->bytes = field.as_int64();
  }
  return reader.ok();
}

bool ParseAllocation(std::string_view message, BufferAllocation* allocation) {
  hlo::WireReader reader(message);
  for (hlo::WireField field; reader.Next(&field);) {
    switch (field.number) {
      case 1:
        allocation->index = field.as_int64();
        break;
      case 2:
        allocation->bytes = field.as_int64();
        break;
      case 3:
        allocation->is_thread_local = field.value != 0;
        break;
      case 5:
        allocation->is_entry_parameter = field.value != 0;
        break;
      case 6:
        allocation->parameter_number = field.as_int64();
        break;
      case 7:
        allocation->maybe_live_out = field.value != 0;
        break;
      case 8:
        allocation->color = field.as_int64();
        break;
      case 9:
        if (!ParseAssigned(field.bytes, &allocation->assigned.emplace_back())) return false;
        break;
      case 11:
        allocation->is_tuple = field.value != 0;
        break;
      case 12:
        allocation->is_constant = field.value != 0;
        break;
    }
  }
  // proto3 leaves zeros out.
  if (allocation->is_entry_parameter && allocation->parameter_number < 0) allocation->parameter_number = 0;
  return reader.ok();
}

}  // namespace

int64_t BufferAssignment::temp_bytes() const {
  int64_t bytes = 0;
  for (const BufferAllocation& allocation : allocations) bytes += allocation.is_temporary() ? allocation.bytes : 0;
  return bytes;
}

bool ParseBufferAssignment(std::string_view message, BufferAssignment* result) {
  hlo::WireReader reader(message);
  for (hlo::WireField field; reader.Next(&field);) {
    if (field.number != 1 && field.number != 3) continue;
    if (field.type != hlo::WireType::kBytes) return false;
    if (field.number == 1 && !ParseLogicalBuffer(field.bytes, &result->logical_buffers.emplace_back())) return false;
    if (field.number == 3 && !ParseAllocation(field.bytes, &result->allocations.emplace_back())) return false;
  }
  return reader.ok();
}

std::string_view BufferAssignmentOfHloProto(std::string_view hlo_proto) {
  hlo::WireReader reader(hlo_proto);
  for (hlo::WireField field; reader.Next(&field);) {
    if (field.number == 3 && field.type == hlo::WireType::kBytes) return field.bytes;
  }
  return {};
}

}  // namespace coopjax
