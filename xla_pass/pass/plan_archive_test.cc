#include "pass/plan_archive.h"

#include <string>
#include <vector>

#include "testing/expect.h"

namespace coopjax {
namespace {

// A plan by name, with what the archive goes by.
CarriedOut Plan(const std::string& name, int64_t temp_bytes, double cost_s, int64_t least_bytes = 0) {
  CarriedOut plan = {.plan = {.planner = name}, .cost_s = cost_s};
  plan.heap.temp_bytes = temp_bytes;
  plan.heap.least_temp_bytes = least_bytes == 0 ? temp_bytes : least_bytes;
  return plan;
}

std::string Chosen(const PlanArchive& archive) {
  return archive.Chosen() == nullptr ? "none" : archive.Chosen()->plan.planner;
}

// Plans of the module that came with 1000 bytes, kept in this order.
PlanArchive Archive(const PlanArchiveOptions& options, const std::vector<CarriedOut>& plans) {
  PlanArchive archive(options);
  for (const CarriedOut& plan : plans) archive.Keep(plan);
  return archive;
}

TEST(WhatTakesNoLessThanTheModuleThatCameIsDropped) {
  const PlanArchiveOptions options = {.budget_bytes = 500, .came_bytes = 1000};
  EXPECT_EQ(Chosen(PlanArchive(options)), "none");
  EXPECT_EQ(Chosen(Archive(options, {Plan("as much", 1000, 0)})), "none");
  EXPECT_EQ(Chosen(Archive(options, {Plan("one less", 999, 5)})), "one less");
}

TEST(WithinTheBudgetTheCheapestIsTaken) {
  const std::vector<CarriedOut> plans = {Plan("small", 300, 3), Plan("cheap", 500, 1), Plan("cheaper", 501, 0.5)};
  EXPECT_EQ(Chosen(Archive({.budget_bytes = 501, .came_bytes = 1000}, plans)), "cheaper");
  EXPECT_EQ(Chosen(Archive({.budget_bytes = 500, .came_bytes = 1000}, plans)), "cheap");
  EXPECT_EQ(Chosen(Archive({.budget_bytes = 499, .came_bytes = 1000}, plans)), "small");
}

TEST(OutOfReachTheCheapestNearTheSmallestIsTaken) {
  // 1.25 times 400 is 500.
  const std::vector<CarriedOut> plans = {Plan("small", 400, 3), Plan("near", 500, 1), Plan("far", 501, 0.5)};
  EXPECT_EQ(Chosen(Archive({.budget_bytes = 399, .came_bytes = 1000}, plans)), "small");
  EXPECT_EQ(Chosen(Archive({.budget_bytes = 399, .came_bytes = 1000, .near_smallest = 1.25}, plans)), "near");
  // Where the budget is in reach, what is near does not matter.
  EXPECT_EQ(Chosen(Archive({.budget_bytes = 400, .came_bytes = 1000, .near_smallest = 1.25}, plans)), "small");
}

TEST(OfEqualsTheFirstStays) {
  const PlanArchiveOptions options = {.budget_bytes = 500, .came_bytes = 1000};
  EXPECT_EQ(Chosen(Archive(options, {Plan("first", 400, 1), Plan("second", 400, 1)})), "first");
  EXPECT_EQ(Chosen(Archive(options, {Plan("first", 400, 1), Plan("smaller", 399, 1)})), "smaller");
  EXPECT_EQ(Chosen(Archive(options, {Plan("first", 400, 1), Plan("dearer", 399, 2)})), "first");
}

TEST(TheBestFewLoosePlansAreKept) {
  PlanArchive archive({.budget_bytes = 500, .came_bytes = 1000});
  // By what they would take packed: those within the budget first, the cheap ones before the small ones.
  archive.KeepLoose(Plan("over by 10", 700, 1, /*least_bytes=*/510));
  archive.KeepLoose(Plan("dear", 700, 3, 400));
  archive.KeepLoose(Plan("cheap", 700, 1, 450));
  archive.KeepLoose(Plan("cheap and small", 700, 1, 440));
  archive.KeepLoose(Plan("cheap, again", 700, 1, 450));
  archive.KeepLoose(Plan("over by 100", 700, 1, 600));
  std::vector<std::string> names;
  for (const CarriedOut& loose : archive.loose()) names.push_back(loose.plan.planner);
  EXPECT_TRUE(names == (std::vector<std::string>{"cheap and small", "cheap", "cheap, again", "dear"}));
}

TEST(AnyPlanMayGainWhereNoneIsKept) {
  EXPECT_TRUE(PlanArchive({.budget_bytes = 500, .came_bytes = 1000}).MayGain(Plan("loose", 2000, 9, 1500)));
}

TEST(ALoosePlanMayGainWhereItWouldFitOrCostLess) {
  const PlanArchiveOptions options = {.budget_bytes = 500, .came_bytes = 1000};
  const PlanArchive over = Archive(options, {Plan("over", 600, 1)}), held = Archive(options, {Plan("held", 500, 2)});
  EXPECT_TRUE(over.MayGain(Plan("would fit", 700, 9, 500)));
  EXPECT_TRUE(!over.MayGain(Plan("would not", 700, 9, 598)));   // dearer, and 1.005 times 598 is 600
  EXPECT_TRUE(held.MayGain(Plan("cheaper", 700, 1, 500)));
  EXPECT_TRUE(!held.MayGain(Plan("cheaper, over", 700, 1, 501)));   // what holds the budget is as good
  EXPECT_TRUE(!held.MayGain(Plan("as dear", 700, 2, 498)));   // 1.005 times 498 is 500
  EXPECT_TRUE(held.MayGain(Plan("as dear, smaller", 700, 2, 490)));
}

TEST(ADearerPlanGainsNothingNearTheSmallest) {
  const PlanArchiveOptions options = {.budget_bytes = 100, .came_bytes = 1000, .near_smallest = 1.25};
  const PlanArchive archive = Archive(options, {Plan("cheap", 500, 1)});
  EXPECT_TRUE(!archive.MayGain(Plan("dear", 700, 2, 400)));   // 1.25 times 400: the cheap one stays the choice
  EXPECT_TRUE(archive.MayGain(Plan("dear", 700, 2, 399)));
}

}  // namespace
}  // namespace coopjax
