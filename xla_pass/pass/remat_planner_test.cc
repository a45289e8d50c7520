#include "pass/remat_planner.h"

#include <string>
#include <vector>

#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

// f1 .. f6 of 10 bytes forward, b6 .. b1 back, each of which reads f of its layer and of that before: at b6, which
// comes of f5 and f6, all six are live, and b6: 70 bytes. b5 needs f4, f5, b6 and itself: 40 at least.
HloProgram Chain() {
  HloProgram hlo;
  hlo.program = testing::ForwardBackwardChain(6, 10);
  return hlo;
}

int64_t PeakBytes(const HloProgram& hlo, const Schedule& schedule) {
  return ComputeLiveness(hlo.program, schedule).peak_bytes;
}

TEST(PlansAreValidMeasuredAndTheBestComesFirst) {
  const HloProgram hlo = Chain();
  EXPECT_EQ(PeakBytes(hlo, hlo.program.schedule), 70);
  std::string fault;
  const std::vector<ModulePlan> plans = RematPlanners().Plan({.hlo = hlo, .limit_bytes = 50}, &fault);
  EXPECT_EQ(fault, "");
  EXPECT_TRUE(plans.size() >= 2);
  for (size_t i = 0; i < plans.size(); ++i) {
    EXPECT_EQ(CheckSchedule(hlo.program, plans[i].schedule), "");
    EXPECT_EQ(plans[i].limit_bytes, 50);
    EXPECT_EQ(plans[i].peak_bytes, PeakBytes(hlo, plans[i].schedule));
    EXPECT_EQ(plans[i].cost_s, CountRecompute(hlo.program, plans[i].schedule).cost_s);
    if (i > 0) EXPECT_TRUE(plans[i - 1].Rank() <= plans[i].Rank());
  }
  EXPECT_TRUE(plans.front().fits() && plans.front().cost_s > 0);
}

TEST(WhatFitsIsNotRecomputed) {
  const HloProgram hlo = Chain();
  std::string fault;
  for (const ModulePlan& plan : RematPlanners().Plan({.hlo = hlo, .limit_bytes = 70}, &fault)) {
    EXPECT_EQ(plan.cost_s, 0.0);
    EXPECT_TRUE(plan.fits());
  }
}

TEST(LargeProgramsArePlannedInSegmentsAlone) {
  const HloProgram hlo = Chain();
  std::string fault;
  const auto plans = RematPlanners{.is_large = true}.Plan({.hlo = hlo, .limit_bytes = 50}, &fault);
  EXPECT_EQ(plans.size(), size_t{1});
  EXPECT_EQ(plans.front().planner, "segments");
}

TEST(PlansStartFromTheOrderThatIsGiven) {
  const HloProgram hlo = Chain();
  std::string fault;
  const RematTask task = {.hlo = hlo, .order = hlo.program.schedule, .limit_bytes = 50};
  for (const ModulePlan& plan : RematPlanners().Plan(task, &fault)) {
    EXPECT_TRUE(plan.order == hlo.program.schedule);
  }
}

TEST(AGivenPlannerIsMeasuredWhateverItSays) {
  const HloProgram hlo = Chain();
  const RematPlanner boasting = [](const RematTask& task) {
    return ModulePlan{.schedule = task.hlo.program.schedule, .planner = "boasting", .limit_bytes = 1, .peak_bytes = 2};
  };
  std::string fault;
  const auto plans = RematPlanners{boasting}.Plan({.hlo = hlo, .limit_bytes = 50}, &fault);
  EXPECT_EQ(plans.size(), size_t{1});
  EXPECT_EQ(plans.front().planner, "boasting");
  EXPECT_EQ(plans.front().peak_bytes, 70);
  EXPECT_EQ(plans.front().limit_bytes, 50);
  EXPECT_TRUE(!plans.front().fits());
}

TEST(APlanThatIsNotValidIsDroppedAndSaid) {
  const HloProgram hlo = Chain();
  const RematPlanner backwards = [](const RematTask& task) {
    const Schedule& came = task.hlo.program.schedule;
    return ModulePlan{.schedule = Schedule(came.rbegin(), came.rend())};
  };
  std::string fault;
  EXPECT_TRUE(RematPlanners{backwards}.Plan({.hlo = hlo, .limit_bytes = 50}, &fault).empty());
  EXPECT_TRUE(fault.starts_with("the planner gave no valid schedule: "));
  // So is one whose order has repeats or lacks an op.
  const RematPlanner orderless = [](const RematTask& task) {
    return ModulePlan{.schedule = task.hlo.program.schedule, .order = {0}};
  };
  EXPECT_TRUE(RematPlanners{orderless}.Plan({.hlo = hlo, .limit_bytes = 50}, &fault).empty());
}

TEST(AQuickPlanFitsWhereItCan) {
  const HloProgram hlo = Chain();
  const ModulePlan held = PlanQuickly({.hlo = hlo, .limit_bytes = 50});
  EXPECT_EQ(held.planner, "peak");
  EXPECT_EQ(CheckSchedule(hlo.program, held.schedule), "");
  EXPECT_TRUE(held.fits());
  EXPECT_EQ(held.limit_bytes, 50);
}

TEST(AQuickPlanOutOfReachIsNearTheSmallest) {
  const HloProgram hlo = Chain();
  const ModulePlan nearest = PlanQuickly({.hlo = hlo, .limit_bytes = 10});   // no op runs in less than 30
  EXPECT_EQ(CheckSchedule(hlo.program, nearest.schedule), "");
  EXPECT_TRUE(nearest.peak_bytes >= ComputeLowerBound(hlo.program).bytes);
  EXPECT_TRUE(nearest.peak_bytes < 70);
}

}  // namespace
}  // namespace coopjax
