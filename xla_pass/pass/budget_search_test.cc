#include "pass/budget_search.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "testing/loop_module.h"
#include "verify/verify.h"

namespace coopjax {
namespace {

using testing::AddForwardBackward;
using testing::Analyzed;
using testing::AnalyzedModule;
using testing::F32;
using testing::HloProtoBuilder;
using testing::LoopModule;

constexpr int64_t kKib = 1024;

// Forward and backward in the entry: w1 .. w6 of 4 KiB and one made of them.
std::string ForwardBackward() {
  HloProtoBuilder builder;
  builder.Begin("main");
  const int64_t last = AddForwardBackward(builder, builder.Parameter(0, F32({64, 16})));
  builder.Add("slice", F32({16}), {last});
  return builder.Build();
}

// A module, and what a search in it needs.
struct Searched {
  explicit Searched(const std::string& bytes, RematPlanner given = nullptr)
      : came(Analyzed(bytes)), planners{std::move(given)} {
    EXPECT_EQ(reader.Read(*came.analysis, &hlo), "");
    came_bytes = AssignBuffers(*came.analysis->alias, came.analysis->ranges).temp_bytes;
  }
  BudgetSearch Search(BudgetSearchOptions options) const {
    options.came_bytes = came_bytes;
    return BudgetSearch(*came.analysis, reader, planners, options, Allowance(kUnlimitedSteps));
  }
  bool Run(BudgetSearch& search) const { return search.Run(*came.analysis, hlo, {hlo.program.schedule}); }

  AnalyzedModule came;
  ProgramReader reader = {.roofline = {1e9, 1e9, 1e9, 1e-6}};
  RematPlanners planners;
  HloProgram hlo;
  int64_t came_bytes = 0;
};

std::vector<int64_t> Limits(const BudgetSearch& search) {
  std::vector<int64_t> limits;
  for (const PlanRound& round : search.report().rounds) limits.push_back(round.limit_bytes);
  return limits;
}

bool Tried(const BudgetSearch& search, double share) {
  return std::ranges::any_of(search.report().rounds, [&](const PlanRound& round) { return round.share == share; });
}

// The order that came, as if it were within any limit.
ModulePlan AsItCame(const RematTask& task) {
  return {.schedule = task.hlo.program.schedule, .order = task.hlo.program.schedule, .planner = "as it came"};
}

TEST(WhatHoldsTheBudgetIsFound) {
  const Searched searched(ForwardBackward());
  EXPECT_TRUE(searched.came_bytes >= 7 * 4 * kKib);
  const int64_t budget_bytes = searched.came_bytes - 8 * kKib;   // two of the six may not be kept
  BudgetSearch search = searched.Search({.budget_bytes = budget_bytes});
  EXPECT_TRUE(!searched.Run(search));   // there is nothing inside
  const std::optional<CarriedOut> best = search.TakeBest();
  EXPECT_TRUE(best.has_value());
  EXPECT_TRUE(best->heap.temp_bytes <= budget_bytes && best->cost_s > 0);
  EXPECT_EQ(verify::VerifyTransform(*searched.came.module, *best->module), "");
  EXPECT_EQ(search.report().fault, "");
  EXPECT_EQ(search.report().rounds.front().limit_bytes, budget_bytes);
  for (const PlanRound& round : search.report().rounds) EXPECT_TRUE(round.share == 1 && round.inside.empty());
}

TEST(NothingIsTakenThatTakesNoLess) {
  const Searched searched(ForwardBackward(), AsItCame);
  BudgetSearch search = searched.Search({.budget_bytes = searched.came_bytes - 4 * kKib});
  searched.Run(search);
  EXPECT_TRUE(!search.TakeBest().has_value());
  EXPECT_EQ(search.report().rounds.front().temp_bytes, searched.came_bytes);
}

// A planner that holds half the limit that it is given, where it can.
TEST(TheLimitMovesByWhatTheHeapIsOffTheBudget) {
  const RematPlanner halving = [](const RematTask& task) {
    RematTask half = task;
    half.limit_bytes = task.limit_bytes / 2;
    ModulePlan plan = PlanQuickly(half);
    plan.planner = "halving";
    return plan;
  };
  const Searched searched(ForwardBackward(), halving);
  const int64_t budget_bytes = searched.came_bytes - 4 * kKib;
  BudgetSearch search = searched.Search({.budget_bytes = budget_bytes});
  searched.Run(search);
  // Far below the budget after the first round: the second has that much more.
  const std::vector<PlanRound>& rounds = search.report().rounds;
  EXPECT_TRUE(rounds.size() >= 2);
  EXPECT_EQ(rounds[0].limit_bytes, budget_bytes);
  EXPECT_EQ(rounds[1].limit_bytes, budget_bytes + (budget_bytes - rounds[0].temp_bytes));
  EXPECT_TRUE(rounds[1].recompute_cost_s < rounds[0].recompute_cost_s);
}

TEST(RoundsAreAsManyAsAreAllowed) {
  const RematPlanner least = [](const RematTask& task) {   // loosening never ends: there is always room
    RematTask tight = task;
    tight.limit_bytes = 0;
    return PlanQuickly(tight);
  };
  const Searched searched(ForwardBackward(), least);
  for (const int32_t max_rounds : {1, 3}) {
    BudgetSearch search = searched.Search({.budget_bytes = searched.came_bytes - 4 * kKib, .max_rounds = max_rounds});
    searched.Run(search);
    EXPECT_EQ(std::ssize(search.report().rounds), max_rounds);
  }
}

TEST(OutOfReachPlansNearTheSmallestAreTried) {
  const Searched searched(ForwardBackward());
  BudgetSearch search = searched.Search({.budget_bytes = 1});
  searched.Run(search);
  const std::vector<int64_t> limits = Limits(search);
  EXPECT_EQ(limits.front(), 1);
  // The smallest peak that was found, and 1, 2 and 4 percent more.
  const int64_t peak_bytes = search.report().rounds.front().peak_live_bytes;
  for (const int64_t limit_bytes :
       {peak_bytes, peak_bytes * 101 / 100, peak_bytes * 102 / 100, peak_bytes * 104 / 100}) {
    EXPECT_TRUE(std::ranges::find(limits, limit_bytes) != limits.end());
  }
  const std::optional<CarriedOut> best = search.TakeBest();
  for (const PlanRound& round : search.report().rounds) EXPECT_TRUE(best->heap.temp_bytes <= round.temp_bytes);
}

TEST(TheBudgetIsSplitWithWhatStandsInTheWay) {
  // Entry and body can both give way; the entry alone leaves the body's 28 KiB.
  const Searched searched(LoopModule(/*num_trips=*/100, /*has_around=*/true));
  const int64_t budget_bytes = searched.came_bytes - 20 * kKib;
  BudgetSearch search = searched.Search({.budget_bytes = budget_bytes});
  EXPECT_TRUE(searched.Run(search));
  EXPECT_TRUE(Tried(search, 1) && Tried(search, 0) && Tried(search, 0.5));
  const std::optional<CarriedOut> best = search.TakeBest();
  EXPECT_TRUE(best->heap.temp_bytes <= budget_bytes);
  EXPECT_TRUE(best->inner != nullptr && best->share < 1);
  EXPECT_EQ(verify::VerifyTransform(*searched.came.module, *best->module), "");
  // Costs are those of the entry and of all that was planned inside.
  double cost_s = best->plan.cost_s;
  for (const InnerPlan& inner : *best->inner) cost_s += inner.plan.cost_s;
  EXPECT_EQ(best->cost_s, cost_s);
}

// The order that came holds it: no split can do better.
TEST(ABudgetThatIsHeldForNothingIsNotSplit) {
  const Searched searched(LoopModule(/*num_trips=*/100, /*has_around=*/true));
  BudgetSearch search = searched.Search({.budget_bytes = searched.came_bytes});
  EXPECT_TRUE(!searched.Run(search));
  EXPECT_TRUE(Tried(search, 1) && !Tried(search, 0));
}

TEST(FaultsOfPlannersAreReported) {
  const RematPlanner backwards = [](const RematTask& task) {
    return ModulePlan{.schedule = Schedule(task.order.rbegin(), task.order.rend())};
  };
  const Searched searched(ForwardBackward(), backwards);
  BudgetSearch search = searched.Search({.budget_bytes = searched.came_bytes - 4 * kKib});
  EXPECT_TRUE(!searched.Run(search));
  EXPECT_TRUE(search.report().fault.starts_with("the planner gave no valid schedule: "));
  EXPECT_TRUE(search.report().rounds.empty());
  EXPECT_TRUE(!search.TakeBest().has_value());
}

}  // namespace
}  // namespace coopjax
