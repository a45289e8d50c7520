#include "buffers/alias.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "buffers/synchronous.h"

namespace coopjax {
namespace {

// Of all computations, one after the other.
std::vector<int32_t> Sequences(const hlo::Graph& graph) {
  std::vector<int32_t> all;
  for (int32_t c = 0; c < std::ssize(graph.module().computations); ++c) {
    std::ranges::copy(graph.sequence(c), std::back_inserter(all));
  }
  return all;
}

}  // namespace

HloAlias::HloAlias(const HloDataflow& dataflow)
    : dataflow_(dataflow), rules_(RulesFor(PlatformOf(dataflow.graph().module()))) {
  const hlo::Graph& graph = dataflow.graph();
  FindInPlacePairs();
  const int32_t entry = graph.module().entry, root = graph.root(entry);
  aliased_parameter_.assign(graph.node_end(root) - graph.node_base(root), hlo::Graph::kNoNode);
  is_donated_.assign(graph.num_nodes(), 0);
  for (const hlo::InputOutputAlias& alias : graph.module().input_output_aliases) {
    const int32_t parameter = graph.parameter(entry, alias.parameter_number);
    const hlo::Node output = graph.NodeAt(root, alias.output_index);
    if (parameter < 0 || output == hlo::Graph::kNoNode) continue;
    const hlo::Node input = graph.NodeAt(parameter, alias.parameter_index);
    if (input == hlo::Graph::kNoNode) continue;
    aliased_parameter_[output - graph.node_base(root)] = input;
    is_donated_[input] = 1;
  }
  MergeValues();
  MeasureBytes();
  NumberInstructions();
  largest_first_ = LargestFirst([](int32_t instruction) { return instruction; });
}

void HloAlias::FindInPlacePairs() {
  in_place_offsets_ = {0};
  in_place_offsets_.reserve(graph().num_instructions() + 1);
  // The start of a pair writes in place, the plain collective that XLA puts in its place need not.
  std::vector<Synchronous> synchronous;
  if (rules_.makes_synchronous) synchronous = FindSynchronous(graph(), Sequences(graph()));
  for (int32_t i = 0; i < graph().num_instructions(); ++i) {
    const bool is_gone = !synchronous.empty() && synchronous[i].start == i;
    const bool is_analysed = graph().is_control_flow(graph().instruction(i).computation) && !graph().is_dropped(i);
    if (is_analysed && !is_gone) std::ranges::copy(InPlacePairs(graph(), i), std::back_inserter(in_place_));
    in_place_offsets_.push_back(static_cast<int32_t>(in_place_.size()));
  }
}

// Once: the heap asks for each many times.
void HloAlias::MeasureBytes() {
  buffer_bytes_.assign(num_buffers(), 0);
  for (int32_t value = 0; value < dataflow_.num_values(); ++value) {
    value_bytes_.push_back(rules_.Bytes(graph().shape(dataflow_.definition(value))));
    int64_t& bytes = buffer_bytes_[buffer_of(value)];
    bytes = std::max(bytes, value_bytes_.back());
  }
}

void HloAlias::NumberInstructions() {
  position_.assign(graph().num_instructions(), 0);
  int32_t next = 0;
  const std::vector<int32_t> computations = graph().CallGraphPostOrder();
  for (auto computation = computations.rbegin(); computation != computations.rend(); ++computation) {
    for (const int32_t i : graph().PostOrder(*computation)) position_[i] = next++;
  }
}

std::vector<int32_t> HloAlias::LargestFirst(const std::function<int32_t(int32_t)>& place_of) const {
  struct Key {
    int64_t negative_bytes;
    bool stays_inside;
    int32_t position;
    int32_t buffer;
    auto operator<=>(const Key&) const = default;
  };
  std::vector<Key> keys;
  for (int32_t buffer = 0; buffer < num_buffers(); ++buffer) {
    int32_t first = INT32_MAX;
    for (const int32_t value : values(buffer)) {
      first = std::min(first, position_[place_of(dataflow_.defining_instruction(value))]);
    }
    keys.push_back({-buffer_bytes(buffer), !lives_out(buffer), first, buffer});
  }
  std::ranges::sort(keys);
  std::vector<int32_t> order;
  for (const Key& key : keys) order.push_back(key.buffer);
  return order;
}

// Joins values into buffers. Buffers are numbered by the slot of the largest set at each merge (the
// lowest value id among equals), because XLA breaks ties between buffers by that number.
void HloAlias::MergeValues() {
  const int32_t num_values = dataflow_.num_values();
  std::vector<int32_t> slot_of(num_values);
  std::iota(slot_of.begin(), slot_of.end(), 0);
  std::vector<std::vector<int32_t>> slots(num_values);
  for (int32_t v = 0; v < num_values; ++v) slots[v] = {v};
  for (int32_t v = 0; v < num_values; ++v) {
    const std::vector<int32_t> shared = MustShare(v);  // ascending
    int32_t target = slot_of[v];
    size_t target_size = 0;
    for (const int32_t other : shared) {
      if (slots[slot_of[other]].size() <= target_size) continue;
      target = slot_of[other];
      target_size = slots[target].size();
    }
    for (const int32_t other : shared) {
      const int32_t slot = slot_of[other];
      if (slot == target) continue;
      for (const int32_t moved : slots[slot]) slot_of[moved] = target;
      slots[target].insert(slots[target].end(), slots[slot].begin(), slots[slot].end());
      slots[slot].clear();
    }
  }
  buffer_of_.resize(num_values);
  for (auto& members : slots) {
    if (members.empty()) continue;
    std::ranges::sort(members);
    bool lives_out = false;
    for (const int32_t value : members) {
      buffer_of_[value] = num_buffers();
      lives_out |= dataflow_.lives_out(value);
    }
    buffers_.AddRow(members);
    lives_out_.push_back(lives_out);
  }
}

std::vector<int32_t> HloAlias::MustShare(int32_t value) const {
  std::vector<int32_t> shared = {value};
  AddOutputAliases(value, &shared);
  AddControlFlowAliases(value, &shared);
  AddInPlaceAliases(value, &shared);
  std::erase(shared, HloDataflow::kNoValue);
  std::ranges::sort(shared);
  shared.erase(std::ranges::unique(shared).begin(), shared.end());
  return shared;
}

void HloAlias::AddOutputAliases(int32_t value, std::vector<int32_t>* shared) const {
  if (!dataflow_.lives_out(value)) return;
  const int32_t root = graph().root(graph().module().entry);
  for (const hlo::Node node : dataflow_.positions(value)) {
    if (graph().owner(node) != root) continue;
    const hlo::Node parameter = aliased_parameter_[node - graph().node_base(root)];
    if (parameter != hlo::Graph::kNoNode) shared->push_back(dataflow_.value_at(parameter));
  }
}

// A loop's initial value, the parameters of its body and condition, the body's result and the final
// value are one buffer, element by element; so are the results of a conditional's branches.
void HloAlias::AddControlFlowAliases(int32_t value, std::vector<int32_t>* shared) const {
  const hlo::Graph& g = graph();
  const auto same_element_of = [&](int32_t instruction, hlo::Node node) {
    return dataflow_.value_at(g.node_base(instruction) + (node - g.node_base(g.owner(node))));
  };
  dataflow_.ForEachUse(value, [&](int32_t user, int32_t, hlo::Node node) {
    if (g.op(user) == hlo::Op::kWhile) shared->push_back(same_element_of(user, node));
  });
  const hlo::Node definition = dataflow_.definition(value);
  const int32_t definer = g.owner(definition);
  if (g.op(definer) == hlo::Op::kParameter) {
    for (const int32_t caller : g.callers(g.instruction(definer).computation)) {
      if (g.op(caller) == hlo::Op::kWhile) shared->push_back(same_element_of(caller, definition));
    }
  }
  for (const hlo::Node node : dataflow_.positions(value)) {
    const int32_t holder = g.owner(node);
    if (!g.is_root(holder)) continue;
    const int32_t computation = g.instruction(holder).computation;
    for (const int32_t caller : g.callers(computation)) {
      const bool is_body = g.op(caller) == hlo::Op::kWhile && g.called(caller)[0] == computation;
      if (is_body || g.op(caller) == hlo::Op::kConditional) shared->push_back(same_element_of(caller, node));
    }
  }
}

void HloAlias::AddInPlaceAliases(int32_t value, std::vector<int32_t>* shared) const {
  const hlo::Graph& g = graph();
  for (const hlo::Node node : dataflow_.positions(value)) {
    const int32_t holder = g.owner(node);
    for (const InPlacePair& pair : in_place(holder)) {
      if (g.node_base(holder) + pair.output_offset != node) continue;
      const int32_t operand = g.operands(holder)[pair.operand_number];
      shared->push_back(dataflow_.value_at(g.node_base(operand) + pair.operand_offset));
    }
  }
  dataflow_.ForEachUse(value, [&](int32_t user, int32_t operand_number, hlo::Node node) {
    for (const InPlacePair& pair : in_place(user)) {
      const bool is_pair =
          pair.operand_number == operand_number && pair.operand_offset == node - g.node_base(g.owner(node));
      if (is_pair) shared->push_back(dataflow_.value_at(g.node_base(user) + pair.output_offset));
    }
  });
}

bool HloAlias::MustShareOperandBuffer(hlo::Node operand_node, hlo::Node user_node) const {
  const int32_t user = graph().owner(user_node), value = dataflow_.value_at(operand_node);
  return std::ranges::any_of(in_place(user), [&](const InPlacePair& pair) {
    const int32_t operand = graph().operands(user)[pair.operand_number];
    return graph().node_base(user) + pair.output_offset == user_node &&
           dataflow_.value_at(graph().node_base(operand) + pair.operand_offset) == value;
  });
}

bool HloAlias::CanShareOperandBuffer(hlo::Node operand_node, hlo::Node user_node) const {
  if (graph().op(graph().owner(operand_node)) == hlo::Op::kConstant) return false;
  const bool has_its_shape = ShapesAreEqual(graph().shape(operand_node), graph().shape(user_node));
  if (has_its_shape && MustShareOperandBuffer(operand_node, user_node)) return true;
  return MayTakeBuffer(dataflow_, rules_.platform, operand_node, user_node);
}

}  // namespace coopjax
