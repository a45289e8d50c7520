#include "program/schedule_flow.h"

#include "program/dependences.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

using testing::ProgramBuilder;

TEST(EachReadFindsTheProductionBeforeIt) {
  ProgramBuilder b;
  const ValueId x = b.Given(1);
  const ValueId a = b.Op({.inputs = {x}, .output_bytes = {1}});
  b.Op({.inputs = {a}, .output_bytes = {1}});
  b.Op({.inputs = {a}, .output_bytes = {1}});
  const Csr touches = OpTouches(b.program());
  const Schedule schedule = {0, 1, 0, 2};
  const ScheduleFlow flow(b.program(), touches, schedule);
  EXPECT_EQ(flow.num_productions(), 5);          // x, then one per step
  EXPECT_EQ(flow.sources(1)[0], flow.first_made(0));
  EXPECT_EQ(flow.sources(3)[0], flow.first_made(2));
  EXPECT_EQ(flow.last_read(flow.first_made(0)), 1);
  EXPECT_EQ(flow.made_at(flow.sources(0)[0]), -1);
  EXPECT_TRUE(!flow.overwrites());
}

TEST(OverwritesAreFound) {
  ProgramBuilder b;
  const ValueId weight = b.Given(4);
  const ValueId a = b.Op({.inputs = {weight}, .output_bytes = {4}});
  b.Op({.inputs = {a}, .output_bytes = {4}, .kind = ValueKind::kOutput, .can_recompute = false, .in_place_of = weight});
  const Csr touches = OpTouches(b.program());
  const ScheduleFlow flow(b.program(), touches, b.program().schedule);
  EXPECT_EQ(flow.overwritten_at(weight), 1);
  EXPECT_EQ(flow.overwritten_at(a), kNeverStep);
  EXPECT_EQ(flow.sources(1).size(), size_t{2});  // overwriting touches the weight
}

TEST(UnreadRepeatsGoWithWhatServedThem) {
  ProgramBuilder b;
  const ValueId a = b.Op({.output_bytes = {1}});
  const ValueId c = b.Op({.inputs = {a}, .output_bytes = {1}});
  b.Op({.inputs = {a, c}, .output_bytes = {1}});
  const Csr touches = OpTouches(b.program());
  // The second op 1 is read by nobody after the third, and the second op 0 only by it and by op 2.
  EXPECT_TRUE(WithoutUnreadRepeats(b.program(), touches, Schedule{0, 1, 0, 1, 1, 2}) == (Schedule{0, 1, 0, 1, 2}));
  EXPECT_TRUE(WithoutUnreadRepeats(b.program(), touches, Schedule{0, 1, 2, 0, 1}) == (Schedule{0, 1, 2}));
}

}  // namespace
}  // namespace coopjax
