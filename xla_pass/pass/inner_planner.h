// Plans for what loops, conditionals and calls run, made before their caller is planned.
//
// What lives only inside such an op is its workspace in the caller's program: a smaller inner peak is room for the
// caller. An inner computation is planned like the entry (order and recomputes of its own), its limit being what the
// caller's buffers leave. How much those take depends in turn on what the caller recomputes; `share` says who gives
// way:
//  * 0: the caller does nothing, and the inside must do with what the caller's best order leaves;
//  * 1: the inside is reordered, which costs nothing, and the caller does all the rest;
//  * in between, the inside's limit lies that far between the two.
// Nested loops are planned from the innermost on. What no other stands around is carried into the module at once:
// modules have hundreds of loops, and reading one back takes longer than planning many. Costs are those of all runs
// (bridge/hlo_program.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/allowance.h"
#include "bridge/read_module.h"
#include "pass/remat_planner.h"

namespace coopjax {

struct InnerPlan {
  std::string name;             // of the loop, conditional or call
  HloProgram hlo;               // the inner computation, as it was planned
  ModulePlan plan;
};

struct PlannedInside {
  std::shared_ptr<const ReadModule> module;   // null: it stays as it came
  std::vector<InnerPlan> plans;               // the innermost first
  bool depends_on_share = false;
};

class InnerPlanner {
 public:
  // `analysis` is of the module as it came, and must outlive the planner, as `reader` and `planners` must.
  InnerPlanner(const HloAnalysis& analysis, const ProgramReader& reader, const RematPlanners& planners,
               const Allowance& allowance)
      : analysis_(analysis), reader_(reader), planners_(planners), allowance_(allowance) {}

  // The module with smaller insides, as far as they keep the entry from having `limit_bytes` of live bytes.
  PlannedInside Plan(int64_t limit_bytes, double share);
  // From now on a quick planner will do: the limit is out of reach.
  void Hurry() { hurries_ = true; }
  // A lower bound on the workspace of each of the entry's ops, whatever is planned inside; 0 for what no plan has
  // looked at, unless that is to be looked at now.
  std::vector<int64_t> LeastWorkspaces(bool looks);

 private:
  // A computation as it came.
  struct Came {
    HloProgram hlo;
    int64_t peak_bytes = 0;
    Schedule order;             // of least peak; empty until it is asked for
  };

  // A computation that stands in the way of a limit.
  struct Wanted {
    int64_t computation_id = 0;
    std::string name;           // of the op that runs it
    int64_t limit_bytes = 0;    // that the op leaves it
  };

  Came& CameOf(int64_t computation_id);
  std::span<const int32_t> Callees(const Came& caller, OpId op) const;
  int64_t IdOf(int32_t computation) const { return analysis_.graph.module().computations[computation].id; }
  std::vector<int64_t> LeastWorkspacesOf(int64_t computation_id, bool looks);
  int32_t Want(int64_t computation_id, int64_t limit_bytes);
  void Fit(std::span<const Wanted> level);
  std::optional<InnerPlan> Fitted(const Wanted& wanted);
  void Apply(std::span<InnerPlan> plans);
  std::optional<HloProgram> Current(int64_t computation_id) const;
  std::optional<ModulePlan> Planned(int64_t computation_id, const HloProgram& hlo, int64_t limit_bytes);

  const HloAnalysis& analysis_;
  const ProgramReader& reader_;
  const RematPlanners& planners_;
  const Allowance allowance_;
  std::map<int64_t, Came> came_;                                   // by computation id
  std::map<std::pair<int64_t, double>, ModulePlan> first_;         // by computation id and share
  bool hurries_ = false;
  double share_ = 1;
  std::map<int32_t, std::vector<Wanted>> wanted_;                  // by levels of what is wanted inside
  PlannedInside planned_;
};

}  // namespace coopjax
