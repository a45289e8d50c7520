#include "planners/coop/next_need.h"

#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

TEST(CountsSecondsToTheNextRead) {
  // a (8 bytes, 1 s) is read by b (2 s, 8 bytes) and c (4 s); b is read at the end.
  testing::ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {8}, .cost_s = 1});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {8}, .cost_s = 2});
  const ValueId c = builder.Op({.inputs = {a}, .output_bytes = {1}, .cost_s = 4});
  builder.Op({.inputs = {b, c}, .output_bytes = {1}});
  const StepProgram& program = builder.program();
  const NextNeed reads(program, program.schedule, /*counts_recompute=*/false);
  EXPECT_EQ(reads.SecondsFrom(0, a), 1.0);
  EXPECT_EQ(reads.SecondsFrom(1, a), 2.0);
  EXPECT_EQ(reads.SecondsFrom(2, a), NextNeed::kNever);
  EXPECT_EQ(reads.SecondsFrom(1, b), 6.0);
  EXPECT_EQ(reads.total_s(), 8.0);
  const NextNeed needs(program, program.schedule, /*counts_recompute=*/true);
  EXPECT_EQ(needs.SecondsFrom(2, a), 4.0);   // to make b again, but not for c, which is smaller than a
}

}  // namespace
}  // namespace coopjax
