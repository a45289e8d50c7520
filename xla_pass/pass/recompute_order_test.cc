#include "pass/recompute_order.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "program/liveness.h"
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
constexpr Roofline kRoofline = {
    .flops_per_s = 1e9, .transcendentals_per_s = 1e9, .bytes_per_s = 1e9, .op_overhead_s = 1e-6};

// Four branches p -> broadcast (4 KiB) -> reduce-like slice (64 bytes), all broadcasts first; the sum of the slices is
// the output. As it came: 4 x 4 KiB; branch by branch one broadcast and slices of 64 bytes.
int64_t AddBranches(HloProtoBuilder& builder) {
  const int64_t p = builder.Parameter(0, F32({16}));
  std::vector<int64_t> wide, narrow;
  for (int i = 0; i < 4; ++i) wide.push_back(builder.Add("broadcast", F32({64, 16}), {p}));
  for (int i = 0; i < 4; ++i) narrow.push_back(builder.Add("slice", F32({16}), {wide[i]}));
  int64_t sum = narrow[0];
  for (int i = 1; i < 4; ++i) sum = builder.Add("add", F32({16}), {sum, narrow[i]});
  return sum;
}

std::string Branches() {
  HloProtoBuilder builder;
  builder.Begin("main");
  AddBranches(builder);
  return builder.Build();
}

// The same inside a call, whose result is negated.
std::string CalledBranches() {
  HloProtoBuilder builder;
  const int64_t called = builder.Begin("called");
  AddBranches(builder);
  builder.Begin("main");
  const int64_t p = builder.Parameter(0, F32({16}));
  builder.Add("negate", F32({16}), {builder.Add("call", F32({16}), {p}, {.called = {called}})});
  return builder.Build();
}

// Branches in two computations, called one after the other, and a third that calls a fourth.
std::string BranchesEverywhere() {
  HloProtoBuilder builder;
  std::vector<int64_t> called;
  for (const char* name : {"first", "second", "inside"}) {
    called.push_back(builder.Begin(name));
    AddBranches(builder);
  }
  const int64_t around = builder.Begin("around");
  const int64_t branches = AddBranches(builder);
  builder.Add("call", F32({16}), {branches}, {.called = {called[2]}});
  builder.Begin("main");
  int64_t last = builder.Parameter(0, F32({16}));
  for (const int64_t computation : {called[0], called[1], around}) {
    last = builder.Add("call", F32({16}), {last}, {.called = {computation}});
  }
  builder.Add("negate", F32({16}), {last});
  return builder.Build();
}

// Forward and backward in the entry: 6 x 4 KiB and one more as it came.
std::string ForwardBackward() {
  HloProtoBuilder builder;
  builder.Begin("main");
  const int64_t last = AddForwardBackward(builder, builder.Parameter(0, F32({64, 16})));
  builder.Add("slice", F32({16}), {last});
  return builder.Build();
}

RecomputeOrderResult Planned(const std::string& bytes, RecomputeOrderChanges changes,
                             std::optional<int64_t> budget_bytes) {
  const AnalyzedModule before = Analyzed(bytes);
  RecomputeOrderResult result =
      RecomputeOrder(*before.analysis, {.changes = changes, .budget_bytes = budget_bytes, .roofline = kRoofline});
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(result.bytes.empty(), !result.reason.empty());
  EXPECT_EQ(CheckSchedule(result.hlo.program, result.plan.schedule), "");
  EXPECT_TRUE(result.after.temp_bytes <= result.before.temp_bytes);
  if (!result.bytes.empty()) {
    const AnalyzedModule after = Analyzed(result.bytes);
    EXPECT_EQ(verify::VerifyTransform(*before.module, *after.module), "");
    EXPECT_EQ(AssignBuffers(*after.analysis->alias, after.analysis->ranges).temp_bytes, result.after.temp_bytes);
  }
  return result;
}

bool HasRepeats(const RecomputeOrderResult& result) {
  return std::ssize(result.plan.schedule) > result.hlo.program.num_ops();
}

TEST(OrderAlone) {
  const RecomputeOrderResult result = Planned(Branches(), RecomputeOrderChanges::kOrder, std::nullopt);
  EXPECT_EQ(result.before.temp_bytes, 4 * 4 * kKib);
  EXPECT_TRUE(result.after.temp_bytes <= 4 * kKib + 4 * 64);
  EXPECT_TRUE(!HasRepeats(result));
  EXPECT_EQ(result.orders.front().judged_bytes, result.after.temp_bytes);
}

TEST(WhatIsCalledIsOrderedToo) {
  const RecomputeOrderResult result = Planned(CalledBranches(), RecomputeOrderChanges::kOrder, std::nullopt);
  EXPECT_TRUE(result.before.temp_bytes >= 4 * 4 * kKib);
  EXPECT_TRUE(result.after.temp_bytes <= 4 * kKib + 6 * 64);
  EXPECT_TRUE(Planned(CalledBranches(), RecomputeOrderChanges::kClones, std::nullopt).bytes.empty());
}

TEST(AllThatIsCalledIsOrdered) {
  const RecomputeOrderResult result = Planned(BranchesEverywhere(), RecomputeOrderChanges::kOrder, std::nullopt);
  EXPECT_TRUE(result.before.temp_bytes >= 4 * 4 * kKib);
  EXPECT_TRUE(result.after.temp_bytes <= 4 * kKib + 12 * 64);
}

TEST(AnOrderIsEnoughForABudgetThatItHolds) {
  const int64_t smallest = Planned(Branches(), RecomputeOrderChanges::kOrder, std::nullopt).after.temp_bytes;
  const RecomputeOrderResult held = Planned(Branches(), RecomputeOrderChanges::kBoth, smallest);
  EXPECT_TRUE(!HasRepeats(held) && held.rounds.empty());
  EXPECT_EQ(held.after.temp_bytes, smallest);
  EXPECT_TRUE(!Planned(Branches(), RecomputeOrderChanges::kBoth, smallest - 1).rounds.empty());
}

TEST(WhatFitsStaysAsItCame) {
  const RecomputeOrderResult result = Planned(Branches(), RecomputeOrderChanges::kBoth, 16 * kKib);
  EXPECT_TRUE(result.bytes.empty());
  EXPECT_TRUE(result.reason.find("fit") != std::string::npos);
  EXPECT_TRUE(result.plan.schedule == result.hlo.program.schedule);
}

TEST(ClonesAloneKeepTheOrder) {
  const RecomputeOrderResult whole = Planned(ForwardBackward(), RecomputeOrderChanges::kClones, std::nullopt);
  EXPECT_TRUE(whole.bytes.empty());
  const int64_t budget_bytes = whole.before.temp_bytes - 4 * kKib;
  EXPECT_TRUE(Planned(ForwardBackward(), RecomputeOrderChanges::kOrder, budget_bytes).after.temp_bytes > budget_bytes);
  for (const auto changes : {RecomputeOrderChanges::kClones, RecomputeOrderChanges::kBoth}) {
    const RecomputeOrderResult result = Planned(ForwardBackward(), changes, budget_bytes);
    EXPECT_TRUE(result.after.temp_bytes <= budget_bytes);
    EXPECT_TRUE(HasRepeats(result));
    EXPECT_TRUE(result.recompute_cost_s > 0);
    if (changes == RecomputeOrderChanges::kBoth) continue;
    std::vector<uint8_t> seen(result.hlo.program.num_ops(), 0);
    Schedule firsts;
    for (const OpId op : result.plan.schedule) {
      if (!std::exchange(seen[op], 1)) firsts.push_back(op);
    }
    EXPECT_TRUE(firsts == result.hlo.program.schedule);
  }
}

TEST(WhatALoopRunsIsRecomputedInside) {
  const std::string module = LoopModule(/*num_trips=*/3);
  const int64_t before_bytes = Planned(module, RecomputeOrderChanges::kOrder, 0).after.temp_bytes;
  const int64_t budget_bytes = before_bytes - 8 * kKib;
  for (const auto changes : {RecomputeOrderChanges::kClones, RecomputeOrderChanges::kBoth}) {
    const RecomputeOrderResult result = Planned(module, changes, budget_bytes);
    EXPECT_TRUE(result.after.temp_bytes <= budget_bytes);
    EXPECT_TRUE(!HasRepeats(result) && result.inner && result.inner->size() == 1);
    EXPECT_EQ(result.recompute_cost_s, result.inner->front().plan.cost_s);
    EXPECT_TRUE(result.recompute_cost_s > 0);
    EXPECT_TRUE(result.op_workspace_bytes != result.hlo.program.op_workspace_bytes);
    for (OpId op = 0; op < result.hlo.program.num_ops(); ++op) {
      EXPECT_TRUE(result.least_workspaces[op] <= result.op_workspace_bytes[op]);
    }
  }
}

TEST(TheBudgetIsSplitWhereThatIsCheapest) {
  // Entry and body can both give way: the entry's repeats run once, the body's a hundred times.
  const std::string module = LoopModule(/*num_trips=*/100, /*has_around=*/true);
  const int64_t before_bytes = Planned(module, RecomputeOrderChanges::kOrder, 0).after.temp_bytes;
  const RecomputeOrderResult entry_alone = Planned(module, RecomputeOrderChanges::kBoth, before_bytes - 4 * kKib);
  EXPECT_TRUE(HasRepeats(entry_alone) && entry_alone.inner == nullptr);
  const RecomputeOrderResult both = Planned(module, RecomputeOrderChanges::kBoth, before_bytes - 20 * kKib);
  EXPECT_TRUE(both.after.temp_bytes <= before_bytes - 20 * kKib);
  EXPECT_TRUE(HasRepeats(both) && both.inner != nullptr);
  const auto tried = [&](double share) {
    return std::ranges::any_of(both.rounds, [&](const PlanRound& round) { return round.share == share; });
  };
  EXPECT_TRUE(tried(1) && tried(0) && tried(0.5));
}

TEST(WhereTheBudgetIsOutOfReachTheSmallestOrTheCheapestNearIt) {
  const AnalyzedModule module = Analyzed(LoopModule(/*num_trips=*/100, /*has_around=*/true));
  RecomputeOrderOptions options = {.budget_bytes = 1, .roofline = kRoofline};
  const RecomputeOrderResult smallest = RecomputeOrder(*module.analysis, options);
  options.near_smallest = 2;   // the entry alone comes so near
  const RecomputeOrderResult near = RecomputeOrder(*module.analysis, options);
  EXPECT_TRUE(near.recompute_cost_s < smallest.recompute_cost_s);
  EXPECT_TRUE(near.after.temp_bytes > smallest.after.temp_bytes);
  EXPECT_TRUE(near.after.temp_bytes <= 2 * smallest.after.temp_bytes);
}

TEST(AGivenPlannerMayOrder) {
  const AnalyzedModule module = Analyzed(Branches());
  RecomputeOrderOptions options = {.changes = RecomputeOrderChanges::kOrder, .roofline = kRoofline};
  options.planner = [](const RematTask& task) {
    for (const uint8_t can_recompute : task.hlo.program.op_can_recompute) EXPECT_TRUE(!can_recompute);
    ModulePlan plan = PlanQuickly(task);
    plan.planner = "mine";
    return plan;
  };
  const RecomputeOrderResult result = RecomputeOrder(*module.analysis, options);
  EXPECT_EQ(result.plan.planner, "mine");
  EXPECT_TRUE(result.after.temp_bytes <= 4 * kKib + 4 * 64);
}

TEST(AnyPlannerWillDoAndNoneIsTrusted) {
  const AnalyzedModule module = Analyzed(ForwardBackward());
  RecomputeOrderOptions options = {.budget_bytes = 8 * kKib, .roofline = kRoofline};
  int32_t num_calls = 0;
  options.planner = [&](const RematTask& task) {
    ++num_calls;
    return ModulePlan{.schedule = Schedule(task.order.rbegin(), task.order.rend())};   // no schedule of this program
  };
  const RecomputeOrderResult result = RecomputeOrder(*module.analysis, options);
  EXPECT_TRUE(num_calls > 0);
  EXPECT_TRUE(result.bytes.empty());
  EXPECT_TRUE(result.reason.find("no valid schedule") != std::string::npos);
}

}  // namespace
}  // namespace coopjax
