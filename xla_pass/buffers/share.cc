#include "buffers/share.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "buffers/share_gpu.h"

namespace coopjax {
namespace {

// The instruction and element that a node shows, back through tuples, then get-tuple-elements, then
// bitcasts (one round of each, in this order).
hlo::Node FollowIndirections(const hlo::Graph& graph, hlo::Node node) {
  const auto owner = [&] { return graph.owner(node); };
  while (graph.op(owner()) == hlo::Op::kTuple && node != graph.node_base(owner())) {
    hlo::Node child = graph.node_base(owner()) + 1;
    size_t number = 0;
    for (; child + graph.subtree_size(child) <= node; child += graph.subtree_size(child)) ++number;
    node = graph.node_base(graph.operands(owner())[number]) + (node - child);
  }
  while (graph.op(owner()) == hlo::Op::kGetTupleElement) {
    const hlo::Node tuple = graph.node_base(graph.operands(owner())[0]);
    node = graph.Child(tuple, graph.instruction(owner()).tuple_index) + (node - graph.node_base(owner()));
  }
  while (graph.op(owner()) == hlo::Op::kBitcast) node = graph.node_base(graph.operands(owner())[0]);
  return node;
}

// The node of the operand that is in place with `output`, kNoNode when there is none.
hlo::Node InPlaceOperand(const hlo::Graph& graph, hlo::Node output) {
  const int32_t i = graph.owner(output);
  for (const InPlacePair& pair : InPlacePairs(graph, i)) {
    if (graph.node_base(i) + pair.output_offset != output) continue;
    return graph.node_base(graph.operands(i)[pair.operand_number]) + pair.operand_offset;
  }
  return hlo::Graph::kNoNode;
}

// A fusion is in place where the instruction behind a result is, back to a parameter of the fusion.
std::vector<InPlacePair> FusionInPlacePairs(const hlo::Graph& graph, int32_t fusion) {
  std::vector<InPlacePair> pairs;
  const int32_t computation = graph.called(fusion)[0];
  const hlo::Node root = graph.node_base(graph.root(computation));
  for (hlo::Node node = graph.node_base(fusion); node < graph.node_end(fusion); ++node) {
    if (graph.shape(node).is_tuple()) continue;
    const int32_t output_offset = node - graph.node_base(fusion);
    hlo::Node source = InPlaceOperand(graph, FollowIndirections(graph, root + output_offset));
    if (source == hlo::Graph::kNoNode) continue;
    source = FollowIndirections(graph, source);
    if (graph.op(graph.owner(source)) == hlo::Op::kFusion) {
      const hlo::Node nested = InPlaceOperand(graph, source);
      if (nested != hlo::Graph::kNoNode) source = FollowIndirections(graph, nested);
    }
    const int32_t owner = graph.owner(source);
    if (graph.op(owner) != hlo::Op::kParameter) continue;
    const auto number = static_cast<int32_t>(graph.instruction(owner).parameter_number);
    pairs.push_back({number, source - graph.node_base(owner), output_offset});
  }
  return pairs;
}

void AddAnnotatedPairs(const hlo::Graph& graph, int32_t i, std::vector<InPlacePair>* pairs) {
  const auto operands = graph.operands(i);
  for (const auto& alias : graph.instruction(i).output_operand_aliasing) {
    if (alias.operand_number < 0 || alias.operand_number >= std::ssize(operands)) continue;
    const int32_t operand = operands[alias.operand_number];
    const hlo::Node output = graph.NodeAt(i, alias.output_index), input = graph.NodeAt(operand, alias.operand_index);
    if (output == hlo::Graph::kNoNode || input == hlo::Graph::kNoNode) continue;
    pairs->push_back(
        {static_cast<int32_t>(alias.operand_number), input - graph.node_base(operand), output - graph.node_base(i)});
  }
}

// Operand k with result k, for `num_operands` operands.
std::vector<InPlacePair> OneToOnePairs(const hlo::Graph& graph, int32_t i, int32_t num_operands) {
  if (num_operands == 1) return {{0, 0, 0}};
  std::vector<InPlacePair> pairs;
  for (int32_t k = 0; k < num_operands; ++k) {
    const hlo::Node output = graph.Child(graph.node_base(i), k);
    if (output != hlo::Graph::kNoNode) pairs.push_back({k, 0, output - graph.node_base(i)});
  }
  return pairs;
}

// Collective-permute of operand, destination and where in each writes into the destination. Four that are combined into
// one have as many operands, and a tuple of results.
std::vector<InPlacePair> CollectivePermutePairs(const hlo::Graph& graph, int32_t i, hlo::Node output) {
  const auto operands = graph.operands(i);
  if (operands.size() != 4 || output == hlo::Graph::kNoNode) return {};
  const hlo::Node destination = graph.node_base(operands[1]);
  if (graph.shape(destination).is_tuple() != graph.shape(output).is_tuple()) return {};
  std::vector<InPlacePair> pairs;
  const int32_t size = std::min(graph.subtree_size(destination), graph.subtree_size(output));
  for (int32_t k = 0; k < size; ++k) pairs.push_back({1, k, output - graph.node_base(i) + k});
  return pairs;
}

// Every use of the parameter, transitively, is elementwise or a tuple.
bool HasOnlyElementwiseUses(const hlo::Graph& graph, int32_t parameter) {
  std::vector<int32_t> reached = {parameter};
  for (size_t next = 0; next < reached.size(); ++next) {
    const int32_t value = reached[next];
    for (const int32_t user : graph.users(value)) {
      const auto operands = graph.operands(user);
      for (int32_t number = 0; number < std::ssize(operands); ++number) {
        if (operands[number] != value || graph.op(user) == hlo::Op::kTuple) continue;
        if (!IsElementwiseOnOperand(graph, user, number)) return false;
      }
      if (std::ranges::find(reached, user) == reached.end()) reached.push_back(user);
    }
  }
  return true;
}

// Runs in XLA:CPU's kernel library. That such a fusion shares like a loop fusion is seen in XLA's heap
// traces (JAX 0.11.2 and 0.12.0.1), not read in its source.
bool IsYnnFusion(const hlo::Instruction& instruction) {
  return instruction.fusion_kind == "kCustom" && instruction.raw.find("__ynn_fusion") != std::string_view::npos;
}

int32_t OperandNumber(const hlo::Graph& graph, int32_t user, int32_t operand) {
  const auto operands = graph.operands(user);
  return static_cast<int32_t>(std::ranges::find(operands, operand) - operands.begin());
}

bool IsOnlyOperand(const hlo::Graph& graph, int32_t user, int32_t operand, int32_t number) {
  return std::ranges::count(graph.operands(user), operand) == 1 && OperandNumber(graph, user, operand) == number;
}

// A loop fusion (or one for XLA:CPU's kernel library) may overwrite an operand that it reads element by
// element, an output fusion `dot(...) + operand` the addend.
bool CanFusionShare(const hlo::Graph& g, hlo::Node operand_node, int32_t fusion) {
  const int32_t computation = g.called(fusion)[0];
  const int32_t parameter = g.parameter(computation, OperandNumber(g, fusion, g.owner(operand_node)));
  const std::string_view kind = g.instruction(fusion).fusion_kind;
  if (parameter < 0) return false;
  const bool is_elementwise_kind = kind == "kLoop" || kind == "kInput" || IsYnnFusion(g.instruction(fusion));
  if (is_elementwise_kind) return HasOnlyElementwiseUses(g, parameter);
  const int32_t root = g.root(computation);
  if (kind != "kOutput" || g.op(root) != hlo::Op::kAdd) return false;
  const auto addends = g.operands(root);
  for (int32_t k = 0; k < 2; ++k) {
    if (g.op(addends[k]) != hlo::Op::kConvolution && g.op(addends[k]) != hlo::Op::kDot) continue;
    return g.users(parameter).size() == 1 && addends[1 - k] == parameter && addends[k] != parameter;
  }
  return false;
}

// A call may share when the operand's only reader inside is an elementwise root.
bool CanCallShare(const HloDataflow& dataflow, hlo::Node operand_node, int32_t call) {
  const hlo::Graph& g = dataflow.graph();
  int32_t num_uses = 0;
  bool is_used_by_call = false, is_used_by_root = false;
  const int32_t root = g.root(g.called(call)[0]);
  dataflow.ForEachUse(dataflow.value_at(operand_node), [&](int32_t user, int32_t number, hlo::Node) {
    ++num_uses;
    is_used_by_call |= user == call;
    is_used_by_root |= user == root && IsElementwiseOnOperand(g, root, number);
  });
  return num_uses == 2 && is_used_by_call && is_used_by_root;
}

}  // namespace

bool ShapesAreEqual(const hlo::Shape& a, const hlo::Shape& b) {
  return a.element_type == b.element_type && a.dimensions == b.dimensions && a.minor_to_major == b.minor_to_major &&
         a.memory_space == b.memory_space && a.element_size_in_bits == b.element_size_in_bits && a.tiles == b.tiles &&
         std::ranges::equal(a.tuple_shapes, b.tuple_shapes, ShapesAreEqual);
}

std::vector<InPlacePair> InPlacePairs(const hlo::Graph& graph, int32_t i) {
  std::vector<InPlacePair> pairs;
  const auto num_operands = static_cast<int32_t>(graph.operands(i).size());
  switch (graph.op(i)) {
    case hlo::Op::kDynamicUpdateSlice:
    case hlo::Op::kSetDimensionSize:
      return {{0, 0, 0}};
    case hlo::Op::kScatter:  // operands, indices, updates
      return OneToOnePairs(graph, i, (num_operands - 1) / 2);
    case hlo::Op::kAllReduceStart:
      return OneToOnePairs(graph, i, num_operands);
    case hlo::Op::kCollectivePermute:
      return CollectivePermutePairs(graph, i, graph.node_base(i));
    case hlo::Op::kCollectivePermuteStart:
      return CollectivePermutePairs(graph, i, graph.Child(graph.node_base(i), 1));
    case hlo::Op::kRaggedAllToAll:
      return {{1, 0, 0}};
    case hlo::Op::kFusion:
      pairs = FusionInPlacePairs(graph, i);
      [[fallthrough]];
    case hlo::Op::kCustomCall:
    case hlo::Op::kAsyncStart:
      AddAnnotatedPairs(graph, i, &pairs);
      return pairs;
    default:
      return {};
  }
}

bool IsElementwiseOnOperand(const hlo::Graph& graph, int32_t i, int32_t operand_number) {
  if (graph.op(i) == hlo::Op::kDynamicUpdateSlice) return operand_number == 0;
  if (graph.op(i) == hlo::Op::kBitcastConvert) {  // not elementwise between types of different width
    return graph.instruction(i).shape->dimensions == graph.instruction(graph.operands(i)[0]).shape->dimensions;
  }
  return graph.opcode(i).is_elementwise;
}

bool MayTakeBuffer(const HloDataflow& dataflow, HloPlatform platform, hlo::Node operand_node, hlo::Node user_node) {
  const hlo::Graph& g = dataflow.graph();
  const int32_t operand = g.owner(operand_node), user = g.owner(user_node);
  if (platform == HloPlatform::kGpu && g.op(user) == hlo::Op::kFusion) {
    return CanGpuFusionShare(g, operand_node, user_node);
  }
  if (!ShapesAreEqual(g.shape(operand_node), g.shape(user_node))) return false;
  switch (g.op(user)) {
    case hlo::Op::kFusion:
      return CanFusionShare(g, operand_node, user);
    case hlo::Op::kWhile:
    case hlo::Op::kConditional:
      return true;
    case hlo::Op::kDynamicUpdateSlice:
    case hlo::Op::kScatter:
    case hlo::Op::kSetDimensionSize:
      return IsOnlyOperand(g, user, operand, 0);
    case hlo::Op::kTriangularSolve:
      return IsOnlyOperand(g, user, operand, 1);
    case hlo::Op::kSort: {
      if (g.users(operand).size() != 1) return false;
      if (g.operands(user).size() == 1) return true;
      const int32_t number = OperandNumber(g, user, operand);
      return IsOnlyOperand(g, user, operand, number) && g.Child(g.node_base(user), number) == user_node;
    }
    case hlo::Op::kCall:
      return CanCallShare(dataflow, operand_node, user);
    case hlo::Op::kAllReduce:
      return platform != HloPlatform::kCpu &&
             (g.operands(user).size() == 1 || g.Child(g.node_base(user), OperandNumber(g, user, operand)) == user_node);
    default:
      return IsElementwiseOnOperand(g, user, OperandNumber(g, user, operand));
  }
}

}  // namespace coopjax
