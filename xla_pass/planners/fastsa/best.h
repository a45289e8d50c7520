// The best sequence that an annealing run has seen, kept without copying it at every new best.
//
// A dense copy of the slots plus the mutations committed since: a new best only marks where in that journal
// it stands. O(1) amortized per commit.
#pragma once

#include <cstddef>
#include <vector>

#include "planners/fastsa/state.h"

namespace coopjax {

class BestSequence {
 public:
  // `state` as it is now is the best; it must outlive this.
  explicit BestSequence(const AnnealState& state);

  void Committed(const Mutation& mutation);   // call after every commit to `state`
  void IsBest();                              // `state` as it is now is the best
  std::vector<NodeId> Sequence() const;

 private:
  void Copy();
  void Replay(size_t num_mutations, std::vector<NodeId>* node_at) const;

  const AnnealState& state_;
  std::vector<NodeId> node_at_;               // by slot, -1 when empty
  std::vector<Mutation> journal_;             // since `node_at_`
  size_t best_length_ = 0;                    // mutations of the journal that lead to the best
  bool is_cut_off_ = false;                   // the journal stopped; the next best is copied
};

}  // namespace coopjax
