#include "planners/orders/order_cut.h"

#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

using testing::ProgramBuilder;

// Three values of 10 that each shrink to 1, and an op that reads the three: at best 10 + 2 at once.
ProgramBuilder Shrinking() {
  ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  std::vector<ValueId> big, small;
  for (int i = 0; i < 3; ++i) big.push_back(builder.Op({.inputs = {x}, .output_bytes = {10}}));
  for (int i = 0; i < 3; ++i) small.push_back(builder.Op({.inputs = {big[i]}, .output_bytes = {1}}));
  builder.Op({.inputs = small, .output_bytes = {1}, .kind = ValueKind::kOutput});
  return builder;
}

TEST(MovesWhatThePeakNeedNotHold) {
  ProgramBuilder builder = Shrinking();
  const StepProgram& program = builder.program();
  EXPECT_EQ(ComputeLiveness(program, program.schedule).peak_bytes, 31);
  const OrderCutResult result = ReorderByCuts(program, program.schedule, {});
  // 10 + 1 for the first, 10 + 1 + 1 and 10 + 1 + 2 for the others; one op alone is bounded by its 10 + 1.
  EXPECT_EQ(result.peak_bytes, 13);
  EXPECT_EQ(ComputeLiveness(program, result.schedule).peak_bytes, 13);
  EXPECT_EQ(CheckSchedule(program, result.schedule), "");
  EXPECT_TRUE(result.bound_bytes >= 11 && result.bound_bytes <= 13);
}

TEST(BoundMeetsThePeakOfAForcedOrder) {
  // a (10) and b (7) are read again at the end, so they are held while c (20) is made.
  ProgramBuilder builder;
  const ValueId a = builder.Op({.output_bytes = {10}});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {7}});
  const ValueId c = builder.Op({.inputs = {b}, .output_bytes = {20}});
  builder.Op({.inputs = {a, b, c}, .output_bytes = {1}});
  const StepProgram& program = builder.program();
  // 10, 10 + 7, 10 + 7 + 20, 10 + 7 + 20 + 1.
  const OrderCutResult result = ReorderByCuts(program, program.schedule, {});
  EXPECT_EQ(result.bound_bytes, 38);
  EXPECT_EQ(result.peak_bytes, 38);
}

TEST(SharedBuffersAreCreditedOnceTheirOtherReadersRan) {
  // d may go into a's buffer if b ran before: 10 + 3 at its step, b (3) first. b needs 10 + 3 itself.
  ProgramBuilder builder;
  const ValueId a = builder.Op({.output_bytes = {10}});
  const ValueId d = builder.Op({.inputs = {a}, .output_bytes = {10}, .share = {a}});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {3}});
  builder.Op({.inputs = {b, d}, .output_bytes = {1}});
  const StepProgram& program = builder.program();
  // Given: 10, 10 + 10, 10 + 10 + 3. With b first: 10, 10 + 3, 3 + 10, 3 + 10 + 1.
  const OrderCutResult result = ReorderByCuts(program, program.schedule, {});
  EXPECT_EQ(result.peak_bytes, 14);
  EXPECT_EQ(result.bound_bytes, 14);
}

TEST(InPlaceWritersWaitForReaders) {
  ProgramBuilder builder;
  const ValueId a = builder.Op({.output_bytes = {8}});
  const ValueId r = builder.Op({.inputs = {a}, .output_bytes = {9}});
  const ValueId w = builder.Op({.inputs = {a}, .output_bytes = {8}, .in_place_of = a});
  builder.Op({.inputs = {r, w}, .output_bytes = {1}});
  const StepProgram& program = builder.program();
  // 8, 8 + 9, 8 + 9, 8 + 9 + 1.
  const OrderCutResult result = ReorderByCuts(program, program.schedule, {});
  EXPECT_EQ(result.bound_bytes, 18);
  EXPECT_EQ(result.peak_bytes, 18);
}

TEST(EmptyProgramsHaveNoPeak) {
  const OrderCutResult result = ReorderByCuts(StepProgram(), {}, {});
  EXPECT_EQ(result.peak_bytes, 0);
  EXPECT_EQ(result.num_cuts, 0);
}

TEST(NoTimeReturnsTheGivenOrder) {
  ProgramBuilder builder = Shrinking();
  const OrderCutResult result = ReorderByCuts(builder.program(), builder.program().schedule, {.max_steps = 0});
  EXPECT_TRUE(result.is_cut_short);
  EXPECT_EQ(result.peak_bytes, 31);
}

}  // namespace
}  // namespace coopjax
