// What FastSA anneals: nodes, each one op or a group of ops that always run together.
//
// Node grouping (FastSA, App. C.1): walk the order; a node whose inputs are no larger than its outputs
// is made again by each of its readers rather than kept, so it joins each of them and vanishes. A chain
// of equal sizes comes down to constant memory in this way. Added to the paper:
//  * what a reader takes in by two ways it runs twice, as in the paper, only if that saves bytes inside; else
//    once (diamonds in a row would double their groups each time);
//  * what may not run twice, touches storage that is overwritten later, or has control edges stays out;
//  * growth is bounded: the ops of all groups together fit `max_members`, those of one a sixteenth of that.
// O(ops in all groups x inputs).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/dependences.h"
#include "program/step_program.h"

namespace coopjax {

using NodeId = int32_t;

// What a node does to a value, in two bits. An overwrite is also the last read (in-place).
enum class TouchKind : uint8_t { kMake = 0, kRead = 1, kOverwrite = 2 };

struct Touch {
  ValueId value;
  TouchKind kind;
};

// The cost of the whole program in integer ticks, so that adding and taking back is exact.
inline constexpr int64_t kProgramTicks = int64_t{1} << 36;

struct NodeGraph {
  explicit NodeGraph(const StepProgram& program);

  // Per node.
  Csr members;                              // OpIds in the order they run
  std::vector<int32_t> touch_offsets = {0};
  std::vector<Touch> touches;               // at most one per value, none of what needs neither bytes nor order
  std::vector<int64_t> cost_ticks;
  std::vector<int64_t> workspace_bytes;     // above the node's inputs and outputs, while it runs
  std::vector<uint8_t> may_run_twice;
  Csr control_before, control_after;        // NodeIds: whose first run precedes, or follows, the node's

  // Per value.
  std::vector<int64_t> live_bytes;          // 0 for what takes no budget
  std::vector<uint8_t> is_given;            // exists before the first step
  std::vector<uint8_t> may_be_shared;       // some op may take its buffer over

  int32_t num_nodes() const { return members.num_rows(); }
  std::span<const Touch> touches_of(NodeId n) const {
    return {touches.data() + touch_offsets[n], static_cast<size_t>(touch_offsets[n + 1] - touch_offsets[n])};
  }
  // Sharing inside a group is not counted: its bytes are an upper bound.
  std::span<const MayShare> shares_of(NodeId n) const {
    return members[n].size() == 1 ? shares[n] : std::span<const MayShare>();
  }

  ShareIndex shares;                        // by op
};

// One node per op, with the op's id.
NodeGraph SingleNodes(const StepProgram& program);

struct GroupedOrder {
  NodeGraph nodes;                          // those that joined their readers have no members and no touches
  std::vector<NodeId> order;                // the others, each once; a node has the id of its last op
};

// `order` is valid and without repeats.
GroupedOrder GroupNodes(const StepProgram& program, std::span<const OpId> order, int64_t max_members);

// The ops that a sequence of nodes runs.
Schedule MembersInOrder(const NodeGraph& nodes, std::span<const NodeId> sequence);

}  // namespace coopjax
