#include "base/min_cut.h"

#include <algorithm>
#include <limits>

#include "base/allowance.h"

namespace coopjax {

int32_t MinCut::AddEdge(int32_t from, int32_t to, double capacity) {
  const auto edge = static_cast<int32_t>(edges_.size());
  edges_.push_back({to, first_[from], capacity});
  first_[from] = edge;
  edges_.push_back({from, first_[to], 0});
  first_[to] = edge + 1;
  return edge;
}

void MinCut::SetCapacity(int32_t edge, double capacity) {
  edges_[edge].capacity = capacity;
  edges_[edge ^ 1].capacity = 0;
}

bool MinCut::FindLevels(int32_t source, int32_t sink) {
  level_.assign(first_.size(), -1);
  level_[source] = 0;
  int64_t steps = std::ssize(first_) / 8;
  frontier_.assign(1, source);
  for (size_t i = 0; i < frontier_.size() && level_[sink] < 0; ++i) {  // what is no nearer than the sink is on no path
    for (int32_t e = first_[frontier_[i]]; e >= 0; e = edges_[e].next) {
      ++steps;
      if (edges_[e].capacity <= epsilon_ || level_[edges_[e].to] >= 0) continue;
      level_[edges_[e].to] = level_[frontier_[i]] + 1;
      frontier_.push_back(edges_[e].to);
    }
  }
  CountSteps(steps);
  return level_[sink] >= 0;
}

// Augments along edges that are on the way, none of them in a circle, until no path is left. Iterative, and from where
// the last path was saturated: chains are deep.
template <typename IsOnWay>
void MinCut::Block(int32_t source, int32_t sink, const IsOnWay& is_on_way) {
  current_ = first_;
  path_.clear();
  int32_t node = source;
  int64_t steps = 0;
  while (true) {
    ++steps;
    if (node == sink) {
      steps += std::ssize(path_);
      const auto tail = path_.begin() + Augment();
      node = edges_[*tail ^ 1].to;
      path_.erase(tail, path_.end());
      continue;
    }
    int32_t& e = current_[node];
    while (e >= 0 && (edges_[e].capacity <= epsilon_ || !is_on_way(node, e))) e = edges_[e].next;
    if (e >= 0) {
      path_.push_back(e);
      node = edges_[e].to;
    } else if (node == source) {
      break;
    } else {
      node = edges_[path_.back() ^ 1].to;
      current_[node] = edges_[path_.back()].next;
      path_.pop_back();
    }
  }
  CountSteps(steps);
}

// Fills the path; returns where on it the first edge is that has no capacity left.
int64_t MinCut::Augment() {
  double flow = std::numeric_limits<double>::infinity();
  for (int32_t edge : path_) flow = std::min(flow, edges_[edge].capacity);
  int64_t first = -1;
  for (int64_t i = 0; i < std::ssize(path_); ++i) {
    const int32_t edge = path_[i];
    edges_[edge].capacity -= flow;
    edges_[edge ^ 1].capacity += flow;
    if (first < 0 && edges_[edge].capacity <= epsilon_) first = i;
  }
  return first;
}

void MinCut::FindEpsilon() {
  double largest = 0;
  for (const Edge& edge : edges_) {
    if (edge.capacity < std::numeric_limits<double>::infinity()) largest = std::max(largest, edge.capacity);
  }
  epsilon_ = 1e-12 * largest;
  CountSteps(2 * std::ssize(edges_));
}

void MinCut::AugmentByLevels(int32_t source, int32_t sink) {
  while (FindLevels(source, sink)) {
    Block(source, sink, [&](int32_t node, int32_t e) { return level_[edges_[e].to] == level_[node] + 1; });
  }
}

void MinCut::Solve(int32_t source, int32_t sink) {
  FindEpsilon();
  AugmentByLevels(source, sink);
}

void MinCut::SolveAcyclic(int32_t source, int32_t sink) {
  FindEpsilon();
  Block(source, sink, [](int32_t, int32_t e) { return e % 2 == 0; });
  AugmentByLevels(source, sink);
}

void MinCut::TakeLargestSourceSide(int32_t sink) {
  std::vector<int32_t> reaching = {sink};
  level_.assign(first_.size(), 0);
  level_[sink] = -1;
  for (size_t i = 0; i < reaching.size(); ++i) {
    for (int32_t e = first_[reaching[i]]; e >= 0; e = edges_[e].next) {
      if (edges_[e ^ 1].capacity <= epsilon_ || level_[edges_[e].to] < 0) continue;
      level_[edges_[e].to] = -1;
      reaching.push_back(edges_[e].to);
    }
  }
}

}  // namespace coopjax
