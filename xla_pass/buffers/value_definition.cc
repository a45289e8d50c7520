#include "buffers/value_definition.h"

namespace coopjax {

bool DefinesValueAt(const hlo::Graph& graph, hlo::Node node) {
  const int32_t i = graph.owner(node);
  const hlo::Node base = graph.node_base(i);
  const bool is_tuple = graph.shape(node).is_tuple();
  const auto in_element = [&](int64_t element) {
    const hlo::Node child = graph.Child(base, element);
    return child != hlo::Graph::kNoNode && node >= child && node < child + graph.subtree_size(child);
  };
  switch (graph.op(i)) {
    case hlo::Op::kParameter:
      return graph.callers(graph.instruction(i).computation).empty();
    case hlo::Op::kBitcast:
    case hlo::Op::kAddDependency:
    case hlo::Op::kWhile:
    case hlo::Op::kCall:
    case hlo::Op::kConditional:
    case hlo::Op::kGetTupleElement:
    case hlo::Op::kDomain:
    case hlo::Op::kOptimizationBarrier:
    case hlo::Op::kCopyDone:
    case hlo::Op::kAllReduceDone:
      return false;
    case hlo::Op::kCopy:
    case hlo::Op::kTuple:
      return node == base;
    case hlo::Op::kAsyncStart:
      return is_tuple || (!in_element(0) && !in_element(1));
    case hlo::Op::kAsyncUpdate:
    case hlo::Op::kAsyncDone:
    case hlo::Op::kAllGatherDone:
    case hlo::Op::kCollectivePermuteDone:
      return is_tuple;
    case hlo::Op::kCopyStart:
      return !in_element(1);
    case hlo::Op::kAllGatherStart:
    case hlo::Op::kCollectivePermuteStart:
      return is_tuple || !in_element(0);
    case hlo::Op::kSend:
    case hlo::Op::kRecvDone:
      return !in_element(0);
    default:
      return true;
  }
}

}  // namespace coopjax
