#include "pass/inner_planner.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "program/liveness.h"
#include "testing/loop_module.h"
#include "verify/verify.h"

namespace coopjax {
namespace {

using testing::Analyzed;
using testing::AnalyzedModule;
using testing::LoopModule;

constexpr int64_t kKib = 1024;

int64_t Most(const std::vector<int64_t>& bytes) { return *std::ranges::max_element(bytes); }

// A module, and what plans its insides.
struct Inside {
  explicit Inside(const std::string& bytes, RematPlanner given = nullptr) : came(Analyzed(bytes)), planners{given} {}
  AnalyzedModule came;
  ProgramReader reader = {.roofline = {1e9, 1e9, 1e9, 1e-6}};
  RematPlanners planners;
  InnerPlanner planner{*came.analysis, reader, planners, Allowance(kUnlimitedSteps)};

  // Most bytes of a workspace in the entry.
  int64_t Workspace(const PlannedInside& planned) const {
    HloProgram entry;
    EXPECT_EQ(reader.Read(planned.module ? *planned.module->analysis : *came.analysis, &entry), "");
    return Most(entry.program.op_workspace_bytes);
  }
};

bool Recomputes(const InnerPlan& inner) { return std::ssize(inner.plan.schedule) > inner.hlo.program.num_ops(); }

TEST(WhoGivesWayIsAChoice) {
  Inside inside(LoopModule(3, /*has_around=*/true));
  // The body's 6 values and what is made of them; with 12 KiB around the loop's state a limit of 32 KiB leaves less.
  std::vector<int64_t> workspaces = {inside.Workspace({})};
  for (const double share : {1.0, 0.5, 0.0}) {
    const PlannedInside planned = inside.planner.Plan(32 * kKib, share);
    EXPECT_TRUE(planned.depends_on_share);
    EXPECT_EQ(planned.module != nullptr, share < 1);
    workspaces.push_back(inside.Workspace(planned));
    for (const InnerPlan& inner : planned.plans) {
      EXPECT_TRUE(Recomputes(inner));
      EXPECT_EQ(inner.name.substr(0, 5), "while");
      EXPECT_EQ(inner.plan.peak_bytes, workspaces.back());
      EXPECT_EQ(CountRecompute(inner.hlo.program, inner.plan.schedule).cost_s, inner.plan.cost_s);
    }
    if (planned.module) EXPECT_EQ(verify::VerifyTransform(*inside.came.module, *planned.module->module), "");
  }
  EXPECT_TRUE(workspaces[0] == workspaces[1] && workspaces[1] > workspaces[2] && workspaces[2] > workspaces[3]);
}

TEST(NothingIsTouchedThatIsNotInTheWay) {
  Inside inside(LoopModule(3));
  const PlannedInside planned = inside.planner.Plan(1 << 30, 0);
  EXPECT_TRUE(planned.module == nullptr && planned.plans.empty() && !planned.depends_on_share);
}

TEST(CostsAreThoseOfAllRuns) {
  std::vector<double> costs;
  for (const int num_trips : {2, 6}) {
    Inside inside(LoopModule(num_trips));
    costs.push_back(inside.planner.Plan(24 * kKib, 0).plans.at(0).plan.cost_s);
  }
  EXPECT_TRUE(costs[0] > 0);
  EXPECT_TRUE(std::abs(costs[1] - 3 * costs[0]) < 1e-12);
}

TEST(TheInnermostLoopIsPlannedFirst) {
  Inside inside(LoopModule(2, /*has_around=*/false, /*depth=*/2));
  const PlannedInside planned = inside.planner.Plan(24 * kKib, 0);
  EXPECT_TRUE(!planned.plans.empty() && Recomputes(planned.plans.front()));
  EXPECT_EQ(planned.plans.front().hlo.program.num_ops(), 12);
  EXPECT_TRUE(inside.Workspace(planned) < inside.Workspace({}));
}

TEST(ManyLoopsArePlannedLikeEachAlone) {
  for (const int depth : {1, 2}) {
    Inside one(LoopModule(3, /*has_around=*/false, depth)),
        many(LoopModule(3, /*has_around=*/false, depth, /*num_loops=*/9));
    const PlannedInside alone = one.planner.Plan(24 * kKib, 0), planned = many.planner.Plan(24 * kKib, 0);
    EXPECT_EQ(planned.plans.size(), 9 * alone.plans.size());
    for (size_t i = 0; i < planned.plans.size(); ++i) {
      EXPECT_TRUE(planned.plans[i].plan.schedule == alone.plans.at(i / 9).plan.schedule);
    }
    EXPECT_EQ(many.Workspace(planned), one.Workspace(alone));
    EXPECT_EQ(verify::VerifyTransform(*many.came.module, *planned.module->module), "");
  }
}

TEST(BoundsHoldWhateverIsPlanned) {
  Inside inside(LoopModule(3));
  EXPECT_EQ(Most(inside.planner.LeastWorkspaces(false)), 0);
  const int64_t planned_bytes = inside.Workspace(inside.planner.Plan(0, 0));
  const int64_t least_bytes = Most(inside.planner.LeastWorkspaces(false));
  EXPECT_TRUE(0 < least_bytes && least_bytes <= planned_bytes && planned_bytes < inside.Workspace({}));
  Inside unplanned(LoopModule(3));
  EXPECT_EQ(Most(unplanned.planner.LeastWorkspaces(true)), least_bytes);
}

TEST(TheFirstPlannerPlansForNearbyLimitsAndAQuickOneInAHurry) {
  std::vector<std::string> asked;
  const RematPlanner given = [&](const RematTask& task) {
    asked.push_back(task.planner + (task.order.empty() ? "" : " ordered"));
    ModulePlan plan = PlanQuickly(task);
    plan.planner = "mine";
    return plan;
  };
  Inside inside(LoopModule(3), given);
  for (const int64_t limit_bytes : {24 * kKib, 20 * kKib}) inside.planner.Plan(limit_bytes, 0);
  EXPECT_TRUE(asked == (std::vector<std::string>{"", "mine ordered"}));
  inside.planner.Hurry();
  EXPECT_EQ(inside.planner.Plan(20 * kKib, 0.5).plans.at(0).plan.planner, "peak");
  EXPECT_EQ(asked.size(), size_t{2});
}

}  // namespace
}  // namespace coopjax
