#include "planners/fastsa/best.h"

#include <algorithm>

namespace coopjax {

BestSequence::BestSequence(const AnnealState& state) : state_(state) { Copy(); }

void BestSequence::Copy() {
  node_at_.assign(state_.num_slots(), -1);
  for (int32_t i = 0; i < state_.num_occupied(); ++i) {
    const Slot slot = state_.occupied_slot(i);
    node_at_[slot] = state_.node_at(slot);
  }
  journal_.clear();
  best_length_ = 0;
  is_cut_off_ = false;
}

void BestSequence::Committed(const Mutation& mutation) {
  if (is_cut_off_) return;
  journal_.push_back(mutation);
  // As many mutations as slots pay for a copy of all slots.
  if (journal_.size() < node_at_.size()) return;
  Replay(best_length_, &node_at_);
  is_cut_off_ = best_length_ < journal_.size();
  journal_.clear();
  best_length_ = 0;
}

void BestSequence::IsBest() {
  if (is_cut_off_) Copy();
  best_length_ = journal_.size();
}

void BestSequence::Replay(size_t num_mutations, std::vector<NodeId>* node_at) const {
  for (size_t i = 0; i < num_mutations; ++i) {
    const Mutation& mutation = journal_[i];
    if (mutation.from != kNoSlot) (*node_at)[mutation.from] = -1;
    if (mutation.to != kNoSlot) (*node_at)[mutation.to] = mutation.node;
  }
}

std::vector<NodeId> BestSequence::Sequence() const {
  std::vector<NodeId> sequence = node_at_;
  Replay(best_length_, &sequence);
  std::erase(sequence, -1);
  return sequence;
}

}  // namespace coopjax
