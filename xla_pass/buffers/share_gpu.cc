#include "buffers/share_gpu.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "buffers/share.h"

namespace coopjax {
namespace {

class FusionWalk {
 public:
  FusionWalk(const hlo::Graph& graph, int32_t fusion, hlo::Node result)
      : graph_(graph), root_(graph.root(graph.called(fusion)[0])), element_(graph.PathOf(result)) {
    output_ = root_;
    for (const int64_t index : element_) {
      if (graph_.op(output_) != hlo::Op::kTuple) break;
      output_ = graph_.operands(output_)[index];
    }
    writer_ = WithoutBitcast(output_);
    if (graph.instruction(fusion).fusion_kind != "kInput") return;
    for (const int32_t root : Roots()) {
      if (graph_.op(WithoutBitcast(root)) == hlo::Op::kReduce && reduction_ < 0) reduction_ = WithoutBitcast(root);
    }
  }

  bool MayOverwrite(int32_t parameter) {
    reached_ = {parameter};
    for (size_t next = 0; next < reached_.size(); ++next) {
      const int32_t value = reached_[next];
      if (value == reduction_) continue;  // is done before anything else is written
      for (const int32_t user : graph_.users(value)) {
        if (std::ranges::find(reached_, user) == reached_.end()) reached_.push_back(user);
        if (!ReadsInOrder(user, value)) return false;
      }
    }
    return IsReached(output_) && !ReachesAnotherOrder();
  }

 private:
  int32_t WithoutBitcast(int32_t i) const { return graph_.op(i) == hlo::Op::kBitcast ? graph_.operands(i)[0] : i; }
  bool IsReached(int32_t i) const { return std::ranges::find(reached_, i) != reached_.end(); }
  std::vector<int32_t> Roots() const {
    if (graph_.op(root_) != hlo::Op::kTuple) return {root_};
    return {graph_.operands(root_).begin(), graph_.operands(root_).end()};
  }

  bool ReadsInOrder(int32_t user, int32_t value) const {
    const auto operands = graph_.operands(user);
    const auto number = static_cast<int32_t>(std::ranges::find(operands, value) - operands.begin());
    const bool is_only_once = std::ranges::count(operands, value) == 1;
    const hlo::Op op = graph_.op(user);
    if (user == writer_ && is_only_once) {
      if (op == hlo::Op::kScatter && number < std::ssize(operands) / 2) return true;
      if (op == hlo::Op::kSort) return element_ == std::vector<int64_t>{number};
    }
    if (ReadsWhatIsUpdated(user)) return ReadsTheSameSlice(user);
    if (op == hlo::Op::kBitcast || op == hlo::Op::kTuple || user == reduction_) return true;
    if (op != hlo::Op::kCopy && IsElementwiseOnOperand(graph_, user, number)) return true;
    return user == writer_ && op == hlo::Op::kDynamicUpdateSlice && number == 1;
  }

  // A slice, of the update's shape, of the very array that the result updates.
  bool ReadsWhatIsUpdated(int32_t user) const {
    if (graph_.op(writer_) != hlo::Op::kDynamicUpdateSlice || graph_.op(user) != hlo::Op::kDynamicSlice) return false;
    const hlo::Shape& slice = *graph_.instruction(user).shape;
    const hlo::Shape& update = *graph_.instruction(graph_.operands(writer_)[1]).shape;
    return graph_.operands(writer_)[0] == graph_.operands(user)[0] && slice.element_type == update.element_type &&
           slice.dimensions == update.dimensions;
  }
  bool ReadsTheSameSlice(int32_t user) const {
    if (graph_.instruction(user).shape->num_elements() == 1) return true;
    return std::ranges::equal(graph_.operands(user).subspan(1), graph_.operands(writer_).subspan(2));
  }

  // Another result is made of the operand, in an order that is not the one of this result.
  bool ReachesAnotherOrder() const {
    bool reaches_another = false, is_transposed = false;
    for (const int32_t root : Roots()) {
      if (!IsReached(root)) continue;
      const hlo::Op op = graph_.op(WithoutBitcast(root));
      reaches_another |= root != output_;
      is_transposed |= op == hlo::Op::kTranspose || op == hlo::Op::kCopy;
    }
    return reaches_another && (is_transposed || !graph_.opcode(writer_).is_elementwise);
  }

  const hlo::Graph& graph_;
  const int32_t root_;
  const std::vector<int64_t> element_;
  int32_t output_ = -1;     // what makes the result, in the fused computation
  int32_t writer_ = -1;     // the same behind a bitcast
  int32_t reduction_ = -1;
  std::vector<int32_t> reached_;
};

}  // namespace

bool CanGpuFusionShare(const hlo::Graph& graph, hlo::Node operand, hlo::Node result) {
  const hlo::Shape& from = graph.shape(operand);
  const hlo::Shape& to = graph.shape(result);
  if (!from.is_array() || !to.is_array()) return false;
  if (from.num_elements() != to.num_elements() || from.byte_size() != to.byte_size()) return false;
  const int32_t fusion = graph.owner(result);
  const auto operands = graph.operands(fusion);
  const auto number = std::ranges::find(operands, graph.owner(operand)) - operands.begin();
  const int32_t parameter = graph.parameter(graph.called(fusion)[0], number);
  return parameter >= 0 && FusionWalk(graph, fusion, result).MayOverwrite(parameter);
}

}  // namespace coopjax
