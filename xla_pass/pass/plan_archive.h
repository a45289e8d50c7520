// The plans of one search that are worth keeping, and which of them is the one to take.
//
// Plans are kept by two measures, temporary bytes and recompute cost: one that another is no worse than in both is
// dropped. What is taken is the cheapest within the budget; where none holds it, the cheapest of those near the
// smallest.
//
// Plans that lose bytes between their buffers are kept apart as well, the best few by what they would take if they lost
// none: moving their runs about (pass/repacking.h) may make one of them the one to take.
#pragma once

#include <cstdint>
#include <vector>

#include "pass/carried_out.h"

namespace coopjax {

struct PlanArchiveOptions {
  int64_t budget_bytes = 0;
  int64_t came_bytes = 0;  // temporary bytes of the module as it came: plans that take as many are dropped
  double near_smallest = 1;  // times the smallest temporary bytes, where the budget is out of reach
};

class PlanArchive {
 public:
  explicit PlanArchive(const PlanArchiveOptions& options) : options_(options) {}

  void Keep(const CarriedOut& plan);
  // Among those to repack. Of equals those that came first.
  void KeepLoose(const CarriedOut& plan);

  // The one to take; null where none is kept. Until the next Keep.
  const CarriedOut* Chosen() const;
  // Whether the plan would be taken if it lost no bytes between its buffers.
  bool MayGain(const CarriedOut& loose) const;
  const std::vector<CarriedOut>& loose() const { return loose_; }  // the best first

 private:
  PlanArchiveOptions options_;
  std::vector<CarriedOut> plans_;  // none of which is worse than another in all ways
  std::vector<CarriedOut> loose_;  // by LeastRank
};

}  // namespace coopjax
