// A module's plan within a budget: planned, carried out and judged by the heap that XLA will make of it, in rounds.
//
// Planners bound live bytes, XLA packs buffers: after each round the limit moves by what the predicted heap is off the
// budget, down for fragmentation, up where XLA puts temporaries into output buffers that are still free. Where what
// loops, conditionals and calls run stands in the way, it is planned first (pass/inner_planner.h), and the budget is
// split between the entry and it in a few ways: first the entry does all, then the insides, then both. At last the
// entry's runs are moved about in plans that would be better than the best if they lost fewer bytes between their
// buffers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/allowance.h"
#include "bridge/read_module.h"
#include "pass/carried_out.h"
#include "pass/inner_planner.h"
#include "pass/output_room.h"
#include "pass/plan_archive.h"
#include "pass/remat_planner.h"

namespace coopjax {

struct PlanRound {
  int64_t limit_bytes = 0;                   // of live bytes, that the planner was given
  int64_t peak_live_bytes = 0;
  int64_t temp_bytes = 0;                    // predicted
  double recompute_cost_s = 0;
  std::string planner;
  double share = 1;                          // CarriedOut's
  struct Inside {
    std::string name;
    int64_t peak_live_bytes;
    std::string planner;
  };
  std::vector<Inside> inside;
};

struct BudgetSearchOptions {
  int64_t budget_bytes = 0;                  // of the module's temporaries
  int64_t came_bytes = 0;                    // that the module as it came takes
  int32_t max_rounds = 6;                    // with one split of the budget
  double near_smallest = 1;                  // see RecomputeOrderOptions
};

struct BudgetSearchReport {
  std::vector<PlanRound> rounds;
  std::vector<int64_t> least_workspaces;     // InnerPlanner's
  std::string fault;                         // of a planner or a rewrite; may be empty
  double plan_s = 0;
  double emit_s = 0;                         // rewriting, and predicting the memory of what came out
};

class BudgetSearch {
 public:
  // `original` is of the module as it came. All references must outlive the search.
  BudgetSearch(const HloAnalysis& original, const ProgramReader& reader, const RematPlanners& planners,
               const BudgetSearchOptions& options, const Allowance& allowance)
      : original_(original),
        reader_(reader),
        planners_(planners),
        options_(options),
        allowance_(allowance),
        archive_({options.budget_bytes, options.came_bytes, options.near_smallest}) {}

  // Searches plans for the module as it came or with other orders inside, which `analysis` is of; `hlo` is its entry
  // and `starts` orders of that, the best first; none: planners choose. Returns whether the insides are in the way of
  // something better, as far as splits can tell. May run more than once.
  bool Run(const HloAnalysis& analysis, const HloProgram& hlo, std::vector<Schedule> starts);

  // The same for one share of the budget, with room in the buffers of outputs.
  void RunCounted(const HloAnalysis& analysis, const HloProgram& hlo, std::vector<Schedule> starts);

  // Within the budget, then cheap, then small; if none holds it, the cheapest of those near the smallest. None where
  // nothing takes less than the module as it came.
  std::optional<CarriedOut> TakeBest();
  const BudgetSearchReport& report() const { return report_; }

 private:
  // The best with one split of the budget.
  struct Tried {
    PlanRank rank;
    int64_t peak_bytes = 0;
    bool recomputes = false;                     // in the entry
  };

  // What a round's split and limit leave to plan in the entry.
  struct Round {
    PlannedInside inside;
    std::shared_ptr<const std::vector<InnerPlan>> inner;
    std::optional<HloProgram> hlo;               // the entry, where something was planned inside
    std::optional<CountedOutputs> counted;       // it, where outputs count
    std::map<Schedule, CarriedOut> carried_out;  // with that inside: planners often agree
  };

  const HloProgram& hlo() const { return round_.hlo ? *round_.hlo : *hlo_; }
  const HloAnalysis& analysis() const { return round_.inside.module ? *round_.inside.module->analysis : *analysis_; }

  void Split();
  void Begin(const HloAnalysis& analysis, const HloProgram& hlo, std::vector<Schedule> starts);
  bool IsHopeless(const Tried& alone) const;
  double NextShare() const;
  void PlanShare(double share);
  void PlanInside(int64_t limit_bytes, double share);
  std::vector<ModulePlan> PlanStarts(int64_t limit_bytes);
  std::vector<ModulePlan> PlanFrom(std::span<const OpId> order, const std::string& planner, int64_t limit_bytes);
  void Settle(const ModulePlan& nearest, double share);
  int64_t Consider(const ModulePlan& plan, double share);
  void Repack();

  const HloAnalysis& original_;
  const ProgramReader& reader_;
  const RematPlanners& planners_;
  const BudgetSearchOptions options_;
  const Allowance allowance_;
  // Of the run.
  const HloAnalysis* analysis_ = nullptr;
  const HloProgram* hlo_ = nullptr;
  std::vector<Schedule> starts_;
  std::optional<InnerPlanner> inner_;
  int64_t room_bytes_ = 0;                       // in the buffers of outputs, where they count
  std::map<double, Tried> tried_;                // by share
  Round round_;
  // Of all runs.
  PlanArchive archive_;
  BudgetSearchReport report_;
};

}  // namespace coopjax
