// XLA's own account of memory: a serialized xla.BufferAssignmentProto, read.
//
// Field numbers are those of xla/service/hlo.proto. A logical buffer is a value; an allocation holds
// many at offsets; temporaries share one allocation per memory space.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace coopjax {

struct LogicalBuffer {
  int64_t id = 0;
  int64_t bytes = 0;
  int64_t instruction_id = 0;
  std::string instruction_name;        // what older versions give instead of the id
  std::vector<int64_t> shape_index;
  int64_t color = 0;                   // memory space
};

struct BufferAllocation {
  struct Assigned {
    int64_t logical_buffer_id = 0;
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  int64_t index = 0;
  int64_t bytes = 0;
  bool is_thread_local = false;
  bool is_tuple = false;
  bool is_entry_parameter = false;
  bool is_constant = false;
  bool maybe_live_out = false;
  int64_t parameter_number = -1;
  int64_t color = 0;
  std::vector<Assigned> assigned;

  // Counted by memory_analysis().temp_size_in_bytes.
  bool is_temporary() const { return !is_entry_parameter && !maybe_live_out && !is_thread_local && !is_constant; }
};

struct BufferAssignment {
  std::vector<LogicalBuffer> logical_buffers;
  std::vector<BufferAllocation> allocations;

  int64_t temp_bytes() const;
};

// False when `message` is not a BufferAssignmentProto.
bool ParseBufferAssignment(std::string_view message, BufferAssignment* result);

// The buffer assignment inside an HloProto (a dump's *.hlo.pb); empty when there is none.
std::string_view BufferAssignmentOfHloProto(std::string_view hlo_proto);

}  // namespace coopjax
