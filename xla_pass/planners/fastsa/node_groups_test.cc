#include "planners/fastsa/node_groups.h"

#include <algorithm>

#include "planners/fastsa/state.h"
#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

std::vector<OpId> MembersOf(const NodeGraph& nodes, NodeId node) {
  return {nodes.members[node].begin(), nodes.members[node].end()};
}

// f1 .. fn go into every reader, and b_n .. b_1, whose inputs are then x alone, into the output: never more than
// b_(i+1), f_i and two of the chain is live. What fits into these 40 bytes is held, the rest made again:
// n (n - 1) / 2 runs of f instead of n, each b and the output once.
TEST(ChainOfEqualSizesTakesConstantMemory) {
  for (const int num_layers : {4, 40}) {
    const StepProgram program = testing::ForwardBackwardChain(num_layers, 10);
    const GroupedOrder grouped = GroupNodes(program, program.schedule, 1 << 20);
    EXPECT_TRUE((grouped.order == std::vector<NodeId>{2 * num_layers}));
    const size_t num_runs = num_layers * (num_layers + 1) / 2 + 1;
    EXPECT_EQ(MembersOf(grouped.nodes, 2 * num_layers).size(), num_runs);
    EXPECT_EQ(AnnealState(grouped.nodes, grouped.order, 8).peak_bytes(), 40);
    const Schedule schedule = MembersInOrder(grouped.nodes, grouped.order);
    EXPECT_EQ(CheckSchedule(program, schedule), "");
    EXPECT_EQ(ComputeLiveness(program, schedule).peak_bytes, 40);
  }
}

// x (4) -> a (4) -> b (8), c (2); d (1) reads a, b and c. a is no smaller than its input and joins all three;
// b, now made from x, joins d, with the same a; c (2 from 4) is kept.
TEST(JoinsReadersWhenInputsAreNoLarger) {
  testing::ProgramBuilder builder;
  const ValueId a = builder.Op({.inputs = {builder.Given(4)}, .output_bytes = {4}});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {8}});
  const ValueId c = builder.Op({.inputs = {a}, .output_bytes = {2}});
  builder.Op({.inputs = {a, b, c}, .output_bytes = {1}, .kind = ValueKind::kOutput, .can_recompute = false});
  const GroupedOrder grouped = GroupNodes(builder.program(), builder.program().schedule, 1000);
  EXPECT_TRUE((grouped.order == std::vector<NodeId>{2, 3}));
  EXPECT_TRUE((MembersOf(grouped.nodes, 2) == std::vector<OpId>{0, 2}));
  EXPECT_TRUE((MembersOf(grouped.nodes, 3) == std::vector<OpId>{0, 1, 3}));
  EXPECT_EQ(grouped.nodes.cost_ticks[3], 3 * (kProgramTicks / 4));
  EXPECT_EQ(grouped.nodes.workspace_bytes[3], 12);            // a and b inside
  EXPECT_EQ(grouped.nodes.touches_of(3).size(), size_t{1});   // reads c; x and the output need nothing
}

// The diamond x -> a -> (b, c) -> d, all of 4 bytes, d of 8: a joins b and c, these join d. While c is made a
// may stay, since a, b and c are live together anyway.
TEST(RunsTwiceOnlyWhatSavesBytes) {
  testing::ProgramBuilder builder;
  const ValueId a = builder.Op({.inputs = {builder.Given(4)}, .output_bytes = {4}});
  const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {4}});
  const ValueId c = builder.Op({.inputs = {a}, .output_bytes = {4}});
  builder.Op({.inputs = {b, c}, .output_bytes = {8}});
  const GroupedOrder grouped = GroupNodes(builder.program(), builder.program().schedule, 1000);
  EXPECT_TRUE((grouped.order == std::vector<NodeId>{3}));
  EXPECT_TRUE((MembersOf(grouped.nodes, 3) == std::vector<OpId>{0, 2, 1, 3}));
}

TEST(KeepsWhatMayNotBeMadeLater) {
  testing::ProgramBuilder builder;
  const ValueId weight = builder.Given(8);
  const ValueId pinned = builder.Op({.inputs = {weight}, .output_bytes = {8}, .can_recompute = false});
  const ValueId copy = builder.Op({.inputs = {weight}, .output_bytes = {8}});
  const ValueId early = builder.Op({.inputs = {weight}, .output_bytes = {8}});
  builder.Op({.inputs = {weight, pinned, early},
              .output_bytes = {8},
              .kind = ValueKind::kOutput,
              .can_recompute = false,
              .in_place_of = weight});
  builder.Op({.inputs = {copy}, .output_bytes = {1}});   // after the weight was overwritten
  const GroupedOrder grouped = GroupNodes(builder.program(), builder.program().schedule, 1000);
  EXPECT_TRUE((grouped.order == std::vector<NodeId>{0, 1, 3, 4}));
  EXPECT_TRUE((MembersOf(grouped.nodes, 3) == std::vector<OpId>{2, 3}));   // the writer itself may take in `early`
}

TEST(GrowthIsBounded) {
  const StepProgram program = testing::ForwardBackwardChain(100, 10);
  for (const int64_t max_members : {0, 1000, 10000, 1000000}) {
    const GroupedOrder grouped = GroupNodes(program, program.schedule, max_members);
    EXPECT_TRUE(static_cast<int64_t>(grouped.nodes.members.items.size()) <= std::max<int64_t>(max_members, 201));
  }
}

TEST(GroupedOrdersAreValid) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    const StepProgram program = testing::RandomProgram(seed, 40);
    const GroupedOrder grouped = GroupNodes(program, program.schedule, 2000);
    EXPECT_EQ(CheckSchedule(program, MembersInOrder(grouped.nodes, grouped.order)), "");
  }
}

}  // namespace
}  // namespace coopjax
