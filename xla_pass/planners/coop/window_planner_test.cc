#include "planners/coop/window_planner.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

using testing::ProgramBuilder;

// a(8, 9 s) b(4, 1 s) c(4, 1 s) d(8, 9 s), each read at once by an op without cost, then e with 8 bytes of workspace,
// then what reads them all: ops 0, 2, 4, 6, 8 and 9. At e 24 + 1 + 8 bytes are live, at the last op 25. Since they were
// read 11, 10, 9 and 0 seconds have passed at e; the costs are 9/11, 1/10, 1/9 and, for d, very large.
StepProgram FourValues() {
  ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  std::vector<ValueId> all;
  for (auto [bytes, cost_s] : {std::pair{8, 9.0}, {4, 1.0}, {4, 1.0}, {8, 9.0}}) {
    all.push_back(builder.Op({.inputs = {x}, .output_bytes = {bytes}, .cost_s = cost_s}));
    builder.Op({.inputs = {all.back()}, .cost_s = 0});
  }
  all.push_back(builder.Op({.inputs = {x}, .output_bytes = {1}, .workspace_bytes = 8}));
  builder.Op({.inputs = all, .output_bytes = {1}, .kind = ValueKind::kOutput});
  return builder.program();
}

// The schedule of FourValues with these ops again before the last.
Schedule WithRepeats(std::vector<OpId> ops) {
  Schedule schedule = FourValues().schedule;
  schedule.insert(schedule.end() - 1, ops.begin(), ops.end());
  return schedule;
}

// By value id: x, a, b, c, d, e, the output.
WindowResult Plan(std::vector<int64_t> offsets, int64_t budget_bytes) {
  const StepProgram program = FourValues();
  return PlanWindows(program, program.schedule, offsets, budget_bytes);
}

TEST(WhatFitsStaysAsItIs) {
  const WindowResult result = Plan({-1, 0, 8, 12, 16, 24, -1}, 33);
  EXPECT_TRUE(result.is_feasible);
  EXPECT_TRUE(result.schedule == FourValues().schedule);
  EXPECT_EQ(result.num_windows, 0);
}

TEST(EvictsTheCheapestNeighboursTogether) {
  // Side by side b and c cost 1/10 + 1/9 and make the room of 8 that is missing.
  const WindowResult result = Plan({-1, 0, 8, 12, 16, 24, -1}, 25);
  EXPECT_TRUE(result.is_feasible);
  EXPECT_EQ(result.num_windows, 1);
  EXPECT_EQ(result.num_evicted, 2);
  EXPECT_TRUE(result.schedule == WithRepeats({2, 4}) || result.schedule == WithRepeats({4, 2}));
}

TEST(NeighbourhoodDecides) {
  // With a between them the window of b and c would take a along; a alone costs 9/11.
  const WindowResult result = Plan({-1, 4, 0, 12, 16, 24, -1}, 25);
  EXPECT_TRUE(result.schedule == WithRepeats({0}));
}

TEST(AHoleBetweenNeighboursPartsNobody) { EXPECT_EQ(Plan({-1, 40, 8, 32, 48, 64, -1}, 25).num_evicted, 2); }

TEST(ValuesWithoutAPlaceStay) {
  const WindowResult result = Plan({-1, -1, -1, -1, 16, 24, -1}, 25);
  EXPECT_TRUE(result.schedule == WithRepeats({6}));
  EXPECT_TRUE(!Plan({-1, -1, -1, -1, -1, -1, -1}, 25).is_feasible);
}

TEST(ABudgetBelowTheLargestOpIsOutOfReach) {
  // The last op reads 25 bytes.
  const WindowResult result = Plan({-1, 0, 8, 12, 16, 24, -1}, 24);
  EXPECT_TRUE(!result.is_feasible);
  EXPECT_EQ(ComputeLiveness(FourValues(), result.schedule).peak_bytes, 25);
}

TEST(AChainIsMadeAgainLayerByLayer) {
  // f1 .. f8 of 10 bytes are all there at the turn, with a cotangent; 60% of that takes repeats.
  const StepProgram program = testing::ForwardBackwardChain(8, 10);
  std::vector<int64_t> offsets(program.num_values());
  for (ValueId v = 0; v < program.num_values(); ++v) offsets[v] = 10 * v;
  const int64_t peak = ComputeLiveness(program, program.schedule).peak_bytes;
  const WindowResult result = PlanWindows(program, program.schedule, offsets, 6 * peak / 10);
  EXPECT_TRUE(result.is_feasible);
  EXPECT_EQ(CheckSchedule(program, result.schedule), "");
}

TEST(SchedulesOfRandomProgramsAreValid) {
  std::mt19937 random(1);
  for (uint32_t seed = 0; seed < 300; ++seed) {
    const StepProgram program = testing::RandomProgram(seed, 40);
    std::vector<int64_t> offsets(program.num_values());
    std::iota(offsets.begin(), offsets.end(), 0);
    std::shuffle(offsets.begin(), offsets.end(), random);
    if (seed % 3 == 0) offsets[seed % offsets.size()] = -1;
    const int64_t peak = ComputeLiveness(program, program.schedule).peak_bytes;
    for (int64_t percent : {90, 60, 30}) {
      const int64_t budget = peak * percent / 100;
      const WindowResult result = PlanWindows(program, program.schedule, offsets, budget);
      EXPECT_EQ(CheckSchedule(program, result.schedule), "");
      const int64_t reached = ComputeLiveness(program, result.schedule).peak_bytes;
      EXPECT_TRUE(reached <= peak);
      EXPECT_EQ(result.is_feasible, reached <= budget);
    }
  }
}

}  // namespace
}  // namespace coopjax
