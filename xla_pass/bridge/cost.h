// What an instruction costs: FLOPs, transcendentals and bytes as XLA's HloCostAnalysis counts them
// (xla/service/hlo_cost_analysis.cc), then seconds by a roofline.
//
// Two differences from XLA: a loop with a known trip count costs its body that many times (XLA counts
// one iteration), and a custom call costs the bytes of its operands and results (XLA says -1) and what
// its library does, as op_flops.h counts.
#pragma once

#include <cstdint>
#include <vector>

#include "hlo/graph.h"

namespace coopjax {

// FLOPs that a transcendental counts for where work is one number, what is repeated for one.
inline constexpr double kTranscendentalFlops = 8;

struct OpCost {
  double flops = 0;
  double transcendentals = 0;   // exp, tanh, rsqrt ...: counted apart from FLOPs
  double bytes_accessed = 0;
};

// The target, see coopjax/program/cost.py. An op takes
//   max(flops / flops_per_s + transcendentals / transcendentals_per_s, bytes / bytes_per_s) + op_overhead_s.
struct Roofline {
  double flops_per_s = 1;
  double transcendentals_per_s = 1;
  double bytes_per_s = 1;
  double op_overhead_s = 0;
};

class CostModel {
 public:
  // `graph` must outlive the model. Without `count_iterations` a loop costs one iteration, as in XLA.
  explicit CostModel(const hlo::Graph& graph, bool count_iterations = true);

  OpCost Cost(int32_t instruction);
  // Of all instructions of a computation.
  OpCost ComputationCost(int32_t computation);
  // Loops and calls: the sum over the instructions inside, each with its overhead.
  double Seconds(int32_t instruction, const Roofline& roofline);

 private:
  OpCost FusionCost(int32_t instruction);
  OpCost ControlFlowCost(int32_t instruction);
  OpCost AppliedCost(int32_t instruction);
  double AccessedBytes(int32_t instruction) const;
  OpCost ScaledCallee(int32_t instruction, int32_t called_number, double count);
  double FusionParameterBytes(int32_t parameter) const;
  double OperandAndResultBytes(int32_t instruction) const;
  double ArrayBytes(int32_t instruction) const;
  double ComputationSeconds(int32_t computation, const Roofline& roofline);

  const hlo::Graph& graph_;
  const bool count_iterations_;
  std::vector<OpCost> computation_cost_;
  std::vector<uint8_t> is_known_;         // [computation]
};

}  // namespace coopjax
