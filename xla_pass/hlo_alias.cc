#include "hlo_alias.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace coopjax {

HloAlias::HloAlias(const HloDataflow& dataflow)
    : dataflow_(dataflow), rules_(RulesFor(PlatformOf(dataflow.graph().module()))) {
  const HloGraph& graph = dataflow.graph();
  in_place_.resize(graph.num_instructions());
  for (int32_t i = 0; i < graph.num_instructions(); ++i) {
    const bool is_analysed = graph.is_control_flow(graph.instruction(i).computation) && !graph.is_dropped(i);
    if (is_analysed) in_place_[i] = InPlacePairs(graph, i);
  }
  const int32_t entry = graph.module().entry, root = graph.root(entry);
  aliased_parameter_.assign(graph.node_end(root) - graph.node_base(root), HloGraph::kNoNode);
  is_donated_.assign(graph.num_nodes(), 0);
  for (const InputOutputAlias& alias : graph.module().input_output_aliases) {
    const int32_t parameter = graph.parameter(entry, alias.parameter_number);
    const Node output = graph.NodeAt(root, alias.output_index);
    if (parameter < 0 || output == HloGraph::kNoNode) continue;
    const Node input = graph.NodeAt(parameter, alias.parameter_index);
    if (input == HloGraph::kNoNode) continue;
    aliased_parameter_[output - graph.node_base(root)] = input;
    is_donated_[input] = 1;
  }
  MergeValues();
  MeasureBytes();
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
  for (const Node node : dataflow_.positions(value)) {
    if (graph().owner(node) != root) continue;
    const Node parameter = aliased_parameter_[node - graph().node_base(root)];
    if (parameter != HloGraph::kNoNode) shared->push_back(dataflow_.value_at(parameter));
  }
}

// A loop's initial value, the parameters of its body and condition, the body's result and the final
// value are one buffer, element by element; so are the results of a conditional's branches.
void HloAlias::AddControlFlowAliases(int32_t value, std::vector<int32_t>* shared) const {
  const HloGraph& g = graph();
  const auto same_element_of = [&](int32_t instruction, Node node) {
    return dataflow_.value_at(g.node_base(instruction) + (node - g.node_base(g.owner(node))));
  };
  dataflow_.ForEachUse(value, [&](int32_t user, int32_t, Node node) {
    if (g.op(user) == Op::kWhile) shared->push_back(same_element_of(user, node));
  });
  const Node definition = dataflow_.definition(value);
  const int32_t definer = g.owner(definition);
  if (g.op(definer) == Op::kParameter) {
    for (const int32_t caller : g.callers(g.instruction(definer).computation)) {
      if (g.op(caller) == Op::kWhile) shared->push_back(same_element_of(caller, definition));
    }
  }
  for (const Node node : dataflow_.positions(value)) {
    const int32_t holder = g.owner(node);
    if (!g.is_root(holder)) continue;
    const int32_t computation = g.instruction(holder).computation;
    for (const int32_t caller : g.callers(computation)) {
      const bool is_body = g.op(caller) == Op::kWhile && g.called(caller)[0] == computation;
      if (is_body || g.op(caller) == Op::kConditional) shared->push_back(same_element_of(caller, node));
    }
  }
}

void HloAlias::AddInPlaceAliases(int32_t value, std::vector<int32_t>* shared) const {
  const HloGraph& g = graph();
  for (const Node node : dataflow_.positions(value)) {
    const int32_t holder = g.owner(node);
    for (const InPlacePair& pair : in_place_[holder]) {
      if (g.node_base(holder) + pair.output_offset != node) continue;
      const int32_t operand = g.operands(holder)[pair.operand_number];
      shared->push_back(dataflow_.value_at(g.node_base(operand) + pair.operand_offset));
    }
  }
  dataflow_.ForEachUse(value, [&](int32_t user, int32_t operand_number, Node node) {
    for (const InPlacePair& pair : in_place_[user]) {
      const bool is_pair = pair.operand_number == operand_number &&
                           pair.operand_offset == node - g.node_base(g.owner(node));
      if (is_pair) shared->push_back(dataflow_.value_at(g.node_base(user) + pair.output_offset));
    }
  });
}

}  // namespace coopjax
