#include "planners/orders/order_search.h"

#include <algorithm>

#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

std::vector<RankedOrder> Search(const StepProgram& program, const OrderJudge& judge, int32_t max_searched_ops = 1000) {
  return SearchOrders(program, ComputeRemakeCosts(program, program.schedule), judge,
                      {.max_searched_ops = max_searched_ops});
}

TEST(OrdersAreValidAndNeverWorse) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const StepProgram program = testing::RandomProgram(seed, 5 + seed % 40);
    const OrderJudge judge = [&](const Schedule& order) { return ComputeLiveness(program, order).peak_bytes; };
    for (const int32_t max_searched_ops : {0, 1000}) {
      const std::vector<RankedOrder> found = Search(program, judge, max_searched_ops);
      for (const RankedOrder& ranked : found) {
        EXPECT_EQ(CheckSchedule(program, ranked.order), "");
        EXPECT_EQ(std::ssize(ranked.order), program.num_ops());
        EXPECT_EQ(ranked.judged_bytes, judge(ranked.order));
        EXPECT_TRUE(found.front().judged_bytes <= ranked.judged_bytes);
      }
      EXPECT_TRUE(std::ranges::count(found, program.schedule, &RankedOrder::order) == 1);
    }
  }
}

// a1, a2 (10 bytes each) -> b1, b2 (1 byte each) -> an output. As it came, both a's live at once: 20 bytes and b1's
// one. Each a next to its b: 10 + 1, and the other b: 12.
StepProgram TwoBranches() {
  testing::ProgramBuilder builder;
  const ValueId p = builder.Given(8);
  const ValueId a1 = builder.Op({.inputs = {p}, .output_bytes = {10}});
  const ValueId a2 = builder.Op({.inputs = {p}, .output_bytes = {10}});
  const ValueId b1 = builder.Op({.inputs = {a1}, .output_bytes = {1}});
  const ValueId b2 = builder.Op({.inputs = {a2}, .output_bytes = {1}});
  builder.Op({.inputs = {b1, b2}, .output_bytes = {1}, .kind = ValueKind::kOutput});
  return builder.program();
}

TEST(TheJudgeDecides) {
  const StepProgram program = TwoBranches();
  const OrderJudge peak = [&](const Schedule& order) { return ComputeLiveness(program, order).peak_bytes; };
  EXPECT_EQ(Search(program, peak).front().judged_bytes, 12);
  EXPECT_EQ(Search(program, peak).back().judged_bytes, 21);
  const OrderJudge likes_given = [&](const Schedule& order) { return order == program.schedule ? 0 : 1; };
  EXPECT_TRUE(Search(program, likes_given).front().order == program.schedule);
}

}  // namespace
}  // namespace coopjax
