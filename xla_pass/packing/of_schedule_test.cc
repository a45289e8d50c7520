#include "packing/of_schedule.h"

#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

using testing::ProgramBuilder;

// a (8) is overwritten in place by w (8): [0, 1) and [1, 3) at one offset. The output is no buffer; the last op's
// workspace is one.
TEST(InPlaceWritersAreTied) {
  ProgramBuilder b;
  const ValueId a = b.Op({.output_bytes = {8}});
  const ValueId w = b.Op({.inputs = {a}, .output_bytes = {8}, .in_place_of = a});
  b.Op({.inputs = {w}, .output_bytes = {50}, .kind = ValueKind::kOutput, .can_recompute = false, .workspace_bytes = 3});
  const StepProgram& program = b.program();
  const ScheduleBuffers found = BuffersOfSchedule(program, program.schedule, SharePolicy::kWhereNeeded);
  EXPECT_TRUE((found.values == std::vector<ValueId>{a, w, kNoValue}));
  const auto& buffers = found.problem.buffers;
  EXPECT_EQ(buffers[0].upper, 1);
  EXPECT_EQ(buffers[1].same_offset_as, 0);
  EXPECT_EQ(buffers[2].lower, 2);
  EXPECT_EQ(buffers[2].upper, 3);
  EXPECT_EQ(buffers[2].size, 3);
  EXPECT_EQ(PackBestFit(found.problem).heap_bytes, 11);
}

// a (4) may pass its buffer on to b (4); then c (9) is made. Live bytes 4, 4, 4 + 9: step 1 has room for a and b
// beside each other, so they are tied only when sharing is asked for everywhere. With c of 1 byte the peak is 5, and
// 8 bytes have no room.
TEST(SharingIsTiedWhereThereIsNoRoom) {
  for (const int64_t bytes : {9, 1}) {
    ProgramBuilder b;
    const ValueId a = b.Op({.output_bytes = {4}});
    const ValueId shared = b.Op({.inputs = {a}, .output_bytes = {4}, .share = {a}});
    b.Op({.inputs = {shared}, .output_bytes = {bytes}});
    const StepProgram& program = b.program();
    for (const SharePolicy policy : {SharePolicy::kAlways, SharePolicy::kWhereNeeded}) {
      const auto buffers = BuffersOfSchedule(program, program.schedule, policy).problem.buffers;
      const bool is_tied = policy == SharePolicy::kAlways || bytes == 1;
      EXPECT_EQ(buffers[1].same_offset_as, is_tied ? 0 : -1);
      EXPECT_EQ(buffers[0].upper, is_tied ? 1 : 2);
    }
  }
}

// Made twice, overwritten twice: each production has a buffer of its own, and each overwriter lies where the latest
// production lies.
TEST(RecomputedValuesHaveABufferPerProduction) {
  ProgramBuilder b;
  const ValueId a = b.Op({.output_bytes = {8}});
  const ValueId w = b.Op({.inputs = {a}, .output_bytes = {8}, .in_place_of = a});
  b.Op({.inputs = {w}, .output_bytes = {2}});
  const StepProgram& program = b.program();
  const Schedule schedule = {0, 1, 2, 0, 1};
  const ScheduleBuffers found = BuffersOfSchedule(program, schedule, SharePolicy::kAlways);
  EXPECT_TRUE((found.values == std::vector<ValueId>{a, w, w + 1, a, w}));
  EXPECT_EQ(found.problem.buffers[1].same_offset_as, 0);
  EXPECT_EQ(found.problem.buffers[4].same_offset_as, 3);
  EXPECT_EQ(PackBestFit(found.problem).heap_bytes, 10);
}

}  // namespace
}  // namespace coopjax
