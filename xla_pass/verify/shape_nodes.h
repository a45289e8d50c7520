// An HloModule by index, and the nodes of its shapes: what the verifier walks.
//
// A node is one shape of an instruction's shape tree, numbered in pre-order within the module, so that
// the subtree of a tuple's element is a contiguous range. Everything is as it stands in the module
// (hlo/graph.h, which the planners use, shows the module as XLA will have it after the hook).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/csr.h"
#include "hlo/module.h"
#include "hlo/opcode.h"

namespace coopjax::verify {

using ShapeNode = int32_t;
inline constexpr ShapeNode kNoNode = -1;

class ShapeNodes {
 public:
  // `module` must outlive the index.
  explicit ShapeNodes(const hlo::Module& module);

  const hlo::Module& module() const { return module_; }
  int32_t num_instructions() const { return static_cast<int32_t>(module_.instructions.size()); }
  const hlo::Instruction& instruction(int32_t i) const { return module_.instructions[i]; }
  hlo::Op op(int32_t i) const { return instruction(i).info.op; }
  bool is_pure(int32_t i) const { return instruction(i).info.is_pure; }
  std::span<const int32_t> operands(int32_t i) const { return instruction(i).operands; }
  std::span<const int32_t> called(int32_t i) const { return instruction(i).called; }
  int32_t root(int32_t computation) const { return roots_[computation]; }
  // Instruction index, -1 when there is no parameter of that number.
  int32_t parameter(int32_t computation, int64_t number) const;

  int32_t num_nodes() const { return static_cast<int32_t>(owners_.size()); }
  ShapeNode first(int32_t i) const { return firsts_[i]; }
  ShapeNode end(int32_t i) const { return firsts_[i + 1]; }
  int32_t owner(ShapeNode node) const { return owners_[node]; }  // the instruction
  int32_t subtree_size(ShapeNode node) const { return subtree_sizes_[node]; }
  bool is_tuple(ShapeNode node) const { return shapes_[node]->is_tuple(); }
  // An element of a tuple, or the node that an index path leads to; kNoNode when there is none.
  ShapeNode Child(ShapeNode tuple, int64_t index) const;
  ShapeNode At(int32_t i, std::span<const int64_t> path) const;
  // The node at `offset` in the tree of operand `number`; kNoNode when there is none.
  ShapeNode OperandNode(int32_t i, int64_t number, int32_t offset) const;

 private:
  void AddShape(const hlo::Shape& shape, int32_t owner);

  const hlo::Module& module_;
  std::vector<int32_t> roots_;
  Csr parameters_;  // [computation] instruction indices, in list order
  std::vector<ShapeNode> firsts_;
  std::vector<const hlo::Shape*> shapes_;
  std::vector<int32_t> owners_, subtree_sizes_;
};

}  // namespace coopjax::verify
