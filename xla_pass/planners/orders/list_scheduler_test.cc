#include "planners/orders/list_scheduler.h"

#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

using testing::ProgramBuilder;

TEST(RunsWhatFreesMemoryFirst) {
  // Given: three big values (10 each), then three reductions to 1. Best: reduce each at once, 10 + 1, 10 + 2.
  ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  std::vector<ValueId> big, small;
  for (int i = 0; i < 3; ++i) big.push_back(builder.Op({.inputs = {x}, .output_bytes = {10}}));
  for (int i = 0; i < 3; ++i) small.push_back(builder.Op({.inputs = {big[i]}, .output_bytes = {1}}));
  builder.Op({.inputs = small, .output_bytes = {1}, .kind = ValueKind::kOutput});
  const StepProgram& program = builder.program();
  EXPECT_EQ(ComputeLiveness(program, program.schedule).peak_bytes, 31);
  EXPECT_EQ(ComputeLiveness(program, ScheduleForMemory(program)).peak_bytes, 13);
}

TEST(MakesSmallInputsLate) {
  // A generator (20) that the last op reads is made first; backwards scheduling makes it last: 20 + 5 + 1.
  ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId generated = builder.Op({.output_bytes = {20}});
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {15}});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {5}});
  builder.Op({.inputs = {generated, b}, .output_bytes = {1}});
  const StepProgram& program = builder.program();
  EXPECT_EQ(ComputeLiveness(program, program.schedule).peak_bytes, 40);
  EXPECT_EQ(ComputeLiveness(program, ScheduleByRule(program, OrderRule::kLateBackward)).peak_bytes, 26);
  EXPECT_EQ(ComputeLiveness(program, ScheduleForMemory(program)).peak_bytes, 26);
}

TEST(KeepsReadersBeforeTheInPlaceWriter) {
  // The update of the donated weight would free 8 bytes at once, but a reader of the weight is left.
  ProgramBuilder builder;
  const ValueId weight = builder.Given(8);
  const ValueId gradient = builder.Op({.inputs = {weight}, .output_bytes = {8}});
  const ValueId late = builder.Op({.inputs = {weight}, .output_bytes = {9}});
  builder.Op({.inputs = {weight, gradient}, .output_bytes = {8}, .kind = ValueKind::kOutput, .in_place_of = weight});
  builder.Op({.inputs = {late}, .output_bytes = {1}});
  for (int rule = 0; rule < kNumOrderRules; ++rule) {
    EXPECT_EQ(CheckSchedule(builder.program(), ScheduleByRule(builder.program(), static_cast<OrderRule>(rule))), "");
  }
}

TEST(EveryRuleIsValidAndTheBestIsNoWorse) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    const StepProgram program = testing::RandomProgram(seed, 60);
    const int64_t best = ComputeLiveness(program, ScheduleForMemory(program)).peak_bytes;
    for (int rule = 0; rule < kNumOrderRules; ++rule) {
      const Schedule schedule = ScheduleByRule(program, static_cast<OrderRule>(rule));
      EXPECT_EQ(CheckSchedule(program, schedule), "");
      EXPECT_TRUE(best <= ComputeLiveness(program, schedule).peak_bytes);
    }
  }
}

}  // namespace
}  // namespace coopjax
