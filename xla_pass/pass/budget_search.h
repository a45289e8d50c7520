// A module's plan within a budget: planned, carried out and judged by the heap that XLA will make of it, in rounds.
//
// Planners bound live bytes, XLA packs buffers: after each round the limit moves by what the predicted heap is off the
// budget, down for fragmentation, up where XLA puts temporaries into output buffers that are still free. Where what
// loops, conditionals and calls run stands in the way, it is planned first (pass/inner_planner.h), and the budget is split
// between the entry and it in a few ways: first the entry does all, then the insides, then both. At last the entry's runs
// are moved about in plans that would be better than the best if they lost fewer bytes between their buffers.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pass/inner_planner.h"
#include "planners/orders/packed_order.h"
#include "bridge/read_module.h"
#include "pass/remat_planner.h"
#include "base/stopwatch.h"

namespace coopjax {

// Less is better.
struct PlanRank {
  int64_t excess_bytes = 0;                  // above the budget
  double cost_s = 0;
  int64_t temp_bytes = 0;

  auto operator<=>(const PlanRank&) const = default;
};

// A plan carried out.
struct CarriedOut {
  ModulePlan plan = {};                       // of the entry
  std::shared_ptr<const std::vector<InnerPlan>> inner = nullptr;   // null: nothing was planned inside
  double share = 1;                          // that it was planned with; see pass/inner_planner.h
  double cost_s = 0;                         // of all repeats
  std::vector<int64_t> op_workspace_bytes = {};   // of the entry, with what was planned inside
  HeapResult heap = {};
  std::shared_ptr<const HloModule> module = nullptr;

  PlanRank Rank(int64_t budget_bytes) const { return RankAt(heap.temp_bytes, budget_bytes); }
  // Were nothing lost between its buffers.
  PlanRank LeastRank(int64_t budget_bytes) const { return RankAt(heap.least_temp_bytes, budget_bytes); }

 private:
  PlanRank RankAt(int64_t temp_bytes, int64_t budget_bytes) const {
    return {std::max<int64_t>(temp_bytes - budget_bytes, 0), cost_s, temp_bytes};
  }
};

struct PlanRound {
  int64_t limit_bytes = 0;                   // of live bytes, that the planner was given
  int64_t peak_live_bytes = 0;
  int64_t temp_bytes = 0;                    // predicted
  double recompute_cost_s = 0;
  std::string planner;
  double share = 1;                          // CarriedOut's
  struct Inside { std::string name; int64_t peak_live_bytes; std::string planner; };
  std::vector<Inside> inside;
};

struct BudgetSearchOptions {
  int64_t budget_bytes = 0;                  // of the module's temporaries
  int32_t max_rounds = 6;                    // with one split of the budget
  double near_smallest = 1;                  // see RecomputeOrderOptions
};

class BudgetSearch {
 public:
  // `original` is of the module as it came, which takes `temp_bytes`. All references must outlive the search.
  BudgetSearch(const HloAnalysis& original, int64_t temp_bytes, const ProgramReader& reader,
               const RematPlanners& planners, const BudgetSearchOptions& options, const Deadline& deadline)
      : original_(original), temp_bytes_(temp_bytes), reader_(reader), planners_(planners), options_(options),
        deadline_(deadline) {}

  // Searches plans for the module as it came or with other orders inside, which `analysis` is of; `hlo` is its entry and
  // `starts` orders of that, the best first; none: planners choose. Returns whether the insides are in the way of
  // something better, as far as splits can tell. May run more than once.
  bool Run(const HloAnalysis& analysis, const HloProgram& hlo, std::vector<Schedule> starts);

  // Within the budget, then cheap, then small; if none holds it, the cheapest of those near the smallest. None where
  // nothing takes less than the module as it came.
  std::optional<CarriedOut> TakeBest();
  const std::vector<PlanRound>& rounds() const { return rounds_; }
  const std::vector<int64_t>& least_workspaces() const { return least_workspaces_; }   // InnerPlanner's
  const std::string& fault() const { return fault_; }    // of a planner or a rewrite; may be empty
  double plan_s() const { return plan_s_; }
  double emit_s() const { return emit_s_; }

 private:
  // The best with one split of the budget.
  struct Tried {
    PlanRank rank;
    int64_t peak_bytes = 0;
    bool recomputes = false;                     // in the entry
  };

  const HloProgram& hlo() const { return inner_hlo_ ? *inner_hlo_ : *hlo_; }
  const HloAnalysis& analysis() const { return inside_.module ? *inside_.module->analysis : *analysis_; }

  void Split();
  bool IsHopeless(const Tried& alone) const;
  double NextShare() const;
  void PlanShare(double share);
  std::vector<ModulePlan> PlanStarts(int64_t limit_bytes);
  std::vector<ModulePlan> PlanFrom(std::span<const OpId> order, const std::string& planner, int64_t limit_bytes);
  void PlanInside(int64_t limit_bytes, double share);
  void Settle(const ModulePlan& nearest, double share);
  int64_t Consider(const ModulePlan& plan, double share);
  void Log(const CarriedOut& candidate);
  void Keep(const CarriedOut& candidate);
  void KeepLoose(const CarriedOut& candidate);
  std::vector<CarriedOut>::const_iterator Chosen() const;
  bool MayGain(const CarriedOut& loose) const;
  bool MoveRuns(const PackedOrderOptions& options, CarriedOut* loose);
  void Repack();

  const HloAnalysis& original_;
  const int64_t temp_bytes_;
  const ProgramReader& reader_;
  const RematPlanners& planners_;
  const BudgetSearchOptions options_;
  const Deadline deadline_;
  // Of the run.
  const HloAnalysis* analysis_ = nullptr;
  const HloProgram* hlo_ = nullptr;
  std::vector<Schedule> starts_;
  std::optional<InnerPlanner> inner_;
  std::map<double, Tried> tried_;                // by share
  // With the split and the limit of the round.
  PlannedInside inside_;
  std::shared_ptr<const std::vector<InnerPlan>> inner_plans_;
  std::optional<HloProgram> inner_hlo_;          // the entry, where something was planned inside
  std::map<Schedule, CarriedOut> carried_out_;    // with that inside: planners often agree
  std::vector<CarriedOut> candidates_;            // none of which is worse than another in all ways
  std::vector<CarriedOut> loose_;                 // the best few that lose bytes between their buffers, by LeastRank
  std::vector<PlanRound> rounds_;
  std::vector<int64_t> least_workspaces_;
  std::string fault_;
  double plan_s_ = 0, emit_s_ = 0;
};

// Whether hardly a byte is lost between buffers.
bool IsPacked(const HeapResult& heap);

// Carries the plan of the entry out and fills in what comes of it; false, and why in `fault`, where it can't be.
bool CarryOut(const HloAnalysis& analysis, const HloProgram& hlo, CarriedOut* candidate, std::string* fault);

}  // namespace coopjax
