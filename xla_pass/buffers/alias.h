// Which values must share a buffer, and which may.
//
// An alias buffer is a set of values that live at one address: an in-place operation's operand and
// result, a loop's initial value, body parameter, body result and final value, a donated parameter and
// its output. Facts after xla/hlo/analysis/alias_info.cc, hlo_alias_analysis.cc and, for the sharing of
// a dying operand, HloDataflowAnalysis::CanShareOperandBufferWithUser. XLA:CPU adds no rule of its own,
// XLA:GPU one for fusions.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/csr.h"
#include "buffers/dataflow.h"
#include "buffers/platform.h"
#include "buffers/share.h"

namespace coopjax {

class HloAlias {
 public:
  // `dataflow` must outlive the analysis.
  explicit HloAlias(const HloDataflow& dataflow);

  const HloDataflow& dataflow() const { return dataflow_; }
  const hlo::Graph& graph() const { return dataflow_.graph(); }
  const HeapRules& rules() const { return rules_; }
  int32_t num_buffers() const { return buffers_.num_rows(); }
  int32_t buffer_of(int32_t value) const { return buffer_of_[value]; }
  std::span<const int32_t> values(int32_t buffer) const { return buffers_[buffer]; }  // by ascending id
  bool lives_out(int32_t buffer) const { return lives_out_[buffer]; }
  // Of the device's main memory; 0 for values elsewhere.
  int64_t value_bytes(int32_t value) const { return value_bytes_[value]; }
  int64_t buffer_bytes(int32_t buffer) const { return buffer_bytes_[buffer]; }   // of its largest value
  // All values of a buffer are in the same memory.
  bool is_in_main_memory(int32_t buffer) const {
    return rules_.IsInMainMemory(graph().shape(dataflow_.definition(values(buffer)[0])));
  }
  // The buffers as XLA takes them: larger ones first, then live-out ones, then by first definition, then by number.
  const std::vector<int32_t>& largest_first() const { return largest_first_; }
  // The same where each instruction stands in the place of `place_of` it.
  std::vector<int32_t> LargestFirst(const std::function<int32_t(int32_t)>& place_of) const;
  // Whether input_output_alias gives the parameter at this node to an output (a donation).
  bool is_donated(hlo::Node parameter_node) const { return is_donated_[parameter_node]; }

  // Whether the result at `user_node` may take the buffer of its operand at `operand_node` when that
  // value dies at the user. The user must have the owner of `operand_node` among its operands.
  bool CanShareOperandBuffer(hlo::Node operand_node, hlo::Node user_node) const;

 private:
  void MergeValues();
  void FindInPlacePairs();
  void MeasureBytes();
  void NumberInstructions();
  std::span<const InPlacePair> in_place(int32_t instruction) const {
    const auto first = in_place_.begin() + in_place_offsets_[instruction];
    return {first, in_place_.begin() + in_place_offsets_[instruction + 1]};
  }
  std::vector<int32_t> MustShare(int32_t value) const;
  void AddOutputAliases(int32_t value, std::vector<int32_t>* shared) const;
  void AddControlFlowAliases(int32_t value, std::vector<int32_t>* shared) const;
  void AddInPlaceAliases(int32_t value, std::vector<int32_t>* shared) const;
  bool MustShareOperandBuffer(hlo::Node operand_node, hlo::Node user_node) const;

  const HloDataflow& dataflow_;
  const HeapRules rules_;
  std::vector<InPlacePair> in_place_;
  std::vector<int32_t> in_place_offsets_;           // [instruction]
  std::vector<hlo::Node> aliased_parameter_;             // [node of the entry root]; kNoNode: none
  std::vector<uint8_t> is_donated_;                 // [node]
  std::vector<int32_t> buffer_of_;
  Csr buffers_;
  std::vector<int64_t> value_bytes_;
  std::vector<int64_t> buffer_bytes_;               // [buffer]
  std::vector<uint8_t> lives_out_;
  std::vector<int32_t> position_;                   // [instruction], in XLA's post-order of the whole program
  std::vector<int32_t> largest_first_;
};

}  // namespace coopjax
