#include "planners/segments/segment_cut.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/allowance.h"
#include "base/min_cut.h"

namespace coopjax {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Two multiplicative hashes side by side, each word mixed in full.
class Hasher {
 public:
  void Add(uint64_t word) {
    hash_[0] = Mix(hash_[0] ^ word, 0x9E3779B97F4A7C15);
    hash_[1] = Mix(hash_[1] + word, 0xC2B2AE3D27D4EB4F);
  }
  void Add(double number) { Add(std::bit_cast<uint64_t>(number)); }
  template <typename T>
  void AddAll(const std::vector<T>& items) {
    Add(static_cast<uint64_t>(items.size()));
    for (const T& item : items) {
      if constexpr (std::is_same_v<T, double>) {
        Add(item);
      } else {
        Add(static_cast<uint64_t>(item));
      }
    }
  }
  Hash128 hash() const { return hash_; }

 private:
  static uint64_t Mix(uint64_t word, uint64_t factor) {
    word *= factor;
    word ^= word >> 29;
    word *= 0xBF58476D1CE4E5B9;
    return word ^ (word >> 32);
  }
  Hash128 hash_ = {0x243F6A8885A308D3, 0x13198A2E03707344};
};

}  // namespace

int32_t SegmentCuts::KindOf(SegmentProblem problem) {
  Hasher hasher;
  hasher.AddAll(problem.step_cost_s);
  hasher.AddAll(problem.may_repeat);
  hasher.AddAll(problem.inputs.offsets);
  hasher.AddAll(problem.inputs.items);
  hasher.AddAll(problem.producer);
  hasher.AddAll(problem.bytes);
  hasher.AddAll(problem.flags);
  const auto [at, is_new] = kind_of_.try_emplace(hasher.hash(), num_kinds());
  if (is_new) kinds_.push_back(std::move(problem));
  return at->second;
}

const SegmentChoice& SegmentCuts::Choose(int32_t kind, double price, const std::vector<uint8_t>& is_held) {
  CountSteps(4 + std::ssize(is_held));
  Hasher hasher;
  hasher.Add(static_cast<uint64_t>(kind));
  hasher.Add(price);
  hasher.AddAll(is_held);
  const auto [at, is_new] = choices_.try_emplace(hasher.hash());
  if (is_new) {
    at->second = Solve(kinds_[kind], price, is_held);
    ++num_solved_;
  }
  return at->second;
}

SegmentChoice SegmentCuts::Solve(const SegmentProblem& problem, double price,
                                 const std::vector<uint8_t>& is_held) const {
  CountSteps(2 * (problem.num_productions() + std::ssize(problem.step_cost_s)));
  const int32_t source = 0, sink = 1;
  std::vector<int32_t> value_node(problem.num_productions(), -1), step_node(problem.step_cost_s.size(), -1);
  std::vector<int32_t> values, steps;
  int32_t num_nodes = 2;
  auto need = [&](int32_t p) {
    if (value_node[p] >= 0 || is_held[p] || (problem.flags[p] & SegmentProblem::kFree)) return;
    value_node[p] = num_nodes++;
    values.push_back(p);
  };
  for (int32_t p = 0; p < problem.num_own(); ++p) {
    if (problem.flags[p] & SegmentProblem::kWanted) need(p);
  }
  const size_t num_wanted = values.size();
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= problem.num_own()) continue;
    const int32_t step = problem.producer[values[i]];
    if (step_node[step] >= 0) continue;
    step_node[step] = num_nodes++;
    steps.push_back(step);
    for (int32_t p : problem.inputs[step]) need(p);
  }
  MinCut network(num_nodes);
  for (size_t i = 0; i < num_wanted; ++i) network.AddEdge(source, value_node[values[i]], kNever);
  for (int32_t p : values) {
    const bool is_lost = problem.flags[p] & SegmentProblem::kLost;
    network.AddEdge(value_node[p], p < problem.num_own() ? step_node[problem.producer[p]] : sink,
                    is_lost ? kNever : price * static_cast<double>(problem.bytes[p]));
  }
  for (int32_t step : steps) {
    network.AddEdge(step_node[step], sink, problem.may_repeat[step] ? problem.step_cost_s[step] : kNever);
    for (int32_t p : problem.inputs[step]) {
      if (value_node[p] >= 0) network.AddEdge(step_node[step], value_node[p], kNever);
    }
  }
  network.Solve(source, sink);
  SegmentChoice choice;
  for (int32_t step : steps) {
    if (!network.IsOnSourceSide(step_node[step])) continue;
    choice.repeated.push_back(step);
  }
  for (int32_t p : values) {
    if (p >= problem.num_own() && network.IsOnSourceSide(value_node[p])) choice.held_outside.push_back(p);
  }
  std::sort(choice.repeated.begin(), choice.repeated.end());
  std::sort(choice.held_outside.begin(), choice.held_outside.end());
  return choice;
}

}  // namespace coopjax
