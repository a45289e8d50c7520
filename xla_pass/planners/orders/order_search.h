// The order that packs into the least memory, without recomputing anything.
//
// Live bytes alone mislead: XLA places temporaries into output buffers that are still free, and loses bytes between
// buffers. So a few orders of small peaks are made and a judge, XLA's own heap, chooses among them:
//  * the order as it came, and every rule of planners/orders/list_scheduler.h;
//  * those rules with bytes weighted by the rank of their recompute cost (program/remake_costs.h): what is expensive to
//  bring
//    back dies early, what is cheap may wait. The same bytes, but a better start for what recomputes;
//  * the best of all these improved by minimum cuts (planners/orders/order_cut.h).
// Never worse than the order that came. Near-linear for programs of more than `max_searched_ops`, which get the rules
// alone.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/allowance.h"
#include "program/remake_costs.h"
#include "program/step_program.h"

namespace coopjax {

// Bytes that an order takes; less is better.
using OrderJudge = std::function<int64_t(const Schedule& order)>;

struct OrderSearchOptions {
  int32_t max_searched_ops = 6'000;  // longer programs are not cut, and only as it came and by plain bytes
  int32_t num_judged = 6;  // orders of smallest peaks that the judge sees, at most
  int32_t num_cut = 3;  // orders that are improved by cuts, at most
  int64_t max_steps = kDefaultSteps / 2;
};

struct RankedOrder {
  Schedule order;
  int64_t judged_bytes = 0;
  int64_t peak_bytes = 0;  // live
  const char* name = "";  // how it was made
};

// The orders that were judged, the best first; the order that came is one of them.
std::vector<RankedOrder> SearchOrders(const StepProgram& program, const RemakeCosts& costs, const OrderJudge& judge,
                                      const OrderSearchOptions& options);

}  // namespace coopjax
