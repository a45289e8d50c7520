// A plan of a module that was carried out, and what came of it: how plans compare.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bridge/hlo_program.h"
#include "buffers/analysis.h"
#include "buffers/heap.h"
#include "hlo/module.h"
#include "pass/inner_planner.h"
#include "pass/remat_planner.h"

namespace coopjax {

// A heap takes at most so many times the least that a packing of the same buffers takes: hardly a byte is lost.
inline constexpr double kNearlyPacked = 1.005;

inline int64_t Times(double factor, int64_t bytes) { return static_cast<int64_t>(factor * static_cast<double>(bytes)); }

// Less is better.
struct PlanRank {
  int64_t excess_bytes = 0;                  // above the budget
  double cost_s = 0;
  int64_t temp_bytes = 0;

  auto operator<=>(const PlanRank&) const = default;
};

struct CarriedOut {
  ModulePlan plan = {};                      // of the entry
  std::shared_ptr<const std::vector<InnerPlan>> inner = nullptr;   // null: nothing was planned inside
  double share = 1;                          // that it was planned with; see pass/inner_planner.h
  double cost_s = 0;                         // of all repeats
  std::vector<int64_t> op_workspace_bytes = {};   // of the entry, with what was planned inside
  HeapResult heap = {};
  std::shared_ptr<const hlo::Module> module = nullptr;

  PlanRank Rank(int64_t budget_bytes) const { return RankAt(heap.temp_bytes, budget_bytes); }
  // Were nothing lost between its buffers.
  PlanRank LeastRank(int64_t budget_bytes) const { return RankAt(heap.least_temp_bytes, budget_bytes); }

 private:
  PlanRank RankAt(int64_t temp_bytes, int64_t budget_bytes) const {
    return {std::max<int64_t>(temp_bytes - budget_bytes, 0), cost_s, temp_bytes};
  }
};

// Whether hardly a byte is lost between buffers.
bool IsPacked(const HeapResult& heap);

// Carries the plan of the entry out and fills in what comes of it; false, and why in `fault`, where it can't be.
bool CarryOut(const HloAnalysis& analysis, const HloProgram& hlo, CarriedOut* carried_out, std::string* fault);

}  // namespace coopjax
