#include "buffer_order.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "hlo_graph.h"
#include "hlo_opcode.h"

namespace coopjax {
namespace {

constexpr Node kNoNode = HloGraph::kNoNode;
constexpr int32_t kBeforeStart = -1;
constexpr int32_t kNotCalled = -2;

// Opcodes of which the table of hlo_opcode.h says nothing, and whose outputs are buffers of their own.
bool MakesOwnBuffers(std::string_view opcode) {
  static const std::unordered_set<std::string_view> names = {
      "all-gather", "all-to-all", "collective-broadcast", "dynamic-reshape", "get-dimension-size", "infeed", "outfeed",
      "partition-id", "recv", "reduce-scatter", "replica-id", "rng-get-and-update-state", "send-done"};
  return names.contains(opcode);
}

class BufferOrder {
 public:
  explicit BufferOrder(const HloModule& module) : module_(module), graph_(module) {}
  std::string Check();

 private:
  struct Write {
    Node buffer;
    int32_t step;
    int32_t instruction;  // of the entry computation
    auto operator<=>(const Write&) const = default;
  };

  std::string FindSteps();
  void FindForwarding(int32_t i);
  void ForwardTree(Node to, Node from);
  void FindValues(int32_t i);
  Node ForwardedByCallee(Node node) const;
  void JoinTrees(Node a, Node b);
  void JoinCallee(int32_t i);
  void JoinInPlace(int32_t i);
  std::string JoinParametersAndOutputs();
  Node InPlaceOperand(Node output) const;
  Node InPlaceFusionOperand(Node output) const;
  void FindWrites();
  std::string CheckRead(Node node, int32_t reader, int32_t step) const;

  Node OperandNode(int32_t i, int64_t number, int32_t offset) const;
  Node Follow(Node node) const;
  Node Buffer(Node node) const;
  int32_t StepOf(int32_t i) const;
  bool IsForwarding(int32_t i) const { return graph_.op(i) >= Op::kBitcast && graph_.op(i) <= Op::kDomain; }
  const Instruction& instruction(int32_t i) const { return graph_.instruction(i); }

  const HloModule& module_;
  const HloGraph graph_;
  std::vector<Node> forward_;         // [node] the operand's node whose buffer this is, within one computation
  std::vector<Node> value_;           // [node] the node that defined what is in the buffer
  mutable std::vector<Node> parent_;  // [node] union-find over values that share a buffer
  std::vector<int32_t> entry_step_;   // [instruction of the entry] position in the schedule
  std::vector<int32_t> caller_;       // [computation] the entry instruction under which it runs
  std::vector<Write> writes_;         // sorted
};

std::string BufferOrder::Check() {
  if (std::string fault = FindSteps(); !fault.empty()) return fault;
  forward_.assign(graph_.num_nodes(), kNoNode);
  value_.resize(graph_.num_nodes());
  parent_.resize(graph_.num_nodes());
  std::iota(value_.begin(), value_.end(), 0);
  std::iota(parent_.begin(), parent_.end(), 0);
  for (int32_t i = 0; i < graph_.num_instructions(); ++i) FindForwarding(i);
  // Callees stand before callers and operands before users: one pass is enough.
  for (int32_t i = 0; i < graph_.num_instructions(); ++i) FindValues(i);
  for (int32_t i = 0; i < graph_.num_instructions(); ++i) {
    if (!graph_.is_control_flow(instruction(i).computation)) continue;
    JoinCallee(i);
    JoinInPlace(i);
  }
  if (std::string fault = JoinParametersAndOutputs(); !fault.empty()) return fault;
  FindWrites();
  const int32_t root = graph_.root(module_.entry);
  const int32_t end = static_cast<int32_t>(module_.entry_computation().sequence.size());
  for (const int32_t i : module_.entry_computation().instructions) {
    if (i == root) {
      for (Node node = graph_.node_base(i); node < graph_.node_end(i); ++node) {
        if (std::string fault = CheckRead(node, i, end); !fault.empty()) return fault;
      }
    }
    if (IsForwarding(i)) continue;
    for (const int32_t operand : graph_.operands(i)) {
      for (Node node = graph_.node_base(operand); node < graph_.node_end(operand); ++node) {
        if (std::string fault = CheckRead(node, i, StepOf(i)); !fault.empty()) return fault;
      }
    }
  }
  return "";
}

// Whatever runs inside a loop, a branch or a call runs at the step of the entry instruction above it.
std::string BufferOrder::FindSteps() {
  entry_step_.assign(graph_.num_instructions(), kNotCalled);
  const auto sequence = graph_.sequence(module_.entry);
  for (int32_t step = 0; step < std::ssize(sequence); ++step) entry_step_[sequence[step]] = step;
  caller_.assign(module_.computations.size(), kNotCalled);
  for (int32_t c = static_cast<int32_t>(module_.computations.size()) - 1; c >= 0; --c) {
    if (!graph_.is_control_flow(c)) continue;
    for (const int32_t i : module_.computations[c].instructions) {
      if (!IsControlFlowCall(graph_.op(i))) continue;
      const bool starts_callee = graph_.op(i) != Op::kAsyncUpdate && graph_.op(i) != Op::kAsyncDone;
      for (const int32_t callee : graph_.called(i)) {
        if (!starts_callee) continue;
        if (caller_[callee] != kNotCalled) return "'" + module_.computations[callee].name + "' has two callers";
        caller_[callee] = c == module_.entry ? i : caller_[c];
      }
    }
  }
  return "";
}

void BufferOrder::ForwardTree(Node to, Node from) {
  if (to == kNoNode || from == kNoNode || graph_.subtree_size(to) != graph_.subtree_size(from)) return;
  for (int32_t k = 0; k < graph_.subtree_size(to); ++k) forward_[to + k] = from + k;
}

void BufferOrder::FindForwarding(int32_t i) {
  const auto operands = graph_.operands(i);
  if (operands.empty()) return;
  const Node to = graph_.node_base(i), from = graph_.node_base(operands[0]);
  const auto forward_operands = [&](Node tuple) {  // to the elements of a tuple, one operand each
    for (int32_t k = 0; k < std::ssize(operands); ++k) {
      ForwardTree(graph_.Child(tuple, k), graph_.node_base(operands[k]));
    }
  };
  switch (graph_.op(i)) {
    case Op::kBitcast: case Op::kOptimizationBarrier: case Op::kAddDependency: case Op::kDomain:
    case Op::kAsyncUpdate: case Op::kAllReduceDone:
      return ForwardTree(to, from);
    case Op::kGetTupleElement:
      return ForwardTree(to, graph_.Child(from, instruction(i).tuple_index));
    case Op::kTuple:
      return forward_operands(to);
    case Op::kCopyStart:
      return ForwardTree(graph_.Child(to, 1), from);
    case Op::kCopyDone:
      return ForwardTree(to, graph_.Child(from, 0));
    case Op::kSend:
      return ForwardTree(graph_.Child(to, 0), from);
    case Op::kRecvDone:
      return ForwardTree(graph_.Child(to, 0), graph_.Child(from, 0));
    case Op::kAsyncDone: case Op::kAllGatherDone: case Op::kCollectivePermuteDone:
      return ForwardTree(to, graph_.Child(from, 1));
    case Op::kAsyncStart: case Op::kAllGatherStart: case Op::kCollectivePermuteStart: {
      const Node first = graph_.Child(to, 0);
      if (first == kNoNode) return;
      return graph_.shape(first).is_tuple() && !graph_.shape(from).is_tuple() ? forward_operands(first)
                                                                               : ForwardTree(first, from);
    }
    default:
      return;
  }
}

void BufferOrder::FindValues(int32_t i) {
  const bool is_call = graph_.op(i) == Op::kWhile || graph_.op(i) == Op::kCall;
  for (Node node = graph_.node_base(i); node < graph_.node_end(i); ++node) {
    const Node from = is_call ? ForwardedByCallee(node) : forward_[node];
    if (from != kNoNode) value_[node] = value_[from];
  }
}

// What a loop's body hands on unchanged is what the loop was given, and so it is with a call.
Node BufferOrder::ForwardedByCallee(Node node) const {
  const int32_t i = graph_.owner(node);
  if (graph_.called(i).empty()) return kNoNode;
  const int32_t callee = graph_.called(i)[0];  // of a while loop the body; the condition follows
  const int32_t root = graph_.root(callee);
  const int32_t offset = node - graph_.node_base(i);
  if (graph_.node_end(root) - graph_.node_base(root) != graph_.node_end(i) - graph_.node_base(i)) return kNoNode;
  const Node result = value_[graph_.node_base(root) + offset];
  const int32_t source = graph_.owner(result);
  if (graph_.op(source) != Op::kParameter || instruction(source).computation != callee) return kNoNode;
  const int32_t source_offset = result - graph_.node_base(source);
  if (graph_.op(i) == Op::kWhile && source_offset != offset) return kNoNode;
  return OperandNode(i, instruction(source).parameter_number, source_offset);
}

// Joins the buffers of two trees of one form, leaf by leaf.
void BufferOrder::JoinTrees(Node a, Node b) {
  if (a == kNoNode || b == kNoNode || graph_.subtree_size(a) != graph_.subtree_size(b)) return;
  for (int32_t k = 0; k < graph_.subtree_size(a); ++k) parent_[Buffer(value_[a + k])] = Buffer(value_[b + k]);
}

void BufferOrder::JoinCallee(int32_t i) {
  const Op op = graph_.op(i);
  const bool is_async = op == Op::kAsyncStart;
  if (op != Op::kWhile && op != Op::kCall && op != Op::kConditional && !is_async) return;
  const Node output = is_async ? graph_.Child(graph_.node_base(i), 1) : graph_.node_base(i);
  const auto called = graph_.called(i);
  for (int32_t c = 0; c < std::ssize(called); ++c) {
    const int32_t first_operand = op == Op::kConditional ? c + 1 : 0;
    const int32_t num_parameters = op == Op::kConditional || op == Op::kWhile ? 1 : std::ssize(graph_.operands(i));
    for (int32_t number = 0; number < num_parameters; ++number) {
      const int32_t parameter = graph_.parameter(called[c], number);
      if (parameter >= 0) JoinTrees(graph_.node_base(parameter), OperandNode(i, first_operand + number, 0));
    }
    if (op == Op::kWhile && c > 0) continue;  // the condition's result is nobody's buffer
    JoinTrees(graph_.node_base(graph_.root(called[c])), output);
  }
  if (op == Op::kWhile) JoinTrees(output, OperandNode(i, 0, 0));
}

void BufferOrder::JoinInPlace(int32_t i) {
  for (Node node = graph_.node_base(i); node < graph_.node_end(i); ++node) {
    const Node operand = InPlaceOperand(node);
    if (operand != kNoNode) parent_[Buffer(value_[node])] = Buffer(value_[operand]);
  }
}

std::string BufferOrder::JoinParametersAndOutputs() {
  for (const InputOutputAlias& alias : module_.input_output_aliases) {
    const int32_t parameter = graph_.parameter(module_.entry, alias.parameter_number);
    const Node input = parameter < 0 ? kNoNode : graph_.NodeAt(parameter, alias.parameter_index);
    const Node output = graph_.NodeAt(graph_.root(module_.entry), alias.output_index);
    if (input == kNoNode || output == kNoNode) return "an aliased parameter or output does not exist";
    parent_[Buffer(value_[output])] = Buffer(value_[input]);
  }
  return "";
}

// The operand's node whose buffer the output's node `output` overwrites; kNoNode when it has its own.
Node BufferOrder::InPlaceOperand(Node output) const {
  const int32_t i = graph_.owner(output);
  const int32_t offset = output - graph_.node_base(i);
  const int32_t num_operands = static_cast<int32_t>(graph_.operands(i).size());
  for (const auto& alias : instruction(i).output_operand_aliasing) {
    if (graph_.NodeAt(i, alias.output_index) != output) continue;
    if (alias.operand_number < 0 || alias.operand_number >= num_operands) continue;
    return graph_.NodeAt(graph_.operands(i)[alias.operand_number], alias.operand_index);
  }
  switch (graph_.op(i)) {
    case Op::kDynamicUpdateSlice: case Op::kSetDimensionSize:
      return OperandNode(i, 0, offset);
    case Op::kScatter: case Op::kAllReduceStart: {
      // One operand and an array, or n operands and a tuple of n arrays.
      const int32_t num_in_place = graph_.op(i) == Op::kScatter ? num_operands / 2 : num_operands;
      if (num_in_place == 1) return OperandNode(i, 0, offset);
      return offset >= 1 && offset <= num_in_place ? OperandNode(i, offset - 1, 0) : kNoNode;
    }
    case Op::kRaggedAllToAll:
      return OperandNode(i, 1, offset);
    case Op::kCollectivePermute: case Op::kCollectivePermuteStart: {
      if (num_operands != 4) return kNoNode;  // only this form writes into an operand, the second
      const Node target = graph_.op(i) == Op::kCollectivePermute ? graph_.node_base(i) : graph_.Child(graph_.node_base(i), 1);
      return target == kNoNode || output < target ? kNoNode : OperandNode(i, 1, output - target);
    }
    case Op::kFusion:
      return InPlaceFusionOperand(output);
    default:
      return kNoNode;
  }
}

// A fusion whose output is made in place from one of its parameters, inner fusions looked through.
Node BufferOrder::InPlaceFusionOperand(Node output) const {
  const int32_t fusion = graph_.owner(output);
  if (graph_.called(fusion).empty()) return kNoNode;
  const int32_t root = graph_.root(graph_.called(fusion)[0]);
  const Node result = graph_.node_base(root) + (output - graph_.node_base(fusion));
  if (result >= graph_.node_end(root)) return kNoNode;
  Node source = InPlaceOperand(Follow(result));
  if (source == kNoNode) return kNoNode;
  source = Follow(source);
  if (graph_.op(graph_.owner(source)) == Op::kFusion) {
    const Node inner = InPlaceOperand(source);
    if (inner != kNoNode) source = Follow(inner);
  }
  const int32_t parameter = graph_.owner(source);
  if (graph_.op(parameter) != Op::kParameter) return kNoNode;
  return OperandNode(fusion, instruction(parameter).parameter_number, source - graph_.node_base(parameter));
}

void BufferOrder::FindWrites() {
  for (int32_t i = 0; i < graph_.num_instructions(); ++i) {
    const int32_t step = StepOf(i);
    if (step == kNotCalled || step == kBeforeStart || graph_.op(i) == Op::kConstant) continue;
    const int32_t computation = instruction(i).computation;
    const int32_t writer = computation == module_.entry ? i : caller_[computation];
    for (Node node = graph_.node_base(i); node < graph_.node_end(i); ++node) {
      if (value_[node] == node) writes_.push_back({Buffer(node), step, writer});
    }
    if (graph_.op(i) != Op::kOther || graph_.opcode(i).is_pure || MakesOwnBuffers(instruction(i).opcode)) continue;
    // An opcode without a known rule may write into its operands.
    for (const int32_t operand : graph_.operands(i)) {
      for (Node node = graph_.node_base(operand); node < graph_.node_end(operand); ++node) {
        writes_.push_back({Buffer(value_[node]), step, writer});
      }
    }
  }
  std::ranges::sort(writes_);
}

// The value at `node` is read by `reader` at `step`: nothing may have overwritten it since it was made.
std::string BufferOrder::CheckRead(Node node, int32_t reader, int32_t step) const {
  const Node value = value_[node];
  const int32_t definer = graph_.owner(value);
  const Write earliest = {Buffer(value), StepOf(definer) + 1, 0};
  const auto write = std::ranges::lower_bound(writes_, earliest);
  if (write == writes_.end() || write->buffer != earliest.buffer || write->step >= step) return "";
  return "'" + instruction(reader).name + "' reads '" + instruction(definer).name + "' after '" +
         instruction(write->instruction).name + "' has overwritten its buffer";
}

// A node of an operand; kNoNode when there is no such operand or node.
Node BufferOrder::OperandNode(int32_t i, int64_t number, int32_t offset) const {
  const auto operands = graph_.operands(i);
  if (number < 0 || number >= std::ssize(operands)) return kNoNode;
  const Node node = graph_.node_base(operands[number]) + offset;
  return offset >= 0 && node < graph_.node_end(operands[number]) ? node : kNoNode;
}

Node BufferOrder::Follow(Node node) const {
  while (forward_[node] != kNoNode) node = forward_[node];
  return node;
}

Node BufferOrder::Buffer(Node node) const {
  while (parent_[node] != node) node = parent_[node] = parent_[parent_[node]];
  return node;
}

// Entry parameters are there before the start; parameters of callees hold what the caller gave.
int32_t BufferOrder::StepOf(int32_t i) const {
  const int32_t computation = instruction(i).computation;
  if (graph_.op(i) == Op::kParameter) return computation == module_.entry ? kBeforeStart : kNotCalled;
  if (computation == module_.entry) return entry_step_[i];
  return caller_[computation] == kNotCalled ? kNotCalled : entry_step_[caller_[computation]];
}

}  // namespace

std::string CheckBufferOrder(const HloModule& module) { return BufferOrder(module).Check(); }

}  // namespace coopjax
