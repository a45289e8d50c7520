#include "planners/coop/recompute_cost.h"

#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

using testing::ProgramBuilder;

constexpr ValueId kA = 1, kB = 2, kC = 3, kD = 4;

// x -> a (1 s) -> b (2 s) -> c (4 s), and d (8 s) from a and b; everything made.
struct Diamond {
  explicit Diamond(CostRule rule) : program(Make()), residency(program), cost(program, residency, rule) {
    for (ValueId v : {kA, kB, kC, kD}) Return(v);
  }
  static StepProgram Make() {
    ProgramBuilder builder;
    const ValueId x = builder.Given(1);
    const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {1}, .cost_s = 1});
    const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {1}, .cost_s = 2});
    builder.Op({.inputs = {b}, .output_bytes = {1}, .cost_s = 4});
    builder.Op({.inputs = {a, b}, .output_bytes = {1}, .cost_s = 8});
    return builder.program();
  }
  void Return(ValueId v) {
    residency.SetResident(v);
    cost.OnResident(v);
  }
  void Evict(ValueId v) {
    residency.SetEvicted(v);
    cost.OnEvicted(v);
  }
  StepProgram program;
  Residency residency;
  RecomputeCost cost;
};

TEST(ChainCountsEachAncestorOnce) {
  Diamond d(CostRule::kChain);
  EXPECT_EQ(d.cost.Seconds(kD), 8.0);
  d.Evict(kB);
  EXPECT_EQ(d.cost.Seconds(kD), 10.0);
  d.Evict(kA);
  EXPECT_EQ(d.cost.Seconds(kD), 11.0);   // a once, though d and b both read it
  EXPECT_EQ(d.cost.Seconds(kC), 7.0);
  EXPECT_TRUE(!d.cost.MayHaveDropped(kC));
  d.Return(kB);
  EXPECT_TRUE(d.cost.MayHaveDropped(kC));
  EXPECT_EQ(d.cost.Seconds(kC), 4.0);
}

TEST(NeighboursCountEvictedComponents) {
  Diamond d(CostRule::kNeighbours);
  EXPECT_EQ(d.cost.Seconds(kC), 4.0);
  d.Evict(kA);
  d.Evict(kB);                           // one component of 1 + 2 s, b its root
  EXPECT_EQ(d.cost.Seconds(kC), 7.0);
  EXPECT_EQ(d.cost.Seconds(kD), 14.0);   // through a and through b: counted twice, as in OneFlow
  d.Return(kB);                          // a component of its own again, of its own 2 s; a still points to it
  EXPECT_TRUE(d.cost.MayHaveDropped(kC));
  EXPECT_EQ(d.cost.Seconds(kC), 4.0);
  EXPECT_EQ(d.cost.Seconds(kD), 10.0);   // max(2, a's own 1) beside d's 8
}

TEST(OwnIgnoresTheRest) {
  Diamond d(CostRule::kOwn);
  d.Evict(kA);
  EXPECT_EQ(d.cost.Seconds(kD), 8.0);
}

TEST(ACostDropsOnlyWithNotice) {
  for (CostRule rule : {CostRule::kOwn, CostRule::kNeighbours, CostRule::kChain}) {
    for (uint32_t seed = 0; seed < 100; ++seed) {
      const StepProgram program = testing::RandomProgram(seed, 20);
      std::mt19937 random(seed);
      Residency residency(program);
      RecomputeCost cost(program, residency, rule);
      std::vector<double> last(program.num_values(), 0);
      std::vector<ValueId> made;
      for (OpId op : program.schedule) {
        for (ValueId w : program.op_outputs[op]) {
          residency.SetResident(w);
          cost.OnResident(w);
          made.push_back(w);
        }
      }
      for (int change = 0; change < 200 && !made.empty(); ++change) {
        const ValueId v = made[random() % made.size()];
        if (!residency.CanRemake(v)) continue;
        if (residency.is_resident(v)) {
          residency.SetEvicted(v);
          cost.OnEvicted(v);
        } else {
          residency.SetResident(v);
          cost.OnResident(v);
        }
        for (ValueId u : made) {
          if (!residency.CanRemake(u)) continue;
          const bool may_have_dropped = cost.MayHaveDropped(u);
          const double now = cost.Seconds(u);
          if (!may_have_dropped) EXPECT_TRUE(now >= last[u]);
          last[u] = now;
        }
      }
    }
  }
}

}  // namespace
}  // namespace coopjax
