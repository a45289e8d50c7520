#include "planners/coop/residency.h"

#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

using testing::ProgramBuilder;

// x -> a -> b -> c; the last op reads c.
StepProgram Chain(bool a_is_random) {
  ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {1}, .can_recompute = !a_is_random});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {1}});
  const ValueId c = builder.Op({.inputs = {b}, .output_bytes = {1}});
  builder.Op({.inputs = {c}, .output_bytes = {1}});
  return builder.program();
}
constexpr ValueId kX = 0, kA = 1, kB = 2, kC = 3;

TEST(WhatIsEvictedNeedsItsSources) {
  const StepProgram program = Chain(/*a_is_random=*/true);
  Residency state(program);
  for (ValueId v : {kA, kB, kC}) state.SetResident(v);
  state.CountRead(kA);
  state.CountRead(kB);
  state.SetEvicted(kB);                       // dead: nobody needs it
  EXPECT_TRUE(!state.IsSource(kA));
  EXPECT_TRUE(state.CanRemake(kC));
  state.SetEvicted(kC);                       // is read later: through b it needs a
  EXPECT_TRUE(state.IsSource(kA));
  EXPECT_TRUE(state.NeededFrom(kA) == std::vector<ValueId>{kC});
  EXPECT_TRUE(state.TakeFormerSources().empty());
  state.SetResident(kC);
  EXPECT_TRUE(!state.IsSource(kA));
  EXPECT_TRUE(state.TakeFormerSources() == std::vector<ValueId>{kA});
  state.SetEvicted(kA);                       // random: gone for good, and with it b and c
  EXPECT_TRUE(!state.CanRemake(kB) && !state.CanRemake(kC));
}

TEST(NothingIsMadeFromWhatWasOverwritten) {
  const StepProgram program = Chain(/*a_is_random=*/false);
  Residency state(program);
  for (ValueId v : {kA, kB, kC}) state.SetResident(v);
  for (ValueId v : {kA, kB}) state.SetEvicted(v);
  EXPECT_TRUE(state.CanRemake(kC));
  state.SetLost(kX);
  EXPECT_TRUE(!state.CanRemake(kA) && !state.CanRemake(kC));
  EXPECT_TRUE(state.MayRemake(kC));
  state.SetResident(kB);
  EXPECT_TRUE(state.CanRemake(kC));
}

TEST(IncrementalAnswersAreThoseOfASearch) {
  std::mt19937 random(3);
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const StepProgram program = testing::RandomProgram(seed, 25);
    Residency state(program);
    for (OpId op : program.schedule) {
      for (ValueId w : program.op_outputs[op]) state.SetResident(w);
      for (ValueId v : program.op_inputs[op]) state.CountRead(v);
      for (ValueId v = 0; v < program.num_values(); ++v) {
        if (state.is_made(v) && random() % 4 == 0) {
          if (state.is_resident(v) && program.value_producer[v] != kNoOp)
            state.SetEvicted(v);
          else if (!state.is_resident(v) && state.CanRemake(v))
            state.SetResident(v);
        }
      }
      // By definition, values in the order they are made: inputs come before outputs.
      std::vector<uint8_t> is_blocked(program.num_values(), 0), is_needed(program.num_values(), 0);
      for (ValueId v = 0; v < program.num_values(); ++v) {
        const OpId maker = program.value_producer[v];
        if (maker == kNoOp || !state.is_made(v)) continue;
        bool can = state.MayRemake(v);
        for (ValueId u : program.op_inputs[maker]) can &= !is_blocked[u];
        EXPECT_EQ(state.CanRemake(v), can);
        is_blocked[v] = !state.is_resident(v) && !can;
      }
      for (ValueId v = program.num_values() - 1; v >= 0; --v) {
        EXPECT_EQ(state.IsSource(v), is_needed[v] != 0);
        const OpId maker = program.value_producer[v];
        const bool is_wanted = state.is_made(v) && !state.is_resident(v) && (state.reads_left(v) > 0 || is_needed[v]);
        if (maker == kNoOp || !is_wanted) continue;
        for (ValueId u : program.op_inputs[maker]) is_needed[u] = 1;
      }
    }
  }
}

}  // namespace
}  // namespace coopjax
