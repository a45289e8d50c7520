#include "base/min_cut.h"

#include <algorithm>
#include <random>
#include <utility>

#include "testing/expect.h"

namespace coopjax {
namespace {

TEST(CutsTheCheapEdges) {
  // 0 -> 2 (3), 0 -> 3 (2), 2 -> 3 (1), 2 -> 1 (2), 3 -> 1 (4): the cut {0} costs 5.
  MinCut cut(4);
  cut.AddEdge(0, 2, 3);
  cut.AddEdge(0, 3, 2);
  cut.AddEdge(2, 3, 1);
  cut.AddEdge(2, 1, 2);
  cut.AddEdge(3, 1, 4);
  cut.Solve(0, 1);
  EXPECT_TRUE(cut.IsOnSourceSide(0));
  for (int node : {1, 2, 3}) EXPECT_TRUE(!cut.IsOnSourceSide(node));
}

TEST(TellsTheLargestSourceSide) {
  // 0 -> 2 -> 3 -> 1, all as dear: each edge is a minimum cut.
  MinCut cut(4);
  cut.AddEdge(0, 2, 1);
  cut.AddEdge(2, 3, 1);
  cut.AddEdge(3, 1, 1);
  cut.Solve(0, 1);
  EXPECT_TRUE(cut.IsOnSourceSide(0) && !cut.IsOnSourceSide(2) && !cut.IsOnSourceSide(3));
  cut.TakeLargestSourceSide(1);
  EXPECT_TRUE(cut.IsOnSourceSide(0) && cut.IsOnSourceSide(2) && cut.IsOnSourceSide(3) && !cut.IsOnSourceSide(1));
}

TEST(AgreesWithExhaustiveSearch) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    const int num_nodes = 3 + static_cast<int>(random() % 6);
    struct Edge {
      int from, to;
      double capacity;
    };
    std::vector<Edge> edges(random() % 20);
    MinCut cut(num_nodes);
    for (Edge& edge : edges) {
      edge = {static_cast<int>(random() % num_nodes), static_cast<int>(random() % num_nodes), (random() % 9) / 3.0};
      cut.AddEdge(edge.from, edge.to, edge.capacity);
    }
    auto cost_of = [&](auto is_source) {
      double cost = 0;
      for (const Edge& edge : edges) cost += is_source(edge.from) && !is_source(edge.to) ? edge.capacity : 0;
      return cost;
    };
    double best = 1e9;
    for (int set = 0; set < 1 << num_nodes; ++set) {
      if ((set & 3) == 1) best = std::min(best, cost_of([set](int node) { return (set >> node & 1) != 0; }));
    }
    cut.Solve(0, 1);
    EXPECT_TRUE(std::abs(cost_of([&](int node) { return cut.IsOnSourceSide(node); }) - best) < 1e-9);
  }
}

// Edges lead from 0 up and to 1 from anywhere, so that long and short paths share edges.
TEST(CutsAreTheSameWithoutLevelsFirst) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    const int num_nodes = 3 + static_cast<int>(random() % 9);
    MinCut plain(num_nodes), acyclic(num_nodes);
    for (int i = static_cast<int>(random() % 40); i > 0; --i) {
      int from = static_cast<int>(random() % num_nodes), to = static_cast<int>(random() % num_nodes);
      if (from > to) std::swap(from, to);
      if (from == 1 || from == to) continue;
      const double capacity = static_cast<double>(random() % 9);
      plain.AddEdge(from, to, capacity);
      acyclic.AddEdge(from, to, capacity);
      if (from > 1 && random() % 2) plain.AddEdge(from, 1, capacity), acyclic.AddEdge(from, 1, capacity);
    }
    plain.Solve(0, 1);
    acyclic.SolveAcyclic(0, 1);
    for (int node = 0; node < num_nodes; ++node) {
      EXPECT_TRUE(plain.IsOnSourceSide(node) == acyclic.IsOnSourceSide(node));
    }
    plain.TakeLargestSourceSide(1);
    acyclic.TakeLargestSourceSide(1);
    for (int node = 0; node < num_nodes; ++node) {
      EXPECT_TRUE(plain.IsOnSourceSide(node) == acyclic.IsOnSourceSide(node));
    }
  }
}

}  // namespace
}  // namespace coopjax
