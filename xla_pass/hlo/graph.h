// The edges of an HloModule by index: operands, users, callers, and the nodes of every shape tree.
//
// A shape tree is numbered in pre-order, so the subtree of a tuple element is a contiguous range and
// "get-tuple-element" or "tuple" forward ranges. A Node is such a number within the whole module:
// node_base(instruction) + offset.
//
// Optimization barriers are looked through, because XLA:CPU removes them after this stage: a user of
// get-tuple-element(barrier(tuple(a, b))) is a user of a or b, and barrier, tuple and element are gone. So is what only
// barriers kept: where nobody reads element b, XLA (for CPU, GPU and TPU) removes b's maker and what that alone read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/csr.h"
#include "hlo/module.h"
#include "hlo/opcode.h"

namespace coopjax::hlo {

using Node = int32_t;

class Graph {
 public:
  // `module` must outlive the graph.
  explicit Graph(const Module& module);

  const Module& module() const { return module_; }
  const Instruction& instruction(int32_t i) const { return module_.instructions[i]; }
  int32_t num_instructions() const { return static_cast<int32_t>(module_.instructions.size()); }
  Op op(int32_t i) const { return instruction(i).info.op; }
  const OpcodeInfo& opcode(int32_t i) const { return instruction(i).info; }

  std::span<const int32_t> operands(int32_t i) const { return operands_[i]; }
  std::span<const int32_t> users(int32_t i) const { return users_[i]; }  // each once
  // Every operand that the instruction is, in the order of users and of their operands.
  struct Use {
    int32_t user = -1;
    int32_t operand_number = 0;
  };
  std::span<const Use> uses(int32_t i) const {
    return std::span(uses_).subspan(use_offsets_[i], use_offsets_[i + 1] - use_offsets_[i]);
  }
  std::span<const int32_t> control_predecessors(int32_t i) const { return control_predecessors_[i]; }
  std::span<const int32_t> called(int32_t i) const { return instruction(i).called; }  // computation indices
  bool is_user_of(int32_t user, int32_t operand) const;
  // A barrier, a tuple or element that only served one, or what nobody reads without them and that does nothing else:
  // no effects, no control edges, no writes into operands. Not in any sequence, has no edges, calls nothing.
  bool is_dropped(int32_t i) const { return is_dropped_[i]; }

  // Per computation.
  std::span<const int32_t> callers(int32_t computation) const { return callers_[computation]; }
  int32_t root(int32_t computation) const { return roots_[computation]; }
  bool is_root(int32_t i) const { return roots_[instruction(i).computation] == i; }
  std::span<const int32_t> sequence(int32_t computation) const { return sequences_[computation]; }
  // Instruction index of a parameter, -1 when there is none of that number.
  int32_t parameter(int32_t computation, int64_t number) const;
  // Reached from the entry through call, while, conditional and async only: its values have buffers
  // in the whole-program heap. (Fusions, reducers and the like have none.)
  bool is_control_flow(int32_t computation) const { return is_control_flow_[computation]; }
  // The instructions of a computation in the order that XLA gives them when it reads a module.
  std::vector<int32_t> ById(int32_t computation) const;
  // The instructions of a computation in the depth-first post-order by which XLA numbers values.
  std::vector<int32_t> PostOrder(int32_t computation) const;
  // Control-flow computations, callees first, in the order in which XLA's call graph visits them.
  std::vector<int32_t> CallGraphPostOrder() const;

  // Shape trees.
  int32_t num_nodes() const { return static_cast<int32_t>(shapes_.size()); }
  Node node_base(int32_t i) const { return node_base_[i]; }
  Node node_end(int32_t i) const { return node_base_[i + 1]; }
  const Shape& shape(Node node) const { return *shapes_[node]; }
  int32_t subtree_size(Node node) const { return subtree_sizes_[node]; }
  int32_t owner(Node node) const { return owners_[node]; }
  // The node of an index path, kNoNode when the shape has no such element.
  Node NodeAt(int32_t i, std::span<const int64_t> path) const;
  Node Child(Node tuple, int64_t index) const;
  std::vector<int64_t> PathOf(Node node) const;
  static constexpr Node kNoNode = -1;

 private:
  std::vector<int32_t> LookThroughBarriers() const;
  std::vector<uint8_t> FindRemovable() const;
  void MarkDropped(const std::vector<int32_t>& resolved);
  void AddEdges(const std::vector<int32_t>& resolved);
  void AddUses();
  void AddComputation(const Computation& computation, const std::vector<int32_t>& resolved);
  void AddShape(const Shape& shape, int32_t owner);
  void MarkControlFlow();

  const Module& module_;
  Csr operands_, users_, control_predecessors_, callers_, sequences_, parameters_;
  std::vector<int32_t> use_offsets_;
  std::vector<Use> uses_;
  std::vector<int32_t> roots_;
  std::vector<uint8_t> is_dropped_;
  std::vector<uint8_t> is_control_flow_;
  std::vector<Node> node_base_;
  std::vector<const Shape*> shapes_;
  std::vector<int32_t> subtree_sizes_, owners_;
};

}  // namespace coopjax::hlo
