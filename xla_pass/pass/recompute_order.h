// The HLO pass: a scheduled module in, the same program in less memory out.
//
// It composes the parts of this directory:
//  1. The entry computation is read as a StepProgram (bridge/hlo_program.h) and its memory predicted (buffers/heap.h).
//  2. Every buffer gets its recompute cost, its own op's and that of all that must come back first, and its rank by
//     cost per byte (program/remake_costs.h).
//  3. Orders are searched (planners/orders/order_search.h): inside loops, branches and calls the one of least peak, in
//  the entry the one
//     that XLA packs smallest. Costs weigh in as priorities.
//  4. Where that is above the budget, planners say what to recompute (pass/remat_planner.h), inside loops, branches and
//  calls
//     (pass/inner_planner.h) and in the entry; the plans are carried into the module (bridge/transform.h) and judged by
//     its memory, predicted again, in a few rounds (pass/budget_search.h). By default plans are made from a few orders,
//     in modules of more than 50,000 instructions from the best one, and as in others where that misses the budget and
//     the ops are few. In modules that are not large, orders and plans that lose bytes between their buffers are
//     improved by moving ops about (planners/orders/packed_order.h).
//  5. What comes out is proved (verify/verify.h). On any doubt, and where nothing is gained, the module stays as it
//  came.
//
// The result never takes more temporary memory than the module as it came. Nothing that adds, removes or reorders
// instructions may run after it, and it runs after scheduling.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/allowance.h"
#include "bridge/hlo_program.h"
#include "buffers/analysis.h"
#include "buffers/heap.h"
#include "pass/budget_search.h"
#include "pass/remat_planner.h"
#include "planners/orders/order_search.h"
#include "program/remake_costs.h"

namespace coopjax {

enum class RecomputeOrderChanges : uint8_t {
  kOrder = 0,  // the order of instructions; nothing runs twice
  kClones = 1,  // instructions run again; the originals keep their order
  kBoth = 2,
};

struct RecomputeOrderOptions {
  RecomputeOrderChanges changes = RecomputeOrderChanges::kBoth;
  // Temporary bytes allowed, fragmentation included (memory_analysis().temp_size_in_bytes). None: as few as an order
  // takes; nothing is recomputed.
  std::optional<int64_t> budget_bytes = std::nullopt;
  Roofline roofline = {};
  std::string kept_scope = "";  // ops with this name in their scope are not recomputed
  // Instead of the default: for recomputes; with kOrder for the entry's order, each op once.
  RematPlanner planner = nullptr;
  bool searches_order = true;  // false: planners choose the orders they start from
  // Where the budget is out of reach: the cheapest plan with so many times the smallest temporary bytes.
  double near_smallest = 1;
  int64_t max_steps = kDefaultSteps;
};

struct RecomputeOrderTiming {
  double read_s = 0;
  double order_s = 0;
  double plan_s = 0;
  double emit_s = 0;  // rewriting, and predicting the memory of what came out
  double verify_s = 0;
};

struct RecomputeOrderResult {
  std::string bytes;  // the new module; empty: it stays as it came
  std::string reason;  // why it does; empty otherwise
  HloProgram hlo;  // the entry as planners saw it
  RemakeCosts costs;  // in the order that came
  std::vector<RankedOrder> orders;  // that were judged by their predicted temporary bytes, the best first
  ModulePlan plan;  // of the entry, that is carried out; the order that came where the module stays
  std::shared_ptr<const std::vector<InnerPlan>> inner;  // with it; null: nothing was planned inside
  std::vector<int64_t> op_workspace_bytes;  // of the entry, with what was planned inside; as it came where it stays
  std::vector<int64_t> least_workspaces;  // a lower bound on them; 0 where nothing was to be recomputed
  double recompute_cost_s = 0;  // of all repeats
  HeapResult before, after;
  std::vector<PlanRound> rounds;
  RecomputeOrderTiming timing;
  std::string error;  // the module can't be read
};

// `before` is the module's AssignBuffers, where the caller has it.
RecomputeOrderResult RecomputeOrder(const HloAnalysis& analysis, const RecomputeOrderOptions& options,
                                    std::optional<HeapResult> before = std::nullopt);

}  // namespace coopjax
