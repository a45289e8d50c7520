#include "program/remake_costs.h"

#include <cmath>
#include <functional>
#include <iterator>
#include <set>

#include "program/dependences.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

using testing::ProgramBuilder;

// Seconds by definition: a walk over sets.
double ObviousSeconds(const StepProgram& program, const Schedule& order, ValueId value) {
  const auto reads_at = [&](ValueId v) {
    Step last = -1;
    for (Step t = 0; t < std::ssize(order); ++t) {
      for (ValueId u : program.op_inputs[order[t]]) last = u == v ? t : last;
      for (ValueId u : program.op_outputs[order[t]]) last = u == v && last < 0 ? t : last;
    }
    return last;
  };
  const Step when = reads_at(value);
  const auto is_there = [&](ValueId u) {
    for (Step t = 0; t < when; ++t) {
      for (ValueId w : program.op_outputs[order[t]]) {
        if (program.value_in_place_of[w] == u) return false;
      }
    }
    return !program.takes_budget(u) || reads_at(u) >= when;
  };
  std::set<OpId> ops;
  bool is_possible = true;
  const std::function<void(OpId)> need = [&](OpId op) {
    if (op == kNoOp || !MayRunTwice(program, op)) is_possible = false;
    if (!is_possible || !ops.insert(op).second) return;
    for (ValueId u : program.op_inputs[op]) {
      if (!is_there(u)) need(program.value_producer[u]);
    }
  };
  need(program.value_producer[value]);
  double seconds = is_possible ? 0 : kNeverRemade;
  for (OpId op : ops) seconds += program.op_cost_s[op];
  return seconds;
}

TEST(AncestorsThatAreGoneCountOnce) {
  // a -> b -> c, d; (c, d) -> e; e and a are read at the end.
  ProgramBuilder builder;
  const ValueId p = builder.Given(8);
  const ValueId a = builder.Op({.inputs = {p}, .output_bytes = {10}, .cost_s = 1});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {10}, .cost_s = 2});
  const ValueId c = builder.Op({.inputs = {b}, .output_bytes = {10}, .cost_s = 4});
  const ValueId d = builder.Op({.inputs = {b}, .output_bytes = {10}, .cost_s = 8});
  const ValueId e = builder.Op({.inputs = {c, d}, .output_bytes = {5}, .cost_s = 16});
  builder.Op({.inputs = {a, e}, .output_bytes = {1}, .cost_s = 32, .can_recompute = false});
  const StepProgram& program = builder.program();
  const RemakeCosts costs = ComputeRemakeCosts(program, program.schedule);
  EXPECT_EQ(costs.seconds[a], 1);
  EXPECT_EQ(costs.seconds[b], 2);             // read last when a is still there
  EXPECT_EQ(costs.seconds[c], 4 + 2);         // b is gone, d is read by the same op
  EXPECT_EQ(costs.seconds[e], 16 + 4 + 8 + 2);
  EXPECT_TRUE(costs.seconds[p] == kNeverRemade);
  EXPECT_EQ(costs.rank[p], -1);
  EXPECT_EQ(costs.rank[a], 0);                // 0.1 s per byte, then b's 0.2, c's 0.6, d's 1.0, e's 6
  EXPECT_EQ(costs.rank[e], 4);
  EXPECT_EQ(costs.rank[program.num_values() - 1], -1);
  // 10 + 10 of 46 bytes are at most half of them; with c it would be 30.
  EXPECT_TRUE(ExpensiveOps(program, costs) == (std::vector<uint8_t>{0, 0, 1, 1, 1, 1}));
}

TEST(ItIsTheDefinition) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    const StepProgram program = testing::RandomProgram(seed, 5 + seed % 40);
    const RemakeCosts costs = ComputeRemakeCosts(program, program.schedule);
    for (ValueId v = 0; v < program.num_values(); ++v) {
      if (!program.takes_budget(v) || program.value_producer[v] == kNoOp) continue;
      const double expected = ObviousSeconds(program, program.schedule, v);
      EXPECT_TRUE(costs.seconds[v] == expected || std::abs(costs.seconds[v] - expected) < 1e-9 * expected);
    }
  }
}

TEST(LongerChainsAreEndless) {
  for (const int32_t length : {kLongestChain, kLongestChain + 1}) {
    ProgramBuilder builder;
    ValueId v = builder.Given(8);
    for (int32_t i = 0; i < length; ++i) v = builder.Op({.inputs = {v}, .output_bytes = {8}});
    builder.Op({.inputs = {v}, .output_bytes = {8}});
    const RemakeCosts costs = ComputeRemakeCosts(builder.program(), builder.program().schedule);
    EXPECT_EQ(costs.seconds[v], length == kLongestChain ? length : kNeverRemade);
  }
}

}  // namespace
}  // namespace coopjax
