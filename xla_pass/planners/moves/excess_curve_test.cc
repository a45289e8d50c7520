#include "planners/moves/excess_curve.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

TEST(CountsSquaredExcess) {
  // Live bytes 8, 9, 14, 18, 14 against 12: (2^2 + 6^2 + 2^2) / 2^2 = 11. Made again, a leaves 6 and 10 at steps 2
  // and 3; its own new step has 5 + 8 = 13, the last one 14: (1 + 4) / 4.
  testing::ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {8}});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {1}});
  const ValueId c1 = builder.Op({.inputs = {b}, .output_bytes = {5}});
  const ValueId c2 = builder.Op({.inputs = {c1}, .output_bytes = {5}});
  builder.Op({.inputs = {a, c2}, .output_bytes = {1}});
  EditableSchedule schedule(builder.program(), builder.program().schedule);
  ExcessCurve curve(12, 2, /*is_squared=*/true);
  curve.Reset(schedule);
  EXPECT_EQ(curve.total(), 11.0);
  EXPECT_EQ(curve.PricePerByte(StepKey(2), StepKey(4)), (2 * 2 + 2 * 6) / 4.0);
  schedule.Insert(0, StepKey(4) - 1);
  EXPECT_EQ(curve.Delta(schedule), 1.25 - 11.0);
}

TEST(DeltaIsWhatACommitShows) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const StepProgram program = testing::RandomProgram(seed, 120);
    EditableSchedule schedule(program, program.schedule);
    const int64_t peak = *std::max_element(schedule.live_bytes().begin(), schedule.live_bytes().end());
    ExcessCurve curve(peak * (random() % 10) / 10, 1 + peak / 7, seed % 2);
    for (int round = 0; round < 10; ++round) {
      curve.Reset(schedule);
      const auto& steps = schedule.schedule();
      for (int n = 0; n < 5; ++n) {
        const Step step = static_cast<Step>(random() % steps.size());
        const OpId op = steps[random() % (step + 1)];
        const Key key = schedule.KeysBefore(schedule.key(step), 5)[4 - n];
        if (step > 0 && op != steps[step] && schedule.may_run_twice(op) && schedule.CanInsert(op, key)) {
          schedule.Insert(op, key);
        } else if (schedule.edits().empty() && schedule.is_repeat(step) &&
                   schedule.CanRemove(steps[step], schedule.key(step))) {
          schedule.Remove(steps[step], schedule.key(step));
        }
      }
      const double before = curve.total(), delta = curve.Delta(schedule);
      schedule.Commit();
      curve.Reset(schedule);
      EXPECT_TRUE(std::abs(curve.total() - before - delta) <= 1e-9 * (1 + before));
    }
  }
}

// Whole blocks above the budget or below it, long ones among them, are not looked at step by step. 9,000 layers, of
// which a few are made again on the way back.
TEST(BlocksAreSummedRight) {
  const StepProgram program = testing::ForwardBackwardChain(9000, 10);
  for (bool is_squared : {false, true}) {
    EditableSchedule schedule(program, program.schedule);
    ExcessCurve curve(60'000, 1000, is_squared);
    curve.Reset(schedule);
    for (OpId op : {8000, 3000, 7, 5000}) {
      const Key first_read_back = schedule.reads(program.op_outputs[op][0])[1].key;
      schedule.Insert(op, schedule.KeysBefore(first_read_back, 1)[0]);
      const double before = curve.total(), delta = curve.Delta(schedule);
      schedule.Commit();
      curve.Reset(schedule);
      EXPECT_TRUE(std::abs(curve.total() - before - delta) <= 1e-9 * before);
    }
  }
}

}  // namespace
}  // namespace coopjax
