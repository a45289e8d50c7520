#include "buffers/buffer_assignment.h"

#include "hlo/wire.h"
#include "testing/expect.h"

namespace coopjax {
namespace {

std::string LogicalBufferProto(int64_t id, int64_t bytes, int64_t instruction_id, std::vector<int64_t> shape_index) {
  std::string location, buffer;
  hlo::AppendPackedField(3, shape_index, &location);
  hlo::AppendVarintField(4, instruction_id, &location);
  hlo::AppendVarintField(1, id, &buffer);
  hlo::AppendVarintField(2, bytes, &buffer);
  hlo::AppendBytesField(3, location, &buffer);
  return buffer;
}

// `flag` is the number of a boolean field to set: 3 thread-local, 5 parameter, 7 live out, 12 constant, 0 none.
std::string AllocationProto(int64_t bytes, uint32_t flag, int64_t buffer_id, int64_t offset) {
  std::string assigned, allocation;
  hlo::AppendVarintField(1, buffer_id, &assigned);
  hlo::AppendVarintField(2, offset, &assigned);
  hlo::AppendVarintField(3, 8, &assigned);
  hlo::AppendVarintField(2, bytes, &allocation);
  if (flag != 0) hlo::AppendVarintField(flag, 1, &allocation);
  hlo::AppendBytesField(9, assigned, &allocation);
  return allocation;
}

TEST(ReadsBuffersAndAllocations) {
  std::string proto, hlo_proto;
  hlo::AppendBytesField(1, LogicalBufferProto(7, 8, 42, {1, 0}), &proto);
  hlo::AppendBytesField(3, AllocationProto(1000, 0, 7, 64), &proto);
  hlo::AppendBytesField(3, AllocationProto(30, 3, 8, 0), &proto);
  hlo::AppendBytesField(3, AllocationProto(500, 5, 9, 0), &proto);
  hlo::AppendBytesField(3, AllocationProto(200, 7, 10, 0), &proto);
  hlo::AppendBytesField(3, AllocationProto(100, 12, 11, 0), &proto);
  hlo::AppendBytesField(3, AllocationProto(16, 11, 12, 0), &proto);  // a tuple's table is temporary
  hlo::AppendBytesField(3, proto, &hlo_proto);
  BufferAssignment assignment;
  EXPECT_TRUE(ParseBufferAssignment(BufferAssignmentOfHloProto(hlo_proto), &assignment));
  EXPECT_EQ(assignment.temp_bytes(), 1016);
  EXPECT_EQ(assignment.logical_buffers[0].instruction_id, 42);
  EXPECT_TRUE(assignment.logical_buffers[0].shape_index == (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(assignment.allocations[0].assigned[0].logical_buffer_id, 7);
  EXPECT_EQ(assignment.allocations[0].assigned[0].offset, 64);
  EXPECT_EQ(assignment.allocations[0].parameter_number, -1);
  EXPECT_EQ(assignment.allocations[2].parameter_number, 0);
}

TEST(GarbageIsRefused) {
  BufferAssignment assignment;
  EXPECT_TRUE(!ParseBufferAssignment("\x0a\xff", &assignment));  // a length beyond the end
  EXPECT_TRUE(!ParseBufferAssignment("\x08\x01", &assignment));  // field 1 is no message
  EXPECT_TRUE(BufferAssignmentOfHloProto("").empty());
}

}  // namespace
}  // namespace coopjax
