#include "hlo/graph_check.h"

#include <algorithm>
#include <iterator>

namespace coopjax::hlo {
namespace {

// Checks one instruction at a time; true means that it is as its opcode demands.
class Checker {
 public:
  explicit Checker(const Graph& graph) : graph_(graph) {}

  bool IsWellFormed(int32_t i) const {
    const auto operands = graph_.operands(i);
    const auto num_operands = std::ssize(operands);
    switch (graph_.op(i)) {
      case Op::kParameter:
        return graph_.parameter(graph_.instruction(i).computation, graph_.instruction(i).parameter_number) == i;
      case Op::kBitcast:
      case Op::kDomain:
      case Op::kOptimizationBarrier:
      case Op::kCopy:
      case Op::kAllReduceDone:
      case Op::kAddDependency:
      case Op::kAsyncUpdate:
        return num_operands >= 1 && SameTree(operands[0], i);
      case Op::kGetTupleElement:
        return num_operands == 1 && IsElement(i, operands[0]);
      case Op::kTuple:
        return IsTupleOfOperands(i);
      case Op::kWhile:
        return num_operands == 1 && IsLoop(i);
      case Op::kAsyncStart:
        return num_operands >= 1 && NumCalled(i) == 1 && Takes(Callee(i, 0), operands);
      case Op::kCall:
      case Op::kFusion:
        return NumCalled(i) == 1 && Takes(Callee(i, 0), operands) && SameTree(graph_.root(Callee(i, 0)), i);
      case Op::kConditional:
        return IsConditional(i);
      case Op::kDynamicUpdateSlice:
        return num_operands >= 2 && SameTree(operands[0], i);
      case Op::kScatter:
        return num_operands >= 3 && num_operands % 2 == 1 && NumCalled(i) == 1;
      case Op::kRaggedAllToAll:
      case Op::kDot:
      case Op::kConvolution:
      case Op::kGather:
      case Op::kTriangularSolve:
      case Op::kAdd:
        return num_operands >= 2;
      case Op::kSelectAndScatter:
        return num_operands >= 2 && NumCalled(i) == 2;
      case Op::kReduce:
      case Op::kReduceWindow:
      case Op::kMap:
        return num_operands >= 1 && NumCalled(i) == 1;
      case Op::kAsyncDone:
      case Op::kCopyStart:
      case Op::kCopyDone:
      case Op::kSend:
      case Op::kRecvDone:
      case Op::kAllGatherStart:
      case Op::kAllGatherDone:
      case Op::kAllReduceStart:
      case Op::kCollectivePermuteStart:
      case Op::kCollectivePermuteDone:
      case Op::kSetDimensionSize:
      case Op::kSort:
      case Op::kSlice:
      case Op::kDynamicSlice:
      case Op::kBroadcast:
      case Op::kReshape:
      case Op::kTranspose:
      case Op::kFft:
      case Op::kBitcastConvert:
      case Op::kAllReduce:
      case Op::kCollectivePermute:
        return num_operands >= 1;
      default:
        return true;
    }
  }

 private:
  int64_t NumCalled(int32_t i) const { return std::ssize(graph_.called(i)); }
  int32_t Callee(int32_t i, int32_t number) const { return graph_.called(i)[number]; }

  // Equal shape trees, arrays apart (a bitcast changes those).
  bool SameTree(Node a, Node b, int32_t size) const {
    for (int32_t k = 0; k < size; ++k) {
      if (graph_.shape(a + k).is_tuple() != graph_.shape(b + k).is_tuple()) return false;
      if (graph_.subtree_size(a + k) != graph_.subtree_size(b + k)) return false;
    }
    return true;
  }
  bool SameTree(int32_t a, int32_t b) const {
    if (a < 0 || b < 0) return false;
    return SameTree(graph_.node_base(a), graph_.node_base(b), graph_.subtree_size(graph_.node_base(a)));
  }

  bool IsElement(int32_t i, int32_t tuple) const {
    const Node element = graph_.Child(graph_.node_base(tuple), graph_.instruction(i).tuple_index);
    return element != Graph::kNoNode && SameTree(element, graph_.node_base(i), graph_.subtree_size(element));
  }

  bool IsTupleOfOperands(int32_t i) const {
    const auto operands = graph_.operands(i);
    if (!graph_.instruction(i).shape->is_tuple()) return false;
    if (operands.size() != graph_.instruction(i).shape->tuple_shapes.size()) return false;
    Node element = graph_.node_base(i) + 1;
    for (const int32_t operand : operands) {
      if (!SameTree(element, graph_.node_base(operand), graph_.subtree_size(element))) return false;
      element += graph_.subtree_size(element);
    }
    return true;
  }

  bool Takes(int32_t computation, std::span<const int32_t> operands) const {
    for (int32_t number = 0; number < std::ssize(operands); ++number) {
      if (!SameTree(operands[number], graph_.parameter(computation, number))) return false;
    }
    return graph_.parameter(computation, std::ssize(operands)) < 0;
  }

  bool IsLoop(int32_t i) const {
    if (NumCalled(i) != 2) return false;
    const auto operands = graph_.operands(i);
    return Takes(Callee(i, 0), operands) && Takes(Callee(i, 1), operands) && SameTree(operands[0], i) &&
           SameTree(graph_.root(Callee(i, 0)), i);
  }

  bool IsConditional(int32_t i) const {
    const auto operands = graph_.operands(i);
    if (NumCalled(i) < 1 || NumCalled(i) + 1 != std::ssize(operands)) return false;
    for (int32_t branch = 0; branch < NumCalled(i); ++branch) {
      if (!Takes(Callee(i, branch), operands.subspan(branch + 1, 1))) return false;
      if (!SameTree(graph_.root(Callee(i, branch)), i)) return false;
    }
    return true;
  }

  const Graph& graph_;
};

// A loop body or branch with two callers makes XLA itself abort.
bool HasOneCaller(const Graph& graph, int32_t computation) {
  int num_callers = 0;
  for (const int32_t caller : graph.callers(computation)) {
    if (graph.op(caller) == Op::kWhile || graph.op(caller) == Op::kConditional) num_callers += 1;
    if (graph.op(caller) == Op::kCall) num_callers += 1;
  }
  return num_callers <= 1;
}

}  // namespace

std::string CheckGraph(const Graph& graph) {
  if (!graph.callers(graph.module().entry).empty()) return "the entry computation is called";
  const Checker checker(graph);
  for (int32_t i = 0; i < graph.num_instructions(); ++i) {
    const Instruction& instruction = graph.instruction(i);
    if (!graph.is_dropped(i) && !checker.IsWellFormed(i)) {
      return Quoted(instruction.name) + " is not a well-formed " + std::string(instruction.opcode);
    }
  }
  for (int32_t c = 0; c < std::ssize(graph.module().computations); ++c) {
    if (!graph.is_control_flow(c)) continue;
    const std::string_view name = graph.module().computations[c].name;
    if (graph.sequence(c).empty()) return "computation " + Quoted(name) + " has no schedule";
    if (!HasOneCaller(graph, c)) return "computation " + Quoted(name) + " has several callers";
  }
  return "";
}

}  // namespace coopjax::hlo
