#include "bridge/cost.h"

#include <algorithm>
#include <iterator>

#include "bridge/op_flops.h"
#include "bridge/trip_count.h"

namespace coopjax {
CostModel::CostModel(const hlo::Graph& graph, bool count_iterations)
    : graph_(graph), count_iterations_(count_iterations) {
  computation_cost_.resize(graph.module().computations.size());
  is_known_.assign(graph.module().computations.size(), 0);
}

double CostModel::ArrayBytes(int32_t i) const {
  double bytes = 0;
  for (hlo::Node node = graph_.node_base(i); node < graph_.node_end(i); ++node) {
    if (graph_.shape(node).is_array()) bytes += static_cast<double>(graph_.shape(node).byte_size());
  }
  return bytes;
}

double CostModel::OperandAndResultBytes(int32_t i) const {
  double bytes = ArrayBytes(i);
  for (const int32_t operand : graph_.operands(i)) bytes += ArrayBytes(operand);
  return bytes;
}

OpCost CostModel::ComputationCost(int32_t computation) {
  if (!is_known_[computation]) {
    OpCost sum;
    for (const int32_t i : graph_.module().computations[computation].instructions) {
      const OpCost cost = Cost(i);
      sum.flops += cost.flops;
      sum.transcendentals += cost.transcendentals;
      sum.bytes_accessed += cost.bytes_accessed;
    }
    computation_cost_[computation] = sum;
    is_known_[computation] = 1;
  }
  return computation_cost_[computation];
}

// The called computation's cost `count` times, with the bytes of the instruction itself.
OpCost CostModel::ScaledCallee(int32_t i, int32_t called_number, double count) {
  if (called_number >= std::ssize(graph_.called(i))) return {0, 0, OperandAndResultBytes(i)};
  const OpCost callee = ComputationCost(graph_.called(i)[called_number]);
  return {callee.flops * count, callee.transcendentals * count, OperandAndResultBytes(i)};
}

// Bytes that a fusion reads of a parameter: slices read only what they return, and everything else
// shares one pass.
double CostModel::FusionParameterBytes(int32_t parameter) const {
  double bytes = 0;
  bool is_read_whole = false;
  for (const int32_t user : graph_.users(parameter)) {
    const hlo::Op op = graph_.op(user);
    const auto operands = graph_.operands(user);
    if (op == hlo::Op::kFusion) {
      for (int32_t number = 0; number < std::ssize(operands); ++number) {
        const int32_t inner = graph_.parameter(graph_.called(user)[0], number);
        if (operands[number] == parameter && inner >= 0) bytes += FusionParameterBytes(inner);
      }
    } else if (op == hlo::Op::kSlice ||
               ((op == hlo::Op::kDynamicSlice || op == hlo::Op::kGather) && operands[0] == parameter)) {
      bytes += ArrayBytes(user);
    } else if (op == hlo::Op::kBroadcast || op == hlo::Op::kReshape) {
      bytes += ArrayBytes(parameter);
    } else if (!(op == hlo::Op::kDynamicUpdateSlice && operands[0] == parameter) && !is_read_whole) {
      is_read_whole = true;
      bytes += ArrayBytes(parameter);
    }
  }
  return bytes;
}

OpCost CostModel::FusionCost(int32_t i) {
  const int32_t computation = graph_.called(i)[0];
  OpCost cost = ComputationCost(computation);
  cost.bytes_accessed = 0;
  const int32_t root = graph_.root(computation);
  const auto written_bytes = [&](int32_t result) {
    // A dynamic-update-slice at the root writes only the update.
    return ArrayBytes(graph_.op(result) == hlo::Op::kDynamicUpdateSlice ? graph_.operands(result)[1] : result);
  };
  if (graph_.op(root) == hlo::Op::kTuple) {
    for (const int32_t result : graph_.operands(root)) cost.bytes_accessed += written_bytes(result);
  } else {
    cost.bytes_accessed += written_bytes(root);
  }
  for (int32_t number = 0; number < std::ssize(graph_.operands(i)); ++number) {
    const int32_t parameter = graph_.parameter(computation, number);
    if (parameter >= 0) cost.bytes_accessed += FusionParameterBytes(parameter);
  }
  return cost;
}

OpCost CostModel::ControlFlowCost(int32_t i) {
  OpCost cost;
  if (graph_.op(i) == hlo::Op::kConditional) {
    for (const int32_t branch : graph_.called(i)) {
      const OpCost inner = ComputationCost(branch);
      cost = {std::max(cost.flops, inner.flops), std::max(cost.transcendentals, inner.transcendentals),
              std::max(cost.bytes_accessed, inner.bytes_accessed)};
    }
    return cost;
  }
  const bool is_loop = graph_.op(i) == hlo::Op::kWhile && count_iterations_;
  const double count = is_loop ? static_cast<double>(TripCount(graph_, i)) : 1;
  for (const int32_t callee : graph_.called(i)) {
    const OpCost inner = ComputationCost(callee);
    cost.flops += count * inner.flops;
    cost.transcendentals += count * inner.transcendentals;
    cost.bytes_accessed += count * inner.bytes_accessed;
  }
  return cost;
}

// Ops that apply a computation to elements: reduce, map, reduce-window, select-and-scatter, scatter.
OpCost CostModel::AppliedCost(int32_t i) {
  const auto operands = graph_.operands(i);
  const auto elements = [&](int32_t of) { return ResultElements(graph_.instruction(of)); };
  switch (graph_.op(i)) {
    case hlo::Op::kReduce:
      return ScaledCallee(i, 0, elements(operands[0]) - elements(i));
    case hlo::Op::kReduceWindow:
      return ScaledCallee(i, 0, (WindowElements(graph_.instruction(i)) - 1) * elements(i));
    case hlo::Op::kSelectAndScatter: {
      const double sources = elements(operands[1]);
      OpCost cost = ScaledCallee(i, 0, sources * (WindowElements(graph_.instruction(i)) - 1));
      cost.flops += ScaledCallee(i, 1, sources).flops;
      return cost;
    }
    case hlo::Op::kScatter: {
      // Operands, indices, updates; the updates are read, and as much of the operands is read and written.
      const size_t num_results = (operands.size() - 1) / 2;
      OpCost cost = ScaledCallee(i, 0, elements(operands[num_results + 1]));
      cost.bytes_accessed = ArrayBytes(operands[num_results]);
      for (size_t k = num_results + 1; k < operands.size(); ++k) cost.bytes_accessed += 3 * ArrayBytes(operands[k]);
      return cost;
    }
    default:  // map
      return ScaledCallee(i, 0, elements(i));
  }
}

double CostModel::AccessedBytes(int32_t i) const {
  const auto operands = graph_.operands(i);
  switch (graph_.op(i)) {
    case hlo::Op::kSlice:
    case hlo::Op::kDynamicSlice:
      return 2 * ArrayBytes(i);
    case hlo::Op::kGather:
      return 2 * ArrayBytes(i) + ArrayBytes(operands[1]);
    case hlo::Op::kDynamicUpdateSlice:
      return 2 * ArrayBytes(operands[1]);
    default:
      return OperandAndResultBytes(i);
  }
}

OpCost CostModel::Cost(int32_t i) {
  const hlo::Op op = graph_.op(i);
  if (hlo::IsGlue(op)) return {};
  switch (op) {
    case hlo::Op::kFusion:
      return FusionCost(i);
    case hlo::Op::kCall:
    case hlo::Op::kWhile:
    case hlo::Op::kConditional:
    case hlo::Op::kAsyncStart:
      return ControlFlowCost(i);
    case hlo::Op::kReduce:
    case hlo::Op::kMap:
    case hlo::Op::kReduceWindow:
    case hlo::Op::kSelectAndScatter:
    case hlo::Op::kScatter:
      return AppliedCost(i);
    case hlo::Op::kAsyncUpdate:
    case hlo::Op::kAsyncDone:
    case hlo::Op::kCopyDone:
    case hlo::Op::kRecvDone:
    case hlo::Op::kAllReduceDone:
    case hlo::Op::kAllGatherDone:
    case hlo::Op::kCollectivePermuteDone:
      return {};  // counted at the start
    default:
      break;
  }
  const bool is_random = op == hlo::Op::kRng || op == hlo::Op::kRngBitGenerator;
  if (graph_.opcode(i).is_transcendental || is_random) {
    return {0, ResultElements(graph_.instruction(i)), AccessedBytes(i)};
  }
  return {OwnFlops(graph_, i), 0, AccessedBytes(i)};
}

double CostModel::ComputationSeconds(int32_t computation, const Roofline& roofline) {
  double seconds = 0;
  for (const int32_t i : graph_.module().computations[computation].instructions) seconds += Seconds(i, roofline);
  return seconds;
}

double CostModel::Seconds(int32_t i, const Roofline& roofline) {
  if (hlo::IsGlue(graph_.op(i))) return 0;
  double seconds = 0;
  switch (graph_.op(i)) {
    case hlo::Op::kWhile: {
      for (const int32_t callee : graph_.called(i)) seconds += ComputationSeconds(callee, roofline);
      if (count_iterations_) seconds *= static_cast<double>(TripCount(graph_, i));
      break;
    }
    case hlo::Op::kConditional:
      for (const int32_t callee : graph_.called(i)) seconds = std::max(seconds, ComputationSeconds(callee, roofline));
      break;
    case hlo::Op::kCall:
    case hlo::Op::kAsyncStart:
      seconds = ComputationSeconds(graph_.called(i)[0], roofline);
      break;
    default: {
      const OpCost cost = Cost(i);
      seconds = std::max(cost.flops / roofline.flops_per_s + cost.transcendentals / roofline.transcendentals_per_s,
                         cost.bytes_accessed / roofline.bytes_per_s);
    }
  }
  return seconds + roofline.op_overhead_s;
}

}  // namespace coopjax
