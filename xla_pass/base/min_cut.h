// Minimum s-t cut by Dinic's algorithm, on real capacities.
#pragma once

#include <cstdint>
#include <vector>

namespace coopjax {

class MinCut {
 public:
  explicit MinCut(int32_t num_nodes) : first_(num_nodes, -1) {}

  // Returns its number, for SetCapacity.
  int32_t AddEdge(int32_t from, int32_t to, double capacity);
  // For another cut of the same network: of every edge, before Solve.
  void SetCapacity(int32_t edge, double capacity);
  // Saturates the network; afterwards IsOnSourceSide tells the smallest source side of a minimum cut.
  void Solve(int32_t source, int32_t sink);
  // The same for a network without cycles: much of the flow is found in one go, however long its paths are, which
  // levels take one search for each length to.
  void SolveAcyclic(int32_t source, int32_t sink);
  bool IsOnSourceSide(int32_t node) const { return level_[node] >= 0; }
  // After Solve: from now on IsOnSourceSide tells the largest source side of a minimum cut.
  void TakeLargestSourceSide(int32_t sink);

 private:
  struct Edge {
    int32_t to;
    int32_t next;
    double capacity;
  };
  void FindEpsilon();
  void AugmentByLevels(int32_t source, int32_t sink);
  bool FindLevels(int32_t source, int32_t sink);
  template <typename IsOnWay>
  void Block(int32_t source, int32_t sink, const IsOnWay& is_on_way);
  int64_t Augment();

  std::vector<int32_t> first_;
  std::vector<Edge> edges_;   // edge i and its reverse i ^ 1
  std::vector<int32_t> level_;
  std::vector<int32_t> current_;
  std::vector<int32_t> frontier_, path_;  // of FindLevels and of Block, kept so that these allocate once
  double epsilon_ = 0;
};

}  // namespace coopjax
