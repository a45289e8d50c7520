// The sequence that FastSA anneals: a row of slots, each a node or nothing, with live bytes that follow
// every mutation (FastSA, section 3 and App. B.1).
//
// A mutation puts a node into an empty slot (add), takes one away (remove), or both with the same node
// (rotate). It goes in three steps: Probe() says whether the result is a valid sequence and which ranges
// of slots gain or lose bytes; Apply() puts these on the PeakTree and returns the new peak; Commit() keeps
// it or Undo() takes the bytes back. Reads and productions change at Commit() only, so that a rejected
// mutation costs no more than its bytes.
//
// A value is live between two neighbouring events exactly if the second uses it, and at its productions
// and reads. So a new event changes bytes only between its neighbours:
//   production at t, next event a use: the value is made anew, (previous, t) loses it; else t gains it;
//   read at t, no use next: (previous, t] gains it;     overwrite at t: (previous, t) gains it;
// and a removed one takes the same back. Sharing (may_share) is a discount at the slot of the op that takes
// the buffer over; it follows from which inputs die there. All rules are those of program/step_program.h, and the
// peak of a sequence of single ops is that of ComputeLiveness, byte for byte.
//
// O(touched values x (log events + log slots)) per mutation.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/peak_tree.h"
#include "planners/fastsa/events.h"
#include "planners/fastsa/node_groups.h"

namespace coopjax {

struct Mutation {
  NodeId node;
  Slot from = kNoSlot;   // kNoSlot: add
  Slot to = kNoSlot;     // kNoSlot: remove
};

class AnnealState {
 public:
  // `sequence` is valid, with every node that has members at least once; it is spread evenly over the
  // slots, whose number is a power of two above the length of `sequence`. `nodes` must outlive this.
  AnnealState(const NodeGraph& nodes, std::span<const NodeId> sequence, int32_t num_slots);

  int32_t num_slots() const { return tree_.num_slots(); }
  int32_t num_occupied() const { return static_cast<int32_t>(occupied_.size()); }
  Slot occupied_slot(int32_t i) const { return occupied_[i].slot; }   // in no order
  bool is_empty(Slot slot) const { return index_at_[slot] < 0; }
  NodeId node_at(Slot slot) const { return occupied_[index_at_[slot]].node; }
  int64_t peak_bytes() const { return tree_.peak(); }
  int64_t cost_ticks() const { return cost_ticks_; }
  std::vector<NodeId> Sequence() const;

  // Whether the sequence would be valid. `from` holds the node, `to` is empty.
  bool Probe(const Mutation& mutation);
  // Of the mutation probed last: by how much it changes the cost; no more than what Apply() would return, but
  // cheap.
  int64_t CostChange() const;
  int64_t PeakAtLeast();
  int64_t Apply();
  void Undo();
  void Commit();

  // For tests: live bytes at each occupied slot, in slot order.
  std::vector<int64_t> LiveBytes() const;

 private:
  struct Occupied {
    Slot slot;
    NodeId node;
    int64_t own_bytes;    // workspace less what inputs pass on to outputs here
  };
  struct Change {         // live bytes on [begin, end)
    Slot begin;
    Slot end;
    int64_t bytes;
  };

  bool ProbeControl() const;
  bool ProbeTake(const Touch& touch, int32_t* taken);
  bool ProbePut(const Touch& touch, int32_t taken);
  void ProbeOwnBytes();
  void AddChange(Slot begin, Slot end, int64_t bytes) { changes_.push_back({begin, end, bytes}); }
  void NoteGiver(ValueId v, const Event* reader);
  void MergeChanges();
  bool DiesAt(ValueId v, Slot slot) const;
  int64_t OwnBytes(NodeId node, Slot slot);
  void MoveEvents();
  void MoveRuns();
  void MoveOccupied();

  const NodeGraph& nodes_;
  PeakTree tree_;
  std::vector<EventList> events_;              // by value
  std::vector<Occupied> occupied_;
  std::vector<int32_t> index_at_;              // by slot: into occupied_, -1 when empty
  std::vector<int32_t> num_runs_;              // by node
  std::vector<std::vector<Slot>> runs_;        // by node, sorted; only of those with control edges
  int64_t cost_ticks_ = 0;
  Slot peak_slot_ = kNoSlot;                   // known unless kNoSlot

  // Of the mutation probed last.
  Mutation mutation_ = {0};
  std::vector<Change> changes_;
  std::vector<std::pair<Slot, int64_t>> ends_;   // scratch of MergeChanges
  std::vector<Slot> givers_;                   // slots where inputs that may be shared start or cease to die
  std::vector<std::pair<Slot, int64_t>> own_bytes_;   // new ones
  std::vector<const MayShare*> settled_;              // scratch of OwnBytes
};

}  // namespace coopjax
