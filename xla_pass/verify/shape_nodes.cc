#include "verify/shape_nodes.h"

#include <algorithm>
#include <iterator>

namespace coopjax::verify {

ShapeNodes::ShapeNodes(const hlo::Module& module) : module_(module) {
  for (auto* list : {&firsts_, &owners_, &subtree_sizes_}) list->reserve(num_instructions() + 1);
  for (int32_t i = 0; i < num_instructions(); ++i) {
    firsts_.push_back(num_nodes());
    AddShape(*instruction(i).shape, i);
  }
  firsts_.push_back(num_nodes());
  std::vector<int32_t> row;
  for (const hlo::Computation& computation : module.computations) {
    roots_.push_back(module.instruction_index.Find(computation.root_id));
    row.clear();
    std::ranges::copy_if(computation.instructions, std::back_inserter(row),
                         [this](int32_t i) { return op(i) == hlo::Op::kParameter; });
    parameters_.AddRow(row);
  }
}

void ShapeNodes::AddShape(const hlo::Shape& shape, int32_t owner) {
  const ShapeNode node = num_nodes();
  shapes_.push_back(&shape);
  owners_.push_back(owner);
  subtree_sizes_.push_back(1);
  if (!shape.is_tuple()) return;
  for (const hlo::Shape& element : shape.tuple_shapes) AddShape(element, owner);
  subtree_sizes_[node] = num_nodes() - node;
}

int32_t ShapeNodes::parameter(int32_t computation, int64_t number) const {
  const auto parameters = parameters_[computation];
  // They usually stand in the order of their numbers.
  if (number >= 0 && number < std::ssize(parameters) && instruction(parameters[number]).parameter_number == number) {
    return parameters[number];
  }
  for (const int32_t i : parameters) {
    if (instruction(i).parameter_number == number) return i;
  }
  return -1;
}

ShapeNode ShapeNodes::Child(ShapeNode tuple, int64_t index) const {
  if (index < 0 || !is_tuple(tuple) || index >= std::ssize(shapes_[tuple]->tuple_shapes)) return kNoNode;
  ShapeNode child = tuple + 1;
  for (; index > 0; --index) child += subtree_sizes_[child];
  return child;
}

ShapeNode ShapeNodes::At(int32_t i, std::span<const int64_t> path) const {
  ShapeNode node = first(i);
  for (const int64_t index : path) {
    node = Child(node, index);
    if (node == kNoNode) return kNoNode;
  }
  return node;
}

ShapeNode ShapeNodes::OperandNode(int32_t i, int64_t number, int32_t offset) const {
  if (number < 0 || number >= std::ssize(operands(i)) || offset < 0) return kNoNode;
  const int32_t operand = operands(i)[number];
  const ShapeNode node = first(operand) + offset;
  return node < end(operand) ? node : kNoNode;
}

}  // namespace coopjax::verify
