// What a checkpointed region saves: the least recompute for every number of bytes.
//
// The backward pass reads some values of the region. A value that is not saved makes its op run again, and with it all
// ops that it needs, down to saved values and the region's inputs. With a price per byte saved, the best choice is a
// minimum cut (value -> its producer: the price of saving it; producer -> sink: the cost of running it again). With a
// limit on the bytes it is a cut with a knapsack on top: branch and bound over values saved and not saved, where the
// best price gives the bound (Lagrange) and its two cuts, one on either side of the limit, say what to branch on.
//
// Weakness: a search that uses up its cuts leaves a gap; `SavedSet::least_cost` tells it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/csr.h"

namespace coopjax {

struct SavingProblem {
  Csr inputs;                         // per op, in an order in which they can run: the values that it reads
  Csr outputs;                        // per op: the values that it makes, each made by one op
  std::vector<double> op_cost;        // of running it once more; infinite if that must not be
  std::vector<int64_t> value_bytes;   // that saving it takes; -1: it can't be saved
  std::vector<int32_t> wanted;        // values that the backward pass reads
};

struct SavedSet {
  std::vector<int32_t> values;   // ascending
  int64_t bytes = 0;
  double cost = 0;               // of what is run again
  double least_cost = 0;         // no choice of so many bytes costs less
};

struct SaveFrontierOptions {
  int32_t max_sets = 64;         // that the frontier has at most, at least a 64th of its bytes apart
  int64_t max_cuts = 60;  // minimum cuts for one of them; less in large problems, so that all take about as long
  double relative_gap = 1e-3;  // of the cost of saving nothing: what is no reason to search on
  bool is_early = false;  // of choices that cost as much, the one that saves the values made first, not last
};

// From the fewest bytes to the least cost, each set with more bytes and less cost than the one before. Empty if a
// wanted value can neither be saved nor made again.
std::vector<SavedSet> SaveFrontier(const SavingProblem& problem, const SaveFrontierOptions& options = {});

}  // namespace coopjax
