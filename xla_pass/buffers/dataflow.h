// Which value every position of the program holds: XLA's dataflow analysis in SSA form.
//
// A value is defined once, at a node of an instruction's shape tree, and shows at other nodes where
// tuples, bitcasts, calls and the like forward it. Where control flow joins (`while`, `conditional`,
// the parameters of a loop body) different values meet in a phi, which is a value of its own; a loop
// element that no iteration changes keeps the value it came in with.
// Facts after xla/hlo/analysis/hlo_dataflow_analysis.cc and xla/service/hlo_phi_graph.cc. Ids grow in
// XLA's order of creation, because its heap breaks ties by them. One difference: a position holds one
// value; where XLA keeps a set (a computation with several callers) there is a phi.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "hlo/graph.h"

namespace coopjax {

class HloDataflow {
 public:
  static constexpr int32_t kNoValue = -1;

  explicit HloDataflow(const hlo::Graph& graph);

  const hlo::Graph& graph() const { return graph_; }
  int32_t num_values() const { return static_cast<int32_t>(definitions_.size()); }
  // kNoValue outside control-flow computations (inside fusions, reducers ...).
  int32_t value_at(hlo::Node node) const { return value_at_[node]; }
  hlo::Node definition(int32_t value) const { return definitions_[value]; }
  int32_t defining_instruction(int32_t value) const { return graph_.owner(definitions_[value]); }
  // The nodes that show the value, the definition first.
  std::span<const hlo::Node> positions(int32_t value) const { return positions_[value]; }
  // Whether the value stands somewhere in the entry computation's result.
  bool lives_out(int32_t value) const { return lives_out_[value]; }

  // Calls `visit(user, operand number, node of the operand that shows the value)` for every use.
  // Passing a value through (tuple, get-tuple-element of another element) is no use, except at the
  // root of a computation.
  using UseVisitor = std::function<void(int32_t user, int32_t operand_number, hlo::Node node)>;
  void ForEachUse(int32_t value, const UseVisitor& visit) const;

 private:
  const hlo::Graph& graph_;
  std::vector<int32_t> value_at_;      // [node]
  std::vector<hlo::Node> definitions_;      // [value]
  Csr positions_;                      // [value]
  std::vector<uint8_t> lives_out_;     // [value]
};

}  // namespace coopjax
