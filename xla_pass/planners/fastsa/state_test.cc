#include "planners/fastsa/state.h"

#include <algorithm>
#include <random>

#include "planners/fastsa/best.h"
#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

int64_t PeakOf(const StepProgram& program, std::span<const OpId> schedule) {
  return ComputeLiveness(program, schedule).peak_bytes;
}

TEST(KnowsWhatAMutationChanges) {
  // a (8) at slot 2 is read at slots 5 and 13; b (1), c (5) and d (5) lie between: live 8, 9, 14, 18, 14.
  testing::ProgramBuilder builder;
  const ValueId x = builder.Given(1);
  const ValueId a = builder.Op({.inputs = {x}, .output_bytes = {8}});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {1}});
  const ValueId c = builder.Op({.inputs = {b}, .output_bytes = {5}});
  const ValueId d = builder.Op({.inputs = {c}, .output_bytes = {5}});
  builder.Op({.inputs = {a, d}, .output_bytes = {1}});
  const NodeGraph nodes = SingleNodes(builder.program());
  AnnealState state(nodes, builder.program().schedule, 16);
  EXPECT_TRUE((state.LiveBytes() == std::vector<int64_t>{8, 9, 14, 18, 14}));
  EXPECT_EQ(state.node_at(13), 4);
  EXPECT_TRUE(!state.Probe({0, 2, kNoSlot}));      // its only run
  EXPECT_TRUE(!state.Probe({4, kNoSlot, 9}));      // d is not made yet
  EXPECT_TRUE(!state.Probe({1, 5, 9}));            // c would come before b
  EXPECT_TRUE(state.Probe({0, kNoSlot, 12}));      // a is made again: 8, 9, 6, 10, 13, 14
  EXPECT_EQ(state.CostChange(), kProgramTicks / 5);
  EXPECT_EQ(state.PeakAtLeast(), 10);              // at the old peak
  EXPECT_EQ(state.Apply(), 14);
  state.Undo();
  EXPECT_EQ(state.peak_bytes(), 18);
  state.Apply();
  state.Commit();
  EXPECT_TRUE((state.LiveBytes() == std::vector<int64_t>{8, 9, 6, 10, 13, 14}));
  EXPECT_TRUE((state.Sequence() == std::vector<NodeId>{0, 1, 2, 3, 0, 4}));
  EXPECT_TRUE(state.Probe({0, 12, 14}));           // useless, but the last op finds the first production
  EXPECT_TRUE(!state.Probe({0, 2, 6}));            // too late for b
  EXPECT_TRUE(state.Probe({0, 12, kNoSlot}));
  EXPECT_EQ(state.Apply(), 18);
  state.Commit();
  EXPECT_EQ(state.num_occupied(), 5);
}

// What a random mutation proposes: add, remove or rotate, whether legal or not.
Mutation RandomMutation(const AnnealState& state, int32_t num_nodes, std::mt19937* random) {
  const int kind = (*random)() % 3;
  Mutation mutation = {static_cast<NodeId>((*random)() % num_nodes)};
  if (kind > 0) {
    mutation.from = state.occupied_slot((*random)() % state.num_occupied());
    mutation.node = state.node_at(mutation.from);
  }
  while (kind != 1 && mutation.to == kNoSlot) {
    const Slot slot = (*random)() % state.num_slots();
    if (state.is_empty(slot)) mutation.to = slot;
  }
  return mutation;
}

// Thousands of random mutations, half of those possible undone. Exactly those that CheckSchedule accepts pass
// the probe, and the live bytes are those of ComputeLiveness at every step, in-place pairs, shared buffers
// and control edges included.
TEST(AgreesWithLivenessUnderRandomMutations) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const StepProgram program = testing::RandomProgram(seed, 1 + seed % 23);
    const NodeGraph nodes = SingleNodes(program);
    AnnealState state(nodes, program.schedule, 128);
    for (int round = 0; round < 1500; ++round) {
      const Mutation mutation = RandomMutation(state, program.num_ops(), &random);
      if (mutation.from == kNoSlot && state.num_occupied() > 90) continue;
      std::vector<NodeId> node_at(state.num_slots(), -1);
      for (int32_t i = 0; i < state.num_occupied(); ++i) {
        node_at[state.occupied_slot(i)] = state.node_at(state.occupied_slot(i));
      }
      if (mutation.from != kNoSlot) node_at[mutation.from] = -1;
      if (mutation.to != kNoSlot) node_at[mutation.to] = mutation.node;
      std::erase(node_at, -1);
      const bool is_legal = state.Probe(mutation);
      EXPECT_EQ(is_legal, CheckSchedule(program, node_at).empty());
      if (!is_legal) continue;
      const int64_t before = state.peak_bytes(), at_least = state.PeakAtLeast(), after = state.Apply();
      EXPECT_EQ(after, PeakOf(program, node_at));
      EXPECT_TRUE(at_least <= after);
      if (random() % 2) {
        state.Undo();
        EXPECT_EQ(state.peak_bytes(), before);
        continue;
      }
      const int64_t cost = state.cost_ticks() + state.CostChange();
      state.Commit();
      EXPECT_EQ(state.cost_ticks(), cost);
      EXPECT_TRUE(state.Sequence() == node_at);
      if (round % 16 == 0) EXPECT_TRUE(state.LiveBytes() == ComputeLiveness(program, node_at).live_bytes);
    }
  }
}

// Bytes of a sequence of groups are never fewer than those of its ops.
TEST(GroupsAreUpperBounds) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    const StepProgram program = testing::RandomProgram(seed, 30);
    const GroupedOrder grouped = GroupNodes(program, program.schedule, 1000);
    AnnealState state(grouped.nodes, grouped.order, 256);
    for (int round = 0; round < 400; ++round) {
      const Mutation mutation = RandomMutation(state, program.num_ops(), &random);
      if (grouped.nodes.members[mutation.node].empty() || state.num_occupied() > 200) continue;
      if (!state.Probe(mutation)) continue;
      state.Apply();
      state.Commit();
      const Schedule schedule = MembersInOrder(grouped.nodes, state.Sequence());
      EXPECT_EQ(CheckSchedule(program, schedule), "");
      EXPECT_TRUE(state.peak_bytes() >= PeakOf(program, schedule));
    }
  }
}

TEST(RemembersTheBest) {
  const StepProgram program = testing::ForwardBackwardChain(10, 1);
  const NodeGraph nodes = SingleNodes(program);
  for (const int32_t num_slots : {64, 4096}) {   // short and long journals
    std::mt19937 random(1);
    AnnealState state(nodes, program.schedule, num_slots);
    BestSequence best(state);
    std::vector<NodeId> expected = state.Sequence();
    for (int round = 0; round < 20000; ++round) {
      const Mutation mutation = RandomMutation(state, program.num_ops(), &random);
      if (state.num_occupied() > 40 || !state.Probe(mutation)) continue;
      state.Apply();
      state.Commit();
      best.Committed(mutation);
      if (random() % 200 == 0) {
        best.IsBest();
        expected = state.Sequence();
      }
      if (round % 50 == 0) EXPECT_TRUE(best.Sequence() == expected);
    }
  }
}

TEST(EventListsGrowAndShrink) {
  std::mt19937 random(3);
  EventList events;
  std::vector<Slot> expected;
  for (int round = 0; round < 5000; ++round) {
    const Slot slot = random() % 40;
    const int32_t i = events.LowerBound(slot);
    const auto at = std::lower_bound(expected.begin(), expected.end(), slot);
    EXPECT_EQ(i, static_cast<int32_t>(at - expected.begin()));
    if (i < events.size() && events[i].slot() == slot) {
      events.Erase(i);
      expected.erase(at);
    } else {
      events.Insert(i, Event(slot, TouchKind::kRead));
      expected.insert(at, slot);
    }
  }
}

}  // namespace
}  // namespace coopjax
