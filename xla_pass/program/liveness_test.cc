#include "program/liveness.h"

#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

using testing::ProgramBuilder;

int64_t Peak(const StepProgram& program, const Schedule& schedule) {
  EXPECT_EQ(CheckSchedule(program, schedule), "");
  return ComputeLiveness(program, schedule).peak_bytes;
}

TEST(Chain) {
  // x -> a(2) -> b(3) -> c(4): live 2, 2+3, 3+4.
  ProgramBuilder builder;
  const ValueId x = builder.Given(100);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {2}});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {3}});
  builder.Op({.inputs = {b}, .output_bytes = {4}});
  EXPECT_TRUE(
      (ComputeLiveness(builder.program(), builder.program().schedule).live_bytes == std::vector<int64_t>{2, 5, 7}));
  EXPECT_EQ(ComputeLiveness(builder.program(), builder.program().schedule).peak_step, 2);
}

TEST(RecomputeSplitsTheLiveRange) {
  // a(8) is read by b and by d; between them c1(5) -> c2(5). Kept: a+c1+c2 = 18. Made again: c1+c2 = 10, then 8+5+1.
  ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {8}, .cost_s = 3});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {1}});
  const ValueId c1 = builder.Op({.inputs = {b}, .output_bytes = {5}});
  const ValueId c2 = builder.Op({.inputs = {c1}, .output_bytes = {5}});
  builder.Op({.inputs = {a, c2}, .output_bytes = {1}});
  const StepProgram& program = builder.program();
  EXPECT_EQ(Peak(program, {0, 1, 2, 3, 4}), 18);
  EXPECT_EQ(Peak(program, {0, 1, 2, 3, 0, 4}), 14);
  EXPECT_EQ(CountRecompute(program, Schedule{0, 1, 2, 3, 0, 4}).cost_s, 3.0);
}

TEST(InPlaceCountsTheBytesOnce) {
  // a(8) overwritten by w(8): 8, 8, then w+1 = 9.
  ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {8}});
  const ValueId w = builder.Op({.inputs = {a}, .output_bytes = {8}, .in_place_of = a});
  builder.Op({.inputs = {w}, .output_bytes = {1}});
  EXPECT_TRUE(
      (ComputeLiveness(builder.program(), builder.program().schedule).live_bytes == std::vector<int64_t>{8, 8, 9}));
}

TEST(SharesADyingInputOnce) {
  // c may take over a's buffer or b's, not both: a(4), a+b = 8, then only one of them beside c(4).
  ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {4}});
  const ValueId b = builder.Op({.inputs = {x}, .output_bytes = {4}});
  builder.Op({.inputs = {a, b}, .output_bytes = {4}, .share = {a, b}});
  EXPECT_TRUE(
      (ComputeLiveness(builder.program(), builder.program().schedule).live_bytes == std::vector<int64_t>{4, 8, 8}));
}

TEST(OutputsAndParametersTakeNothing) {
  ProgramBuilder builder;
  const ValueId x = builder.Given(100);
  builder.Op({.inputs = {x}, .output_bytes = {50}, .kind = ValueKind::kOutput, .workspace_bytes = 7});
  EXPECT_EQ(Peak(builder.program(), {0}), 7);
}

TEST(NobodyReadsAnOverwrittenParameter) {
  // b is in place of the donated x without reading it; a reads x, so b comes after every run of a.
  ProgramBuilder builder;
  const ValueId x = builder.Given(4), y = builder.Given(4);
  builder.Op({.inputs = {x}, .output_bytes = {4}});
  builder.Op({.inputs = {y}, .output_bytes = {4}, .kind = ValueKind::kOutput, .in_place_of = x});
  EXPECT_EQ(CheckSchedule(builder.program(), Schedule{0, 0, 1}), "");
  EXPECT_EQ(CheckSchedule(builder.program(), Schedule{1, 0}),
            "step 1 (op 0) reads or overwrites value 0 after its storage was overwritten");
}

TEST(NamesABrokenSchedule) {
  ProgramBuilder builder;
  const ValueId x = builder.Given(4);
  builder.Op({.inputs = {x}, .output_bytes = {4}, .can_recompute = false});
  builder.Op({.inputs = {x}, .output_bytes = {4}, .control = {0}});
  const StepProgram& program = builder.program();
  EXPECT_EQ(CheckSchedule(program, Schedule{0}), "op 1 is missing");
  EXPECT_EQ(CheckSchedule(program, Schedule{0, 0, 1}), "step 1 (op 0) repeats an op that may run only once");
  EXPECT_EQ(CheckSchedule(program, Schedule{1, 0}), "step 0 (op 1) runs before its control predecessor op 0");
  EXPECT_EQ(CheckSchedule(program, Schedule{0, 9, 1}), "step 1 (op 9) is not an op of the program");
}

TEST(LowerBoundIsTheLargestWorkingSet) {
  // b needs a(4) + c(5) + b(3) + workspace 2 = 14; in place or shared, one of them goes.
  ProgramBuilder builder;
  const ValueId x = builder.Given(100);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {4}});
  const ValueId c = builder.Op({.inputs = {x}, .output_bytes = {5}});
  builder.Op({.inputs = {a, c}, .output_bytes = {3}, .workspace_bytes = 2});
  EXPECT_EQ(ComputeLowerBound(builder.program()).bytes, 14);
  EXPECT_EQ(ComputeLowerBound(builder.program()).op, 2);
  builder.program().may_share.push_back({2, c, 3});
  EXPECT_EQ(ComputeLowerBound(builder.program()).bytes, 9);
  builder.program().may_share.push_back({2, a, 3});   // one output takes over one buffer
  EXPECT_EQ(ComputeLowerBound(builder.program()).bytes, 9);
}

TEST(LowerBoundCountsWhatCantBeRemade) {
  // p(9) can't be made again and is read at the end, after m(6) -> n(6): 9 + 12, though m and n do not read it.
  ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId p = builder.Op({.inputs = {x}, .output_bytes = {9}, .can_recompute = false});
  const ValueId m = builder.Op({.inputs = {p}, .output_bytes = {6}});
  const ValueId n = builder.Op({.inputs = {m}, .output_bytes = {6}});
  builder.Op({.inputs = {n, p}, .output_bytes = {1}});
  EXPECT_EQ(ComputeLowerBound(builder.program()).bytes, 21);
}

TEST(LowerBoundHoldsForEverySchedule) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const StepProgram program = testing::RandomProgram(seed, 30);
    EXPECT_TRUE(ComputeLowerBound(program).bytes <= ComputeLiveness(program, program.schedule).peak_bytes);
  }
}

}  // namespace
}  // namespace coopjax
