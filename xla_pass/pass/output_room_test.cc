#include "pass/output_room.h"

#include <string>
#include <vector>

#include "pass/remat_planner.h"
#include "program/dependences.h"
#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

using testing::ProgramBuilder;

HloProgram Of(const StepProgram& program) {
  HloProgram hlo;
  hlo.program = program;
  hlo.op_instruction_ids.assign(program.num_ops(), 0);
  for (auto* names : {&hlo.op_names, &hlo.op_kinds, &hlo.op_scopes, &hlo.op_sources}) names->resize(program.num_ops());
  return hlo;
}

// f1, f2, f3 of 10 bytes forward; at each layer back a gradient, 10 bytes of output, and what the one before needs.
StepProgram Layers() {
  ProgramBuilder builder;
  const ValueId x = builder.Given(10);
  std::vector<ValueId> kept = {x};
  for (int layer = 0; layer < 3; ++layer) kept.push_back(builder.Op({.inputs = {kept.back()}, .output_bytes = {10}}));
  ValueId cotangent = kept.back();
  for (int layer = 2; layer >= 0; --layer) {
    builder.Op({.inputs = {cotangent, kept[layer]}, .output_bytes = {10}, .kind = ValueKind::kOutput});
    if (layer > 0) cotangent = builder.Op({.inputs = {cotangent, kept[layer]}, .output_bytes = {10}});
  }
  return builder.program();
}

int64_t Peak(const StepProgram& program, const Schedule& schedule) {
  return ComputeLiveness(program, schedule).peak_bytes;
}

TEST(OutputsCountFromWhenTheyAreMadeToTheEnd) {
  const HloProgram hlo = Of(Layers());
  const CountedOutputs counted = CountOutputs(hlo);
  const StepProgram& program = counted.hlo.program;
  EXPECT_EQ(CheckProgram(program), "");
  EXPECT_EQ(counted.bytes, 30);
  EXPECT_EQ(program.num_ops(), hlo.program.num_ops() + 1);
  EXPECT_EQ(Peak(hlo.program, hlo.program.schedule), 40);   // f1, f2, f3 and the first cotangent
  EXPECT_EQ(Peak(program, program.schedule), 50);           // and the gradient before it
  EXPECT_EQ(ComputeLiveness(program, program.schedule).live_bytes.back(), 30);
}

TEST(WhatMakesAnOutputRunsOnce) {
  const HloProgram hlo = Of(Layers());
  const CountedOutputs counted = CountOutputs(hlo);
  for (OpId op = 0; op < hlo.program.num_ops(); ++op) {
    EXPECT_EQ(MayRunTwice(counted.hlo.program, op), MayRunTwice(hlo.program, op));
  }
  EXPECT_TRUE(!MayRunTwice(counted.hlo.program, hlo.program.num_ops()));
}

TEST(AnOutputCountsAsFarAsATemporaryFitsIntoIt) {
  ProgramBuilder builder;
  const ValueId x = builder.Given(10);
  const ValueId small = builder.Op({.inputs = {x}, .output_bytes = {4}});
  const ValueId large = builder.Op({.inputs = {small}, .output_bytes = {64}});
  builder.Op({.inputs = {large}, .output_bytes = {16}, .kind = ValueKind::kOutput});
  builder.Op({.inputs = {large}, .output_bytes = {3}, .kind = ValueKind::kOutput});
  EXPECT_EQ(CountOutputs(Of(builder.program())).bytes, 4);
}

TEST(OutputsInTheBuffersOfParametersDoNotCount) {
  ProgramBuilder builder;
  const ValueId donated = builder.Given(10), x = builder.Given(10);
  const ValueId made = builder.Op({.inputs = {x}, .output_bytes = {10}});
  const ValueId first =
      builder.Op({.inputs = {made, donated}, .output_bytes = {10}, .kind = ValueKind::kOutput, .in_place_of = donated});
  builder.Op({.inputs = {first}, .output_bytes = {10}, .kind = ValueKind::kOutput, .in_place_of = first});
  const ValueId own = builder.Op({.inputs = {made}, .output_bytes = {10}, .kind = ValueKind::kOutput});
  builder.Op({.inputs = {own}, .output_bytes = {10}, .kind = ValueKind::kOutput, .in_place_of = own});
  const CountedOutputs counted = CountOutputs(Of(builder.program()));
  EXPECT_EQ(CheckProgram(counted.hlo.program), "");
  EXPECT_EQ(counted.bytes, 10);   // of the one buffer that is the outputs' own, once
  EXPECT_TRUE(!counted.hlo.program.takes_budget(first));
  EXPECT_TRUE(counted.hlo.program.takes_budget(own));
}

TEST(SchedulesGoThereAndBack) {
  const HloProgram hlo = Of(Layers());
  const CountedOutputs counted = CountOutputs(hlo);
  const Schedule longer = WithLastOp(counted, hlo.program.schedule);
  EXPECT_TRUE(longer == counted.hlo.program.schedule);
  EXPECT_TRUE(WithoutLastOp(counted, longer) == hlo.program.schedule);
  EXPECT_TRUE(WithLastOp(counted, {}).empty());
  // The last op comes last in every order.
  Schedule wrong = longer;
  std::swap(wrong[wrong.size() - 1], wrong[wrong.size() - 2]);
  EXPECT_TRUE(!CheckSchedule(counted.hlo.program, wrong).empty());
}

TEST(PlansForCountedOutputsKeepWhatTheyHaveRoomFor) {
  const HloProgram hlo = Of(testing::ForwardBackwardChain(6, 10));
  const CountedOutputs counted = CountOutputs(hlo);
  std::string fault;
  const int64_t limit_bytes = 40 + counted.bytes;
  const std::vector<ModulePlan> plans = RematPlanners().Plan({.hlo = counted.hlo, .limit_bytes = limit_bytes}, &fault);
  EXPECT_EQ(fault, "");
  for (const ModulePlan& plan : plans) {
    const Schedule schedule = WithoutLastOp(counted, plan.schedule);
    EXPECT_EQ(CheckSchedule(hlo.program, schedule), "");
    EXPECT_EQ(CountRecompute(hlo.program, schedule).cost_s, plan.cost_s);
  }
}

TEST(RoomIsUsedWhereMoreIsLiveThanTemporariesTake) {
  const HloProgram hlo = Of(Layers());
  EXPECT_TRUE(UsesOutputRoom(hlo, 30));
  EXPECT_TRUE(!UsesOutputRoom(hlo, 40));
  EXPECT_TRUE(!UsesOutputRoom(hlo, 38));   // hardly any of it
  EXPECT_TRUE(!UsesOutputRoom(Of(testing::ProgramBuilder().program()), 0));
}

}  // namespace
}  // namespace coopjax
