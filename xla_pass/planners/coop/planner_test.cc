#include "planners/coop/planner.h"

#include <algorithm>

#include "planners/orders/list_scheduler.h"
#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

using testing::ProgramBuilder;

// Byte by byte, from the low end, as the paper.
CoopOptions Bytewise() {
  CoopOptions options;
  options.alignment_bytes = 1;
  options.knows_future = false;
  options.num_groups = 1;
  return options;
}

TEST(KeepsEverythingThatFits) {
  const StepProgram program = testing::ForwardBackwardChain(4, 10);
  const int64_t peak = ComputeLiveness(program, program.schedule).peak_bytes;
  const CoopResult result = PlanCoop(program, program.schedule, peak, Bytewise());
  EXPECT_TRUE(result.is_feasible);
  EXPECT_TRUE(result.schedule == program.schedule);
  EXPECT_EQ(result.counters.evictions, 0);
}

TEST(EvictsAndMakesAgain) {
  // a(8) is read again at the end; c1(5) and c2(5) do not fit beside it in 17, so a goes and comes back.
  ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {8}});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {1}});
  const ValueId c1 = builder.Op({.inputs = {b}, .output_bytes = {5}});
  const ValueId c2 = builder.Op({.inputs = {c1}, .output_bytes = {5}});
  builder.Op({.inputs = {a, c2}, .output_bytes = {1}});
  const CoopResult result = PlanCoop(builder.program(), builder.program().schedule, 17, Bytewise());
  EXPECT_TRUE(result.is_feasible);
  EXPECT_TRUE((result.schedule == Schedule{0, 1, 2, 3, 0, 4}));
  EXPECT_EQ(result.counters.evictions, 1);
  const CoopResult tight = PlanCoop(builder.program(), builder.program().schedule, 13, Bytewise());
  EXPECT_TRUE(!tight.is_feasible);     // the last op needs 8 + 5 + 1
  EXPECT_EQ(tight.failed_step, 4);
}

TEST(CheapAndExpensiveGrowFromOppositeEnds) {
  ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  std::vector<ValueId> all;
  for (double cost_s : {100.0, 1.0, 100.0, 1.0}) {
    all.push_back(builder.Op({.inputs = {x}, .output_bytes = {10}, .cost_s = cost_s}));
  }
  builder.Op({.inputs = all, .output_bytes = {1}, .kind = ValueKind::kOutput});
  CoopOptions options = Bytewise();
  options.num_groups = 2;
  options.cheap_below_s_per_byte = 1;
  std::vector<int64_t> offsets;
  for (const Placement& placed : PlanCoop(builder.program(), builder.program().schedule, 100, options).placements) {
    offsets.push_back(placed.offset);
  }
  EXPECT_TRUE((offsets == std::vector<int64_t>{0, 90, 10, 80}));
}

TEST(InPlaceKeepsTheAddress) {
  ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId other = builder.Op({.inputs = {x}, .output_bytes = {3}});
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {8}});
  const ValueId w = builder.Op({.inputs = {a}, .output_bytes = {8}, .in_place_of = a});
  builder.Op({.inputs = {w, other}, .output_bytes = {1}, .kind = ValueKind::kOutput});
  const CoopResult result = PlanCoop(builder.program(), builder.program().schedule, 11, Bytewise());
  EXPECT_TRUE(result.is_feasible);
  EXPECT_EQ(result.placements[1].offset, result.placements[2].offset);
}

TEST(BringsBackInTimeWhatAnOverwriteWouldLose) {
  // a(8) comes from the donated x and is evicted for c1 + c2; x is overwritten before a is read again.
  ProgramBuilder builder;
  const ValueId x = builder.Given(4);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {8}});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {1}});
  const ValueId c1 = builder.Op({.inputs = {b}, .output_bytes = {5}});
  const ValueId c2 = builder.Op({.inputs = {c1}, .output_bytes = {5}});
  builder.Op({.inputs = {c2}, .output_bytes = {4}, .kind = ValueKind::kOutput, .in_place_of = x});
  builder.Op({.inputs = {a}, .output_bytes = {1}});
  const CoopResult result = PlanCoop(builder.program(), builder.program().schedule, 17, Bytewise());
  EXPECT_TRUE(result.is_feasible);
  EXPECT_TRUE((result.schedule == Schedule{0, 1, 2, 3, 0, 4, 5}));
}

TEST(SmallRequestsLieApart) {
  // 20 bytes, the last 2 x 2 for requests of up to 2: s (2) lies at 16 and a (8) at 0.
  ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId s = builder.Op({.inputs = {x}, .output_bytes = {2}});
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {8}});
  builder.Op({.inputs = {s, a}, .output_bytes = {1}, .kind = ValueKind::kOutput});
  CoopOptions options = Bytewise();
  options.small_piece_bytes = 2;
  options.num_small_pieces = 2;
  const CoopResult result = PlanCoop(builder.program(), builder.program().schedule, 20, options);
  EXPECT_EQ(result.placements[0].offset, 16);
  EXPECT_EQ(result.placements[1].offset, 0);
  EXPECT_EQ(result.counters.heap_bytes, 18);
}

TEST(ReusedCostsLookAtAsManyAndEvaluateFewer) {
  const StepProgram program = testing::ForwardBackwardChain(40, 10);
  CoopOptions options = Bytewise();
  const CoopResult reused = PlanCoop(program, program.schedule, 200, options);
  options.reuses_costs = false;
  const CoopResult anew = PlanCoop(program, program.schedule, 200, options);
  EXPECT_TRUE(reused.is_feasible && anew.is_feasible);
  EXPECT_EQ(anew.counters.candidates, anew.counters.scanned);
  EXPECT_TRUE(reused.counters.candidates < reused.counters.scanned);
}

TEST(EverySwitchIsValidOnRandomPrograms) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const StepProgram program = testing::RandomProgram(seed, 40);
    const Schedule order = seed % 2 ? program.schedule : ScheduleForMemory(program);
    const int64_t peak = ComputeLiveness(program, order).peak_bytes;
    for (int bits = 0; bits < 144; ++bits) {
      CoopOptions options = Bytewise();
      options.eviction = static_cast<EvictionRule>(bits % 3);
      options.cost = static_cast<CostRule>(bits / 3 % 3);
      const int numbers[] = {1, 2, 3, 4, 6};
      options.num_groups = numbers[(bits + seed) % 5];
      options.recomputes_in_place = bits / 9 % 2;
      options.knows_future = bits / 18 % 2;
      options.evicts_eagerly = bits / 36 % 2;
      options.reuses_costs = bits / 72 % 2;
      options.small_piece_bytes = 2;
      options.num_small_pieces = bits % 4;
      const int64_t budget = peak * (9 - seed % 6) / 10;
      const CoopResult result = PlanCoop(program, order, budget, options);
      EXPECT_EQ(CheckSchedule(program, result.schedule), "");
      if (result.is_feasible) EXPECT_TRUE(ComputeLiveness(program, result.schedule).peak_bytes <= budget);
    }
  }
}

}  // namespace
}  // namespace coopjax
