#include "hlo/graph.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

namespace coopjax::hlo {
namespace {

// The transpose of `num_rows` rows: for each item, the rows that hold it, in row order, each once.
template <typename RowOf>
Csr Transposed(int32_t num_rows, RowOf row_of, int32_t num_items) {
  std::vector<int32_t> last(num_items, -1);
  const auto for_each = [&](auto visit) {
    std::ranges::fill(last, -1);
    for (int32_t row = 0; row < num_rows; ++row) {
      for (const int32_t item : row_of(row)) {
        if (std::exchange(last[item], row) != row) visit(item, row);
      }
    }
  };
  Csr result;
  result.offsets.assign(num_items + 1, 0);
  for_each([&](int32_t item, int32_t) { ++result.offsets[item + 1]; });
  std::partial_sum(result.offsets.begin(), result.offsets.end(), result.offsets.begin());
  result.items.resize(result.offsets.back());
  std::vector<int32_t> next(result.offsets.begin(), result.offsets.end() - 1);
  for_each([&](int32_t item, int32_t row) { result.items[next[item]++] = row; });
  return result;
}

}  // namespace

Graph::Graph(const Module& module) : module_(module) {
  const std::vector<int32_t> resolved = LookThroughBarriers();
  MarkDropped(resolved);
  AddEdges(resolved);
  node_base_.reserve(num_instructions() + 1);
  for (int32_t i = 0; i < num_instructions(); ++i) {
    node_base_.push_back(num_nodes());
    AddShape(*instruction(i).shape, i);
  }
  node_base_.push_back(num_nodes());
  MarkControlFlow();
}

// What stands for each instruction once barriers are gone: most stand for themselves.
std::vector<int32_t> Graph::LookThroughBarriers() const {
  std::vector<int32_t> resolved(num_instructions());
  for (int32_t i = 0; i < num_instructions(); ++i) {  // operands come first
    resolved[i] = i;
    if (op(i) != Op::kOptimizationBarrier && op(i) != Op::kGetTupleElement) continue;
    const Instruction& forwarder = instruction(i);
    if (forwarder.operands.empty()) continue;
    const int32_t operand = forwarder.operands[0];
    if (op(i) == Op::kOptimizationBarrier) {
      resolved[i] = resolved[operand];
      continue;
    }
    const Instruction& tuple = instruction(resolved[operand]);
    const bool is_element = resolved[operand] != operand && op(resolved[operand]) == Op::kTuple &&
                            forwarder.tuple_index >= 0 && forwarder.tuple_index < std::ssize(tuple.operands);
    if (is_element) resolved[i] = resolved[tuple.operands[forwarder.tuple_index]];
  }
  return resolved;
}

// What does nothing but make its result, in buffers of its own.
std::vector<uint8_t> Graph::FindRemovable() const {
  std::vector<uint8_t> is_removable(num_instructions(), 0);
  std::vector<uint8_t> has_only_such(module_.computations.size(), 1);
  for (int32_t i = 0; i < num_instructions(); ++i) {  // callees come first
    const bool may_overwrite =
        op(i) == Op::kDynamicUpdateSlice || op(i) == Op::kScatter || !instruction(i).output_operand_aliasing.empty();
    const bool is_such = opcode(i).is_pure && !may_overwrite && !HasOwnEffects(instruction(i)) &&
                         std::ranges::all_of(called(i), [&](int32_t callee) { return has_only_such[callee]; });
    has_only_such[instruction(i).computation] &= is_such;
    is_removable[i] = is_such && op(i) != Op::kParameter;
  }
  return is_removable;
}

void Graph::MarkDropped(const std::vector<int32_t>& resolved) {
  is_dropped_.assign(num_instructions(), 0);
  const auto is_barrier = [](const Instruction& each) { return each.info.op == Op::kOptimizationBarrier; };
  if (std::ranges::none_of(module_.instructions, is_barrier)) return;
  const std::vector<uint8_t> is_removable = FindRemovable();
  std::vector<int32_t> num_uses(num_instructions(), 0), num_uses_before(num_instructions(), 0);
  std::vector<uint8_t> is_held(num_instructions(), 0);  // by control, its own or that of what is dropped and shows it
  for (int32_t i = 0; i < num_instructions(); ++i) {
    for (const int32_t operand : instruction(i).operands) ++num_uses_before[operand];
    for (const int32_t predecessor : instruction(i).control_predecessors) is_held[predecessor] = is_held[i] = 1;
  }
  for (const Computation& computation : module_.computations) {
    ++num_uses[resolved[module_.instruction_index.Find(computation.root_id)]];
  }
  for (int32_t i = num_instructions() - 1; i >= 0; --i) {  // users come later
    const bool only_forwards = op(i) == Op::kTuple || op(i) == Op::kGetTupleElement;
    const bool can_go = only_forwards || (is_removable[i] && !is_held[i]);
    is_dropped_[i] = resolved[i] != i || (can_go && num_uses[i] == 0 && num_uses_before[i] > 0);
    for (const int32_t operand : instruction(i).operands) {
      if (!is_dropped_[i]) ++num_uses[resolved[operand]];
      if (is_dropped_[i] && is_held[i]) is_held[operand] = 1;
    }
  }
}

void Graph::AddEdges(const std::vector<int32_t>& resolved) {
  const auto add_row = [&](int32_t i, std::span<const int32_t> row, Csr& rows) {
    for (const int32_t item : row) {
      if (!is_dropped_[i]) rows.items.push_back(resolved[item]);
    }
    rows.offsets.push_back(static_cast<int32_t>(rows.items.size()));
  };
  for (Csr* rows : {&operands_, &control_predecessors_}) rows->offsets.reserve(num_instructions() + 1);
  for (int32_t i = 0; i < num_instructions(); ++i) {
    add_row(i, instruction(i).operands, operands_);
    add_row(i, instruction(i).control_predecessors, control_predecessors_);
  }
  users_ = Transposed(num_instructions(), [this](int32_t i) { return operands(i); }, num_instructions());
  AddUses();
  callers_ = Transposed(
      num_instructions(), [this](int32_t i) { return is_dropped_[i] ? std::span<const int32_t>() : called(i); },
      static_cast<int32_t>(module_.computations.size()));
  for (const Computation& computation : module_.computations) AddComputation(computation, resolved);
}

void Graph::AddUses() {
  use_offsets_.assign(num_instructions() + 2, 0);  // the last one is for filling, where each row starts one further on
  for (const int32_t operand : operands_.items) ++use_offsets_[operand + 2];
  std::partial_sum(use_offsets_.begin(), use_offsets_.end(), use_offsets_.begin());
  uses_.resize(operands_.items.size());
  for (int32_t i = 0; i < num_instructions(); ++i) {
    for (int32_t number = 0; number < std::ssize(operands(i)); ++number) {
      uses_[use_offsets_[operands(i)[number] + 1]++] = {i, number};
    }
  }
}

void Graph::AddComputation(const Computation& computation, const std::vector<int32_t>& resolved) {
  roots_.push_back(resolved[module_.instruction_index.Find(computation.root_id)]);
  std::vector<int32_t> row;
  for (const int64_t id : computation.sequence) {
    const int32_t i = module_.instruction_index.Find(id);
    if (!is_dropped_[i]) row.push_back(i);
  }
  sequences_.AddRow(row);
  row.clear();
  for (const int32_t i : computation.instructions) {
    if (op(i) != Op::kParameter) continue;
    const int64_t number = instruction(i).parameter_number;
    // A number beyond the instruction count is garbage; such a parameter is never found.
    if (number < 0 || number >= std::ssize(computation.instructions)) continue;
    if (number >= std::ssize(row)) row.resize(number + 1, -1);
    row[number] = i;
  }
  parameters_.AddRow(row);
}

void Graph::AddShape(const Shape& shape, int32_t owner) {
  const Node node = num_nodes();
  shapes_.push_back(&shape);
  owners_.push_back(owner);
  subtree_sizes_.push_back(1);
  if (!shape.is_tuple()) return;
  for (const Shape& element : shape.tuple_shapes) AddShape(element, owner);
  subtree_sizes_[node] = num_nodes() - node;
}

void Graph::MarkControlFlow() {
  is_control_flow_.assign(module_.computations.size(), 0);
  std::vector<int32_t> worklist = {module_.entry};
  is_control_flow_[module_.entry] = 1;
  while (!worklist.empty()) {
    const int32_t computation = worklist.back();
    worklist.pop_back();
    for (const int32_t i : module_.computations[computation].instructions) {
      if (!IsControlFlowCall(op(i))) continue;
      for (const int32_t callee : called(i)) {
        if (is_control_flow_[callee]) continue;
        is_control_flow_[callee] = 1;
        worklist.push_back(callee);
      }
    }
  }
}

bool Graph::is_user_of(int32_t user, int32_t operand) const {
  return std::ranges::find(operands(user), operand) != operands(user).end();
}

int32_t Graph::parameter(int32_t computation, int64_t number) const {
  const auto row = parameters_[computation];
  return number >= 0 && number < std::ssize(row) ? row[number] : -1;
}

std::vector<int32_t> Graph::ById(int32_t computation) const {
  const auto& range = module_.computations[computation].instructions;
  std::vector<int32_t> members(range.begin(), range.end());
  std::ranges::sort(members, {}, [&](int32_t i) { return instruction(i).id; });
  return members;
}

std::vector<int32_t> Graph::PostOrder(int32_t computation) const {
  const auto& members = module_.computations[computation].instructions;
  if (members.empty()) return {};
  const int32_t first = members.front();
  enum State : uint8_t { kNew, kVisiting, kVisited };
  std::vector<State> states(members.size(), kNew);
  std::vector<int32_t> order, stack;
  const auto push = [&](int32_t i) {
    if (states[i - first] != kVisited) stack.push_back(i);
  };
  for (const int32_t sink : ById(computation)) {
    if (!users(sink).empty() || is_dropped(sink)) continue;
    push(sink);
    while (!stack.empty()) {
      const int32_t i = stack.back();
      State& state = states[i - first];
      if (state != kNew) {
        stack.pop_back();
        if (state != kVisited) order.push_back(i);
        state = kVisited;
        continue;
      }
      state = kVisiting;
      const auto inputs = operands(i);
      for (auto operand = inputs.rbegin(); operand != inputs.rend(); ++operand) push(*operand);
      for (const int32_t predecessor : control_predecessors(i)) push(predecessor);
    }
  }
  return order;
}

std::vector<int32_t> Graph::CallGraphPostOrder() const {
  std::vector<int32_t> order;
  std::vector<uint8_t> is_visited(module_.computations.size(), 0);
  const std::function<void(int32_t)> visit = [&](int32_t computation) {
    if (is_visited[computation]) return;
    is_visited[computation] = 1;
    for (const int32_t i : ById(computation)) {
      if (!IsControlFlowCall(op(i))) continue;
      for (const int32_t callee : called(i)) visit(callee);
    }
    order.push_back(computation);
  };
  visit(module_.entry);
  return order;
}

Node Graph::Child(Node tuple, int64_t index) const {
  if (!shape(tuple).is_tuple() || index < 0 || index >= std::ssize(shape(tuple).tuple_shapes)) return kNoNode;
  Node child = tuple + 1;
  for (; index > 0; --index) child += subtree_sizes_[child];
  return child;
}

Node Graph::NodeAt(int32_t i, std::span<const int64_t> path) const {
  Node node = node_base(i);
  for (const int64_t index : path) {
    node = Child(node, index);
    if (node == kNoNode) return kNoNode;
  }
  return node;
}

std::vector<int64_t> Graph::PathOf(Node node) const {
  std::vector<int64_t> path;
  for (Node at = node_base(owner(node)); at != node;) {
    int64_t index = 0;
    Node child = at + 1;
    for (; child + subtree_sizes_[child] <= node; child += subtree_sizes_[child]) ++index;
    path.push_back(index);
    at = child;
  }
  return path;
}

}  // namespace coopjax::hlo
