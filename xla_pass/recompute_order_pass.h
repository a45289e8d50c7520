// The HLO pass: a scheduled module in, the same program in less memory out.
//
// It composes the parts of this directory:
//  1. The entry computation is read as a StepProgram (hlo_program.h) and its memory predicted (hlo_heap.h).
//  2. Every buffer gets its recompute cost, its own op's and that of all that must come back first, and its rank by
//     cost per byte (remake_costs.h).
//  3. Orders are searched (order_search.h): inside loops, branches and calls the one of least peak, in the entry the one
//     that XLA packs smallest. Costs weigh in as priorities.
//  4. Where that is above the budget, a planner says what to recompute. By default it is the cheapest of three plans from
//     each of a few orders: PeakPlanner's, Coop's polished by it, whose victims are chosen by recompute cost in an
//     arena with the cheap ranks at one end and the expensive ones at the other, and SegmentPlanner's. Modules of more
//     than 50,000 instructions get SegmentPlanner's from the best order.
//  5. The schedule is carried into the module (transform.h) and its memory predicted again. Planners bound live
//     bytes, XLA packs buffers: the limit moves by the difference, for a few rounds. Where the budget is out of reach,
//     the plan that packs smallest is taken. In modules that are not large, orders and plans that lose bytes between
//     their buffers are improved by moving ops about (packed_order.h).
//  6. What comes out is proved (verify.h). On any doubt, and where nothing is gained, the module stays as it came.
//
// The result never takes more temporary memory than the module as it came. Deterministic unless the time limit
// strikes. Nothing that adds, removes or reorders instructions may run after it, and it runs after scheduling.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hlo_analysis.h"
#include "hlo_heap.h"
#include "hlo_program.h"
#include "order_search.h"
#include "remake_costs.h"

namespace coopjax {

enum class RecomputeOrderChanges : uint8_t {
  kOrder = 0,    // the order of instructions; nothing runs twice
  kClones = 1,   // instructions run again; the originals keep their order
  kBoth = 2,
};

// A schedule of `program` whose live bytes are within a budget, or near it; `order` is where to start from.
using RematPlanner = std::function<Schedule(const StepProgram& program, std::span<const OpId> order,
                                            int64_t budget_bytes, double time_limit_s)>;

struct RecomputeOrderOptions {
  RecomputeOrderChanges changes = RecomputeOrderChanges::kBoth;
  // Temporary bytes allowed, fragmentation included (memory_analysis().temp_size_in_bytes). None: as few as an order
  // takes; nothing is recomputed.
  std::optional<int64_t> budget_bytes = std::nullopt;
  Roofline roofline = {};
  std::string kept_scope = "";       // ops with this name in their scope are not recomputed
  RematPlanner planner = nullptr;    // instead of the default
  int32_t max_rounds = 6;
  double time_limit_s = 10;
};

struct RecomputeOrderRound {
  int64_t limit_bytes = 0;           // of live bytes, that the planner was given
  int64_t peak_live_bytes = 0;
  int64_t temp_bytes = 0;            // predicted
  double recompute_cost_s = 0;
};

struct RecomputeOrderTiming {
  double read_s = 0;
  double order_s = 0;
  double plan_s = 0;
  double emit_s = 0;                 // rewriting, and predicting the memory of what came out
  double verify_s = 0;
};

struct RecomputeOrderResult {
  std::string bytes;                 // the new module; empty: it stays as it came
  std::string reason;                // why it does; empty otherwise
  HloProgram hlo;
  RemakeCosts costs;                 // in the order that came
  std::vector<RankedOrder> orders;   // that were judged by their predicted temporary bytes, the best first
  Schedule order;                    // that the plan was made from
  Schedule schedule;                 // that is carried out; the one that came where the module stays
  double recompute_cost_s = 0;
  HeapResult before, after;
  std::vector<RecomputeOrderRound> rounds;
  RecomputeOrderTiming timing;
  std::string error;                 // the module can't be read
};

RecomputeOrderResult RecomputeOrder(const HloAnalysis& analysis, const RecomputeOrderOptions& options);

}  // namespace coopjax
