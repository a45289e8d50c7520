#include "verify/buffer_order.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <vector>

#include "hlo/opcode.h"
#include "verify/alias_rules.h"
#include "verify/shape_nodes.h"

namespace coopjax::verify {
namespace {

constexpr int32_t kBeforeStart = -1;
constexpr int32_t kNotCalled = -2;

class BufferOrder {
 public:
  explicit BufferOrder(const hlo::Module& module) : module_(module), nodes_(module), rules_(nodes_) {}
  std::string Check();

 private:
  struct Write {
    ShapeNode buffer;
    int32_t step;
    int32_t instruction;  // of the computation in question
    auto operator<=>(const Write&) const = default;
  };

  std::string FindCallers();
  void FindValues(int32_t i);
  ShapeNode ForwardedByCallees(ShapeNode node) const;
  ShapeNode ForwardedByCallee(ShapeNode node, int32_t number, int32_t first_operand) const;
  void JoinTrees(ShapeNode a, ShapeNode b);
  void JoinCallee(int32_t i);
  void JoinInPlace(int32_t i);
  std::string JoinParametersAndOutputs();
  std::string CheckComputation(int32_t computation);
  void FindSteps(int32_t computation);
  void FindWrites(int32_t computation, int32_t caller);
  std::string CheckReads(int32_t tree, int32_t reader, int32_t step) const;
  std::string CheckRead(ShapeNode node, int32_t reader, int32_t step) const;

  ShapeNode Buffer(ShapeNode node) const;
  // Whether the computation is the entry or called from it by a loop, a branch or a call. (Fusions and
  // reducers have no buffers of their own.)
  bool Runs(int32_t computation) const { return computation == module_.entry || callers_[computation] != kNotCalled; }
  static bool IsCall(hlo::Op op) {
    return op == hlo::Op::kWhile || op == hlo::Op::kCall || op == hlo::Op::kConditional || op == hlo::Op::kAsyncStart;
  }
  bool IsForwarding(int32_t i) const { return nodes_.op(i) >= hlo::Op::kBitcast && nodes_.op(i) <= hlo::Op::kDomain; }
  const hlo::Instruction& instruction(int32_t i) const { return nodes_.instruction(i); }

  const hlo::Module& module_;
  const ShapeNodes nodes_;
  const AliasRules rules_;
  std::vector<ShapeNode> value_;           // [node] the node that defined what is in the buffer
  mutable std::vector<ShapeNode> parent_;  // [node] union-find over values that share a buffer
  std::vector<int32_t> callers_;           // [computation] the instruction that runs it
  // Of the computation in question.
  std::vector<int32_t> step_;              // [instruction of it] position in its schedule
  std::vector<Write> writes_;              // sorted
};

std::string BufferOrder::Check() {
  if (std::string fault = FindCallers(); !fault.empty()) return fault;
  value_.resize(nodes_.num_nodes());
  parent_.resize(nodes_.num_nodes());
  std::iota(value_.begin(), value_.end(), 0);
  std::iota(parent_.begin(), parent_.end(), 0);
  // Callees stand before callers and operands before users: one pass is enough.
  for (int32_t i = 0; i < nodes_.num_instructions(); ++i) FindValues(i);
  for (int32_t i = 0; i < nodes_.num_instructions(); ++i) {
    if (!Runs(instruction(i).computation)) continue;
    JoinCallee(i);
    JoinInPlace(i);
  }
  if (std::string fault = JoinParametersAndOutputs(); !fault.empty()) return fault;
  step_.resize(nodes_.num_instructions());
  for (int32_t c = 0; c < std::ssize(module_.computations); ++c) {
    if (!Runs(c)) continue;
    if (std::string fault = CheckComputation(c); !fault.empty()) return fault;
  }
  return "";
}

std::string BufferOrder::FindCallers() {
  callers_.assign(module_.computations.size(), kNotCalled);
  for (int32_t c = module_.entry; c >= 0; --c) {  // callers stand behind their callees
    if (!Runs(c)) continue;
    for (const int32_t i : module_.computations[c].instructions) {
      if (!IsCall(nodes_.op(i))) continue;
      for (const int32_t callee : nodes_.called(i)) {
        if (callers_[callee] != kNotCalled) return hlo::Quoted(module_.computations[callee].name) + " has two callers";
        callers_[callee] = i;
      }
    }
  }
  return "";
}

std::string BufferOrder::CheckComputation(int32_t c) {
  const hlo::Computation& computation = module_.computations[c];
  if (computation.sequence.empty()) return "";  // XLA orders it later
  FindSteps(c);
  writes_.clear();
  FindWrites(c, kNotCalled);
  std::ranges::sort(writes_);
  for (const int32_t i : computation.instructions) {
    if (IsForwarding(i)) continue;
    for (const int32_t operand : nodes_.operands(i)) {
      if (std::string fault = CheckReads(operand, i, step_[i]); !fault.empty()) return fault;
    }
  }
  const int32_t end = static_cast<int32_t>(computation.sequence.size());
  const int32_t root = nodes_.root(c);
  if (std::string fault = CheckReads(root, root, end); !fault.empty()) return fault;
  // A loop's state is read by the body once the condition is through.
  const bool is_condition =
      c != module_.entry && nodes_.op(callers_[c]) == hlo::Op::kWhile && nodes_.called(callers_[c])[0] != c;
  const int32_t state = is_condition ? nodes_.parameter(c, 0) : -1;
  return state < 0 ? "" : CheckReads(state, callers_[c], end);
}

// Parameters are there before the start.
void BufferOrder::FindSteps(int32_t c) {
  int32_t step = 0;
  for (const int64_t id : module_.computations[c].sequence) {
    const int32_t i = module_.instruction_index.Find(id);
    step_[i] = nodes_.op(i) == hlo::Op::kParameter ? kBeforeStart : step;
    ++step;
  }
}

void BufferOrder::FindValues(int32_t i) {
  const bool is_call = IsCall(nodes_.op(i)) && nodes_.op(i) != hlo::Op::kAsyncStart;
  for (ShapeNode node = nodes_.first(i); node < nodes_.end(i); ++node) {
    const ShapeNode from = is_call ? ForwardedByCallees(node) : rules_.forwarded(node);
    if (from != kNoNode) value_[node] = value_[from];
  }
}

// What a loop's body hands on unchanged is what the loop was given. So it is with a call, and with a conditional whose
// branches all hand on the same.
ShapeNode BufferOrder::ForwardedByCallees(ShapeNode node) const {
  const int32_t i = nodes_.owner(node);
  if (nodes_.op(i) != hlo::Op::kConditional) return ForwardedByCallee(node, 0, 0);  // of a loop, the body
  ShapeNode forwarded = kNoNode;
  for (int32_t branch = 0; branch < std::ssize(nodes_.called(i)); ++branch) {
    const ShapeNode from = ForwardedByCallee(node, branch, branch + 1);
    const bool is_same = branch == 0 || (from != kNoNode && value_[from] == value_[forwarded]);
    if (from == kNoNode || !is_same) return kNoNode;
    forwarded = from;
  }
  return forwarded;
}

// The operand's node that a callee hands on as the caller's result. Its parameters are the operands from
// `first_operand` on.
ShapeNode BufferOrder::ForwardedByCallee(ShapeNode node, int32_t number, int32_t first_operand) const {
  const int32_t i = nodes_.owner(node);
  if (nodes_.called(i).empty()) return kNoNode;
  const int32_t callee = nodes_.called(i)[number];
  const int32_t root = nodes_.root(callee);
  const int32_t offset = node - nodes_.first(i);
  if (nodes_.end(root) - nodes_.first(root) != nodes_.end(i) - nodes_.first(i)) return kNoNode;
  const ShapeNode result = value_[nodes_.first(root) + offset];
  const int32_t source = nodes_.owner(result);
  if (nodes_.op(source) != hlo::Op::kParameter || instruction(source).computation != callee) return kNoNode;
  const int32_t source_offset = result - nodes_.first(source);
  if (nodes_.op(i) == hlo::Op::kWhile && source_offset != offset) return kNoNode;
  const auto operand = static_cast<int32_t>(first_operand + instruction(source).parameter_number);
  return nodes_.OperandNode(i, operand, source_offset);
}

// Joins the buffers of two trees of one form, leaf by leaf.
void BufferOrder::JoinTrees(ShapeNode a, ShapeNode b) {
  if (a == kNoNode || b == kNoNode || nodes_.subtree_size(a) != nodes_.subtree_size(b)) return;
  for (int32_t k = 0; k < nodes_.subtree_size(a); ++k) parent_[Buffer(value_[a + k])] = Buffer(value_[b + k]);
}

void BufferOrder::JoinCallee(int32_t i) {
  const hlo::Op op = nodes_.op(i);
  const bool is_async = op == hlo::Op::kAsyncStart;
  if (op != hlo::Op::kWhile && op != hlo::Op::kCall && op != hlo::Op::kConditional && !is_async) return;
  const ShapeNode output = is_async ? nodes_.Child(nodes_.first(i), 1) : nodes_.first(i);
  const auto called = nodes_.called(i);
  for (int32_t c = 0; c < std::ssize(called); ++c) {
    const int32_t first_operand = op == hlo::Op::kConditional ? c + 1 : 0;
    const bool takes_one = op == hlo::Op::kConditional || op == hlo::Op::kWhile;
    const int32_t num_parameters = takes_one ? 1 : static_cast<int32_t>(nodes_.operands(i).size());
    for (int32_t number = 0; number < num_parameters; ++number) {
      const int32_t parameter = nodes_.parameter(called[c], number);
      if (parameter < 0) continue;
      JoinTrees(nodes_.first(parameter), nodes_.OperandNode(i, first_operand + number, 0));
    }
    if (op == hlo::Op::kWhile && c > 0) continue;  // the condition's result is nobody's buffer
    JoinTrees(nodes_.first(nodes_.root(called[c])), output);
  }
  if (op == hlo::Op::kWhile) JoinTrees(output, nodes_.OperandNode(i, 0, 0));
}

void BufferOrder::JoinInPlace(int32_t i) {
  for (ShapeNode node = nodes_.first(i); node < nodes_.end(i); ++node) {
    const ShapeNode operand = rules_.InPlaceOperand(node);
    if (operand != kNoNode) parent_[Buffer(value_[node])] = Buffer(value_[operand]);
  }
}

std::string BufferOrder::JoinParametersAndOutputs() {
  for (const hlo::InputOutputAlias& alias : module_.input_output_aliases) {
    const int32_t parameter = nodes_.parameter(module_.entry, alias.parameter_number);
    const ShapeNode input = parameter < 0 ? kNoNode : nodes_.At(parameter, alias.parameter_index);
    const ShapeNode output = nodes_.At(nodes_.root(module_.entry), alias.output_index);
    if (input == kNoNode || output == kNoNode) return "an aliased parameter or output does not exist";
    parent_[Buffer(value_[output])] = Buffer(value_[input]);
  }
  return "";
}

// Adds what a computation and all that it calls write. Whatever runs inside a loop, a branch or a call
// runs at the step of its `caller` in the computation in question, which itself has none.
void BufferOrder::FindWrites(int32_t c, int32_t caller) {
  for (const int32_t i : module_.computations[c].instructions) {
    if (nodes_.op(i) == hlo::Op::kParameter || nodes_.op(i) == hlo::Op::kConstant) continue;
    const int32_t writer = caller == kNotCalled ? i : caller;
    if (IsCall(nodes_.op(i))) {
      for (const int32_t callee : nodes_.called(i)) FindWrites(callee, writer);
    }
    for (ShapeNode node = nodes_.first(i); node < nodes_.end(i); ++node) {
      if (value_[node] == node) writes_.push_back({Buffer(node), step_[writer], writer});
    }
    if (!rules_.MayWriteOperands(i)) continue;
    for (const int32_t operand : nodes_.operands(i)) {
      for (ShapeNode node = nodes_.first(operand); node < nodes_.end(operand); ++node) {
        writes_.push_back({Buffer(value_[node]), step_[writer], writer});
      }
    }
  }
}

// All of a tree of buffers is read.
std::string BufferOrder::CheckReads(int32_t tree, int32_t reader, int32_t step) const {
  for (ShapeNode node = nodes_.first(tree); node < nodes_.end(tree); ++node) {
    if (std::string fault = CheckRead(node, reader, step); !fault.empty()) return fault;
  }
  return "";
}

// The value at `node` is read by `reader` at `step`: nothing may have overwritten it since it was made.
std::string BufferOrder::CheckRead(ShapeNode node, int32_t reader, int32_t step) const {
  const ShapeNode value = value_[node];
  const int32_t definer = nodes_.owner(value);
  const Write earliest = {Buffer(value), step_[definer] + 1, 0};
  const auto write = std::ranges::lower_bound(writes_, earliest);
  if (write == writes_.end() || write->buffer != earliest.buffer || write->step >= step) return "";
  // What an asynchronous start has overwritten stays in its result, but its done does not read it.
  if (nodes_.op(reader) == hlo::Op::kAsyncDone && write->instruction == nodes_.operands(reader)[0]) return "";
  return hlo::Quoted(instruction(reader).name) + " reads " + hlo::Quoted(instruction(definer).name) + " after " +
         hlo::Quoted(instruction(write->instruction).name) + " has overwritten its buffer";
}

ShapeNode BufferOrder::Buffer(ShapeNode node) const {
  while (parent_[node] != node) node = parent_[node] = parent_[parent_[node]];
  return node;
}

}  // namespace

std::string CheckBufferOrder(const hlo::Module& module) { return BufferOrder(module).Check(); }

}  // namespace coopjax::verify
