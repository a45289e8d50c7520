#include "planners/saving/save_frontier.h"

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "testing/expect.h"

namespace coopjax {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Op {
  std::vector<int32_t> inputs, outputs;
  double cost;
};

SavingProblem ProblemOf(const std::vector<Op>& ops, std::vector<int64_t> value_bytes, std::vector<int32_t> wanted) {
  SavingProblem problem;
  for (const Op& op : ops) {
    problem.inputs.AddRow(op.inputs);
    problem.outputs.AddRow(op.outputs);
    problem.op_cost.push_back(op.cost);
  }
  problem.value_bytes = std::move(value_bytes);
  problem.wanted = std::move(wanted);
  return problem;
}

// What is run again when these values are saved, by following each need; infinite if that can't be.
double CostOf(const SavingProblem& problem, const std::set<int32_t>& saved) {
  std::set<int32_t> needed(problem.wanted.begin(), problem.wanted.end());
  double cost = 0;
  for (int32_t op = problem.outputs.num_rows() - 1; op >= 0; --op) {
    bool runs = false;
    for (int32_t value : problem.outputs[op]) runs = runs || (needed.contains(value) && !saved.contains(value));
    if (!runs) continue;
    cost += problem.op_cost[op];
    for (int32_t value : problem.inputs[op]) needed.insert(value);
  }
  return cost;
}

// The least cost within so many bytes, over all sets of values.
double LeastCost(const SavingProblem& problem, int64_t limit) {
  const int num_values = static_cast<int>(problem.value_bytes.size());
  double least = kInfinity;
  for (int mask = 0; mask < 1 << num_values; ++mask) {
    std::set<int32_t> saved;
    int64_t bytes = 0;
    bool is_allowed = true;
    for (int value = 0; value < num_values; ++value) {
      if ((mask >> value & 1) == 0) continue;
      saved.insert(value);
      bytes += problem.value_bytes[value];
      is_allowed = is_allowed && problem.value_bytes[value] >= 0;
    }
    if (is_allowed && bytes <= limit) least = std::min(least, CostOf(problem, saved));
  }
  return least;
}

TEST(SavesThePointBetweenTwoWantedValues) {
  // 0 -> 1 -> {2, 3}, both wanted: saving 1 spares the dear op for the bytes of one value.
  const SavingProblem problem =
      ProblemOf({{{}, {0}, 100}, {{0}, {1}, 100}, {{1}, {2}, 1}, {{1}, {3}, 1}}, {8, 8, 8, 8}, {2, 3});
  const std::vector<SavedSet> found = SaveFrontier(problem);
  EXPECT_EQ(found.size(), 3u);
  EXPECT_TRUE(found[0].values.empty());
  EXPECT_EQ(found[0].cost, 202.0);
  EXPECT_TRUE(found[1].values == std::vector<int32_t>({1}));
  EXPECT_EQ(found[1].cost, 2.0);
  EXPECT_EQ(found[2].bytes, 16);
  EXPECT_EQ(found[2].cost, 0.0);
}

TEST(FindsWhatNoPriceFinds) {
  // Three chains by themselves, of 10 bytes for 60, 9 for 50 and 9 for 50: at 18 bytes the best is no corner of the
  // hull.
  const SavingProblem problem = ProblemOf({{{}, {0}, 60}, {{}, {1}, 50}, {{}, {2}, 50}}, {10, 9, 9}, {0, 1, 2});
  for (const SavedSet& set : SaveFrontier(problem)) {
    if (set.bytes == 18) EXPECT_EQ(set.cost, 60.0);
    EXPECT_EQ(set.cost, LeastCost(problem, set.bytes));
  }
}

TEST(OfFormsThatCostAsMuchTheFirstOrTheLastIsSaved) {
  // A dear op, then two free ones: any of the three values will do.
  const SavingProblem problem = ProblemOf({{{}, {0}, 9}, {{0}, {1}, 0}, {{1}, {2}, 0}}, {8, 8, 8}, {2});
  EXPECT_TRUE(SaveFrontier(problem).back().values == std::vector<int32_t>({2}));
  EXPECT_TRUE(SaveFrontier(problem, {.is_early = true}).back().values == std::vector<int32_t>({0}));
}

TEST(WhatMustNotRunAgainIsSaved) {
  const SavingProblem problem = ProblemOf({{{}, {0}, kInfinity}, {{0}, {1}, 5}}, {8, 4}, {1});
  const std::vector<SavedSet> found = SaveFrontier(problem);
  EXPECT_EQ(found.size(), 1u);
  EXPECT_TRUE(found[0].values == std::vector<int32_t>({1}));
  EXPECT_TRUE(SaveFrontier(ProblemOf({{{}, {0}, kInfinity}}, {-1}, {0})).empty());
}

TEST(NothingWantedCostsNothing) {
  const std::vector<SavedSet> found = SaveFrontier(ProblemOf({{{}, {0}, 1}}, {8}, {}));
  EXPECT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cost, 0.0);
  EXPECT_EQ(found[0].bytes, 0);
}

TEST(EverySetOfTheFrontierIsTheBestOfItsSize) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 200; ++trial) {
    const int num_ops = 2 + static_cast<int>(random() % 5);
    std::vector<Op> ops;
    std::vector<int64_t> bytes;
    std::vector<int32_t> wanted;
    for (int op = 0; op < num_ops; ++op) {
      Op made = {{}, {}, static_cast<double>(random() % 30)};
      for (size_t value = 0; value < bytes.size(); ++value) {
        if (random() % 3 == 0) made.inputs.push_back(static_cast<int32_t>(value));
      }
      for (unsigned i = 0; i <= random() % 2; ++i) {
        made.outputs.push_back(static_cast<int32_t>(bytes.size()));
        if (random() % 2 == 0) wanted.push_back(static_cast<int32_t>(bytes.size()));
        bytes.push_back(random() % 5 == 0 ? -1 : 1 + static_cast<int64_t>(random() % 20));
      }
      ops.push_back(made);
    }
    const SavingProblem problem = ProblemOf(ops, bytes, wanted);
    const std::vector<SavedSet> found =
        SaveFrontier(problem, {.max_sets = 250, .max_cuts = 100000, .relative_gap = 0, .is_early = random() % 2 == 0});
    EXPECT_TRUE(!found.empty());
    EXPECT_EQ(found.front().cost, LeastCost(problem, found.front().bytes));
    EXPECT_EQ(SaveFrontier(problem, {.max_sets = 2}).front().bytes, found.front().bytes);
    for (const SavedSet& set : found) {
      EXPECT_EQ(set.cost, CostOf(problem, {set.values.begin(), set.values.end()}));
      EXPECT_EQ(set.cost, LeastCost(problem, set.bytes));
      EXPECT_TRUE(set.least_cost <= set.cost && set.least_cost >= set.cost - 1e-6);
    }
    for (size_t i = 1; i < found.size(); ++i) {
      // And between two of them there is nothing.
      EXPECT_EQ(found[i - 1].cost, LeastCost(problem, found[i].bytes - 1));
    }
    EXPECT_EQ(found.back().cost, LeastCost(problem, 1 << 20));
  }
}

}  // namespace
}  // namespace coopjax
