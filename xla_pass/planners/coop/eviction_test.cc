#include "planners/coop/eviction.h"

#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

constexpr ValueId kA = 1, kB = 2, kC = 3;
constexpr Arena::Owner kNew = CoopMemory::kWorkspace;

// a, b and c of 10 bytes each, made from x in 1, 3 and 2 s, fill an arena of 30 from end to end; all were touched at
// the same time, so that their seconds alone decide.
struct Full {
  explicit Full(CoopOptions with) : options(with) {
    for (ValueId v : {kA, kB, kC}) {
      memory.Hold(v, memory.arena().Allocate(10, {0, 30, Side::kLow}, v));
      cost.Touch(v);
    }
    cost.Advance(1);
  }
  static CoopOptions Options(EvictionRule rule) {
    CoopOptions options = {.eviction = rule, .cost = CostRule::kOwn, .num_groups = 1, .alignment_bytes = 1};
    return options;
  }
  static StepProgram Program() {
    testing::ProgramBuilder builder;
    const ValueId x = builder.Given(1);
    for (double seconds : {1, 3, 2}) builder.Op({.inputs = {x}, .output_bytes = {10}, .cost_s = seconds});
    return builder.program();
  }
  bool Allocates(int64_t bytes) { return eviction.Allocate(bytes, CostClass::kExpensive, kNew) != Arena::kNoPiece; }
  bool Holds(ValueId v) const { return memory.has_piece(v); }

  CoopOptions options;
  StepProgram program = Program();
  Residency residency{program};
  EvictionCost cost{program, program.schedule, residency, CostRule::kOwn, /*knows_future=*/false};
  CoopMemory memory{program, Arena(30, 1), &residency, &cost.recompute()};
  CoopEviction eviction{options, &memory, &cost};
};

TEST(TheCheapestGoes) {
  for (EvictionRule rule : {EvictionRule::kWindow, EvictionRule::kDtr, EvictionRule::kDte}) {
    Full full(Full::Options(rule));
    EXPECT_TRUE(full.Allocates(10));
    EXPECT_TRUE(!full.Holds(kA) && full.Holds(kB) && full.Holds(kC));
    EXPECT_EQ(full.eviction.counters().evictions, 1);
    EXPECT_EQ(full.eviction.counters().heap_bytes, 30);
    EXPECT_EQ(full.eviction.counters().fragmentation, 10.0 / 30);
  }
}

// 20 bytes: the window (a, b) costs 1 + 3 s, (b, c) 3 + 2 s. DTR takes a and c, which are no neighbours, and then b.
// DTE counts the hole that a leaves to b: 3 s / 20 bytes is less than c's 2 s / 10 bytes.
TEST(NeighboursGoTogether) {
  Full window(Full::Options(EvictionRule::kWindow)), dtr(Full::Options(EvictionRule::kDtr)),
      dte(Full::Options(EvictionRule::kDte));
  EXPECT_TRUE(window.Allocates(20) && dtr.Allocates(20) && dte.Allocates(20));
  EXPECT_TRUE(!window.Holds(kA) && !window.Holds(kB) && window.Holds(kC));
  EXPECT_TRUE(!dtr.Holds(kA) && !dtr.Holds(kB) && !dtr.Holds(kC));
  EXPECT_TRUE(!dte.Holds(kA) && !dte.Holds(kB) && dte.Holds(kC));
  EXPECT_EQ(window.eviction.counters().searches, 1);   // one failed allocation
  EXPECT_EQ(dtr.eviction.counters().searches, 3);      // one a value
}

TEST(TheArenaIsTheLimit) {
  Full all(Full::Options(EvictionRule::kWindow)), more(Full::Options(EvictionRule::kWindow));
  EXPECT_TRUE(all.Allocates(30));
  EXPECT_EQ(all.eviction.counters().evictions, 3);
  EXPECT_TRUE(!more.Allocates(31));
  EXPECT_EQ(more.eviction.counters().evictions, 0);
}

TEST(PinnedValuesStayAndReservedOnesGoLast) {
  for (EvictionRule rule : {EvictionRule::kWindow, EvictionRule::kDtr, EvictionRule::kDte}) {
    Full full(Full::Options(rule));
    full.memory.Pin(kA);
    full.memory.Reserve(kC);
    EXPECT_TRUE(full.Allocates(10));
    EXPECT_TRUE(full.Holds(kA) && !full.Holds(kB) && full.Holds(kC));
    EXPECT_TRUE(full.Allocates(10));
    EXPECT_TRUE(full.Holds(kA) && !full.Holds(kC));
    EXPECT_TRUE(!full.Allocates(10));
  }
}

// The same values are evicted whether costs are kept or asked for anew; kept ones are asked for less.
TEST(BoundsSpareEvaluations) {
  for (EvictionRule rule : {EvictionRule::kWindow, EvictionRule::kDtr}) {
    CoopOptions options = Full::Options(rule);
    Full kept(options);
    options.reuses_costs = false;
    Full anew(options);
    EXPECT_TRUE(kept.Allocates(10) && anew.Allocates(10));
    EXPECT_TRUE(!kept.Holds(kA) && !anew.Holds(kA));
    EXPECT_EQ(anew.eviction.counters().candidates, 3);
    EXPECT_EQ(kept.eviction.counters().candidates, 1);
    EXPECT_EQ(kept.eviction.counters().scanned, 3);
  }
}

}  // namespace
}  // namespace coopjax
