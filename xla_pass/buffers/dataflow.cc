#include "buffers/dataflow.h"

#include <algorithm>
#include <iterator>
#include <queue>
#include <utility>

#include "buffers/phi.h"
#include "buffers/value_definition.h"

namespace coopjax {
namespace {

constexpr int32_t kNone = HloDataflow::kNoValue;

// Builds the values: definitions first, then propagation to a fixed point, then phi simplification.
class Builder {
 public:
  Builder(const hlo::Graph& graph, std::vector<int32_t>& value_at) : graph_(graph), value_at_(value_at) {}

  void Run() {
    value_at_.assign(graph_.num_nodes(), kNone);
    Define();
    Propagate();
    SimplifyPhis();
    DropDeadValues();
  }
  std::vector<hlo::Node> TakeDefinitions() { return std::move(definitions_); }

 private:
  void Define();
  void Propagate();
  void Enqueue(int32_t i);
  void EnqueueAffected(int32_t i);
  void AssignPriorities(int32_t computation);

  bool Update(int32_t i);
  bool UpdateAsync(int32_t i);
  bool UpdateParameter(int32_t i);
  bool UpdateTuple(int32_t i);
  bool Forward(hlo::Node to, hlo::Node from, bool arrays_only = false);
  bool Phi(hlo::Node to, const std::vector<hlo::Node>& inputs);

  void SimplifyPhis();
  void DropDeadValues();

  int32_t NewValue(hlo::Node node, bool is_phi) {
    definitions_.push_back(node);
    phi_inputs_.emplace_back();
    is_phi_.push_back(is_phi);
    return static_cast<int32_t>(definitions_.size()) - 1;
  }

  const hlo::Graph& graph_;
  std::vector<int32_t>& value_at_;
  std::vector<hlo::Node> definitions_;
  std::vector<uint8_t> is_phi_;
  std::vector<std::vector<int32_t>> phi_inputs_;
  std::vector<int32_t> priority_;          // [instruction]
  int32_t next_priority_ = 0;
  std::vector<uint8_t> is_queued_;
  using Work = std::pair<int32_t, int32_t>;
  std::priority_queue<Work, std::vector<Work>, std::greater<Work>> queue_;
};

void Builder::Define() {
  for (int32_t c = 0; c < std::ssize(graph_.module().computations); ++c) {
    if (!graph_.is_control_flow(c)) continue;
    for (const int32_t i : graph_.PostOrder(c)) {
      for (hlo::Node node = graph_.node_base(i); node < graph_.node_end(i); ++node) {
        if (DefinesValueAt(graph_, node)) value_at_[node] = NewValue(node, /*is_phi=*/false);
      }
    }
  }
}

// Callees come before their call, so that most instructions settle in one visit.
void Builder::AssignPriorities(int32_t computation) {
  for (const int32_t i : graph_.PostOrder(computation)) {
    if (graph_.op(i) == hlo::Op::kWhile) {
      const auto called = graph_.called(i);  // body, condition
      for (auto callee = called.rbegin(); callee != called.rend(); ++callee) AssignPriorities(*callee);
    } else if (graph_.op(i) == hlo::Op::kCall || graph_.op(i) == hlo::Op::kConditional ||
               graph_.op(i) == hlo::Op::kAsyncStart) {
      for (const int32_t callee : graph_.called(i)) AssignPriorities(callee);
    }
    if (priority_[i] < 0) priority_[i] = next_priority_++;
  }
}

void Builder::Enqueue(int32_t i) {
  if (i < 0 || is_queued_[i]) return;
  is_queued_[i] = 1;
  queue_.emplace(priority_[i], i);
}

void Builder::Propagate() {
  priority_.assign(graph_.num_instructions(), -1);
  is_queued_.assign(graph_.num_instructions(), 0);
  AssignPriorities(graph_.module().entry);
  for (int32_t i = 0; i < graph_.num_instructions(); ++i) {
    if (graph_.is_control_flow(graph_.instruction(i).computation) && !graph_.is_dropped(i)) Enqueue(i);
  }
  while (!queue_.empty()) {
    const int32_t i = queue_.top().second;
    queue_.pop();
    is_queued_[i] = 0;
    if (Update(i)) EnqueueAffected(i);
  }
}

void Builder::EnqueueAffected(int32_t i) {
  for (const int32_t user : graph_.users(i)) {
    Enqueue(user);
    const auto operands = graph_.operands(user);
    for (int32_t number = 0; number < std::ssize(operands); ++number) {
      if (operands[number] != i || !hlo::IsControlFlowCall(graph_.op(user))) continue;
      if (graph_.op(user) == hlo::Op::kConditional) {
        if (number > 0) Enqueue(graph_.parameter(graph_.called(user)[number - 1], 0));
        continue;
      }
      for (const int32_t callee : graph_.called(user)) Enqueue(graph_.parameter(callee, number));
    }
  }
  const int32_t computation = graph_.instruction(i).computation;
  if (!graph_.is_root(i)) return;
  for (const int32_t caller : graph_.callers(computation)) {
    Enqueue(caller);
    if (graph_.op(caller) != hlo::Op::kWhile) continue;
    for (const int32_t callee : graph_.called(caller)) Enqueue(graph_.parameter(callee, 0));
  }
}

// Makes the subtree at `to` hold what the subtree at `from` holds.
bool Builder::Forward(hlo::Node to, hlo::Node from, bool arrays_only) {
  bool is_changed = false;
  for (int32_t k = 0; k < graph_.subtree_size(to); ++k) {
    if (arrays_only && graph_.shape(to + k).is_tuple()) continue;
    is_changed |= value_at_[to + k] != value_at_[from + k];
    value_at_[to + k] = value_at_[from + k];
  }
  return is_changed;
}

bool Builder::UpdateTuple(int32_t i) {
  bool is_changed = false;
  hlo::Node to = graph_.node_base(i) + 1;
  for (const int32_t operand : graph_.operands(i)) {
    is_changed |= Forward(to, graph_.node_base(operand));
    to += graph_.subtree_size(to);
  }
  return is_changed;
}

bool Builder::Update(int32_t i) {
  const hlo::Node base = graph_.node_base(i);
  const auto operands = graph_.operands(i);
  const hlo::Node first = operands.empty() ? hlo::Graph::kNoNode : graph_.node_base(operands[0]);
  switch (graph_.op(i)) {
    case hlo::Op::kBitcast:
    case hlo::Op::kDomain:
    case hlo::Op::kOptimizationBarrier:
    case hlo::Op::kAddDependency:
    case hlo::Op::kAllReduceDone:
      return Forward(base, first);
    case hlo::Op::kGetTupleElement:
      return Forward(base, graph_.Child(first, graph_.instruction(i).tuple_index));
    case hlo::Op::kTuple:
      return UpdateTuple(i);
    case hlo::Op::kCopy: {
      const int32_t own = value_at_[base];
      const bool is_changed = graph_.subtree_size(base) > 1 && Forward(base, first);
      value_at_[base] = own;
      return is_changed;
    }
    case hlo::Op::kParameter:
      return UpdateParameter(i);
    case hlo::Op::kCall:
      return Forward(base, graph_.node_base(graph_.root(graph_.called(i)[0])));
    case hlo::Op::kWhile:
      return Phi(base, {graph_.node_base(graph_.root(graph_.called(i)[0])), first});
    case hlo::Op::kConditional: {
      std::vector<hlo::Node> inputs;
      for (const int32_t branch : graph_.called(i)) inputs.push_back(graph_.node_base(graph_.root(branch)));
      return Phi(base, inputs);
    }
    case hlo::Op::kAsyncStart:
    case hlo::Op::kAsyncUpdate:
    case hlo::Op::kAsyncDone:
    case hlo::Op::kCopyStart:
    case hlo::Op::kCopyDone:
    case hlo::Op::kSend:
    case hlo::Op::kRecvDone:
    case hlo::Op::kAllGatherStart:
    case hlo::Op::kAllGatherDone:
    case hlo::Op::kCollectivePermuteStart:
    case hlo::Op::kCollectivePermuteDone:
      return UpdateAsync(i);
    default:
      return false;
  }
}

// Asynchronous starts carry their operands in one element of their result and the destination in
// another; dones hand the destination on.
bool Builder::UpdateAsync(int32_t i) {
  const hlo::Node base = graph_.node_base(i);
  const auto operands = graph_.operands(i);
  const hlo::Node first = graph_.node_base(operands[0]);
  // Where the shapes do not fit, the positions stay without a value: nothing is known of them.
  const auto forward = [&](hlo::Node to, hlo::Node from) {
    if (to == hlo::Graph::kNoNode || from == hlo::Graph::kNoNode) return false;
    return graph_.subtree_size(to) == graph_.subtree_size(from) && Forward(to, from, /*arrays_only=*/true);
  };
  const auto forward_operands = [&](hlo::Node tuple) {
    if (operands.size() == 1 && tuple != hlo::Graph::kNoNode && !graph_.shape(tuple).is_tuple()) {
      return forward(tuple, first);
    }
    bool is_changed = false;
    for (int32_t k = 0; tuple != hlo::Graph::kNoNode && k < std::ssize(operands); ++k) {
      is_changed |= forward(graph_.Child(tuple, k), graph_.node_base(operands[k]));
    }
    return is_changed;
  };
  switch (graph_.op(i)) {
    case hlo::Op::kAsyncStart: {
      const bool is_changed = forward_operands(graph_.Child(base, 0));
      return forward(graph_.Child(base, 1), graph_.node_base(graph_.root(graph_.called(i)[0]))) || is_changed;
    }
    case hlo::Op::kAllGatherStart:
    case hlo::Op::kCollectivePermuteStart:
      return forward_operands(graph_.Child(base, 0));
    case hlo::Op::kCopyStart:
      return forward(graph_.Child(base, 1), first);
    case hlo::Op::kSend:
      return forward(graph_.Child(base, 0), first);
    case hlo::Op::kRecvDone:
      return forward(graph_.Child(base, 0), graph_.Child(first, 0));
    case hlo::Op::kCopyDone:
      return forward(base, graph_.Child(first, 0));
    case hlo::Op::kAsyncUpdate:
      return forward(base, first);
    default:  // async-done, all-gather-done, collective-permute-done
      return forward(base, graph_.Child(first, 1));
  }
}

bool Builder::UpdateParameter(int32_t i) {
  const hlo::Instruction& parameter = graph_.instruction(i);
  std::vector<hlo::Node> inputs;
  bool needs_phi = false;
  for (const int32_t caller : graph_.callers(parameter.computation)) {
    const auto operands = graph_.operands(caller);
    if (graph_.op(caller) == hlo::Op::kWhile) {
      inputs.push_back(graph_.node_base(operands[0]));
      const int32_t body_root = graph_.root(graph_.called(caller)[0]);
      if (body_root != i) inputs.push_back(graph_.node_base(body_root));
      needs_phi = true;
    } else if (graph_.op(caller) == hlo::Op::kConditional) {
      const auto branches = graph_.called(caller);
      for (int32_t j = 0; j < std::ssize(branches); ++j) {
        if (branches[j] == parameter.computation) inputs.push_back(graph_.node_base(operands[j + 1]));
      }
      needs_phi = true;
    } else if (graph_.op(caller) == hlo::Op::kCall || graph_.op(caller) == hlo::Op::kAsyncStart) {
      inputs.push_back(graph_.node_base(operands[parameter.parameter_number]));
    }
  }
  if (inputs.empty()) return false;
  if (needs_phi || inputs.size() > 1) return Phi(graph_.node_base(i), inputs);
  return Forward(graph_.node_base(i), inputs[0]);
}

bool Builder::Phi(hlo::Node to, const std::vector<hlo::Node>& inputs) {
  bool is_changed = false;
  for (int32_t k = 0; k < graph_.subtree_size(to); ++k) {
    int32_t& value = value_at_[to + k];
    std::vector<int32_t> reaching;
    for (const hlo::Node input : inputs) {
      if (value_at_[input + k] != kNone) reaching.push_back(value_at_[input + k]);
    }
    if (reaching.empty()) continue;
    if (reaching.size() == 1) {
      is_changed |= value != reaching[0];
      value = reaching[0];
      continue;
    }
    const bool is_phi_here = value != kNone && is_phi_[value] && definitions_[value] == to + k;
    if (!is_phi_here) value = NewValue(to + k, /*is_phi=*/true);
    std::ranges::sort(reaching);
    reaching.erase(std::ranges::unique(reaching).begin(), reaching.end());
    is_changed |= !is_phi_here || phi_inputs_[value] != reaching;
    phi_inputs_[value] = std::move(reaching);
  }
  return is_changed;
}

void Builder::SimplifyPhis() {
  const std::vector<int32_t> replacement = coopjax::SimplifyPhis(is_phi_, phi_inputs_);
  for (int32_t& value : value_at_) {
    if (value != kNone) value = replacement[value];
  }
}

// Numbers the values that some node still shows, in the order of their creation.
void Builder::DropDeadValues() {
  std::vector<int32_t> new_id(definitions_.size(), kNone);
  for (const int32_t value : value_at_) {
    if (value != kNone) new_id[value] = 0;
  }
  std::vector<hlo::Node> kept;
  for (size_t v = 0; v < new_id.size(); ++v) {
    if (new_id[v] == kNone) continue;
    new_id[v] = static_cast<int32_t>(kept.size());
    kept.push_back(definitions_[v]);
  }
  for (int32_t& value : value_at_) {
    if (value != kNone) value = new_id[value];
  }
  definitions_ = std::move(kept);
}

}  // namespace

HloDataflow::HloDataflow(const hlo::Graph& graph) : graph_(graph) {
  Builder builder(graph, value_at_);
  builder.Run();
  definitions_ = builder.TakeDefinitions();
  std::vector<std::vector<hlo::Node>> positions(definitions_.size());
  for (size_t v = 0; v < positions.size(); ++v) positions[v].push_back(definitions_[v]);
  lives_out_.assign(definitions_.size(), 0);
  const int32_t entry_root = graph.root(graph.module().entry);
  for (hlo::Node node = 0; node < graph.num_nodes(); ++node) {
    const int32_t value = value_at_[node];
    if (value == kNoValue) continue;
    if (node != definitions_[value]) positions[value].push_back(node);
    if (graph.owner(node) == entry_root) lives_out_[value] = 1;
  }
  for (const auto& row : positions) positions_.AddRow(row);
}

void HloDataflow::ForEachUse(int32_t value, const UseVisitor& visit) const {
  for (const hlo::Node node : positions(value)) {
    const int32_t holder = graph_.owner(node);
    for (const auto [user, operand_number] : graph_.uses(holder)) {
      const hlo::Op op = graph_.op(user);
      bool is_use = op != hlo::Op::kTuple && op != hlo::Op::kDomain;
      if (op == hlo::Op::kGetTupleElement || op == hlo::Op::kCopy) is_use = node == graph_.node_base(holder);
      if (!is_use && graph_.is_root(user)) {
        is_use = std::ranges::any_of(positions(value), [&](hlo::Node at) { return graph_.owner(at) == user; });
      }
      if (is_use) visit(user, operand_number, node);
    }
  }
}

}  // namespace coopjax
