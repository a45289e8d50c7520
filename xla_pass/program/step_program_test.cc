#include "program/step_program.h"

#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

using testing::ProgramBuilder;

StepProgram Pair() {
  ProgramBuilder builder;
  const ValueId x = builder.Given(4);
  const ValueId y = builder.Op({.inputs = {x}, .output_bytes = {8}});
  builder.Op({.inputs = {x, y}, .output_bytes = {8}});
  return builder.program();
}

TEST(AcceptsWellFormedPrograms) {
  EXPECT_EQ(CheckProgram(Pair()), "");
  EXPECT_EQ(CheckProgram(StepProgram{}), "");
  for (uint32_t seed = 0; seed < 100; ++seed) EXPECT_EQ(CheckProgram(testing::RandomProgram(seed, 40)), "");
}

TEST(NamesTheFault) {
  StepProgram program = Pair();
  program.value_bytes[1] = -1;
  EXPECT_EQ(CheckProgram(program), "value 1 has a negative size");
  program = Pair();
  program.op_inputs.items[1] = 7;
  EXPECT_EQ(CheckProgram(program), "op 1: op_inputs names the unknown value 7");
  program = Pair();
  program.op_cost_s[1] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(CheckProgram(program), "op 1 has a negative or non-finite cost");
  program = Pair();
  program.value_producer[1] = 1;
  EXPECT_EQ(CheckProgram(program), "value 1: value_producer disagrees with op_outputs");
  program = Pair();
  program.schedule = {1, 0};
  EXPECT_EQ(CheckProgram(program), "step 0 (op 1) reads or overwrites value 1 before it is made");
  program = Pair();
  program.schedule = {0};
  EXPECT_EQ(CheckProgram(program), "the given schedule has 1 steps for 2 ops");
  program = Pair();
  program.op_inputs.items = {2, 0, 1};   // op 0 reads what op 1 makes
  EXPECT_EQ(CheckProgram(program), "the program has a cycle: op 0 waits for itself");
  program = Pair();
  program.value_in_place_of[2] = 2;
  EXPECT_EQ(CheckProgram(program), "value 2 is in place of value 2, which its producer does not read");
}

TEST(RefusesReadsOfOverwrittenStorage) {
  ProgramBuilder builder;
  const ValueId x = builder.Given(4);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {8}});
  builder.Op({.inputs = {a}, .output_bytes = {8}, .in_place_of = a});
  EXPECT_EQ(CheckProgram(builder.program()), "");
  builder.Op({.inputs = {a}, .output_bytes = {8}});
  EXPECT_EQ(CheckProgram(builder.program()),
            "step 2 (op 2) reads or overwrites value 1 after its storage was overwritten");
}

}  // namespace
}  // namespace coopjax
