#include "buffers/synchronous.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "hlo/async_distance.h"

namespace coopjax {
namespace {

constexpr std::string_view kCollectives[] = {"all-gather",           "all-reduce",         "all-to-all",
                                             "collective-broadcast", "collective-permute", "ragged-all-to-all",
                                             "reduce-scatter"};

bool IsCollectiveStart(const hlo::Graph& graph, int32_t i) {
  switch (graph.op(i)) {
    case hlo::Op::kAllGatherStart:
    case hlo::Op::kAllReduceStart:
    case hlo::Op::kCollectivePermuteStart:
      return true;
    case hlo::Op::kAsyncStart:
      return std::ranges::any_of(graph.module().computations[graph.called(i)[0]].instructions, [&](int32_t wrapped) {
        return std::ranges::find(kCollectives, graph.instruction(wrapped).opcode) != std::end(kCollectives);
      });
    default:
      return false;
  }
}

bool IsNothing(hlo::Op op) {
  return op == hlo::Op::kParameter || op == hlo::Op::kConstant || op == hlo::Op::kBitcast ||
         op == hlo::Op::kGetTupleElement;
}

}  // namespace

std::vector<Synchronous> FindSynchronous(const hlo::Graph& graph, std::span<const int32_t> sequence) {
  const hlo::Module& module = graph.module();
  std::vector<Synchronous> found;
  std::vector<std::vector<int32_t>> in_flight(module.computations.size());
  for (const int32_t i : sequence) {
    std::vector<int32_t>& starts = in_flight[graph.instruction(i).computation];
    const hlo::Instruction* instruction = hlo::StartOf(module, graph.instruction(i));
    const auto start = instruction ? static_cast<int32_t>(instruction - module.instructions.data()) : -1;
    if (IsCollectiveStart(graph, i)) {
      starts.push_back(i);
    } else if (start >= 0 && IsCollectiveStart(graph, start)) {
      if (std::erase(starts, start) == 0) continue;
      found.resize(graph.num_instructions());
      found[start] = {start, i};
      for (const int32_t callee : graph.called(start)) {
        for (const int32_t wrapped : module.computations[callee].instructions) found[wrapped] = {start, i};
      }
    } else if (!IsNothing(graph.op(i))) {
      starts.clear();
    }
  }
  return found;
}

}  // namespace coopjax
