#include "planners/fastsa/best.h"

#include <vector>

#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

using Nodes = std::vector<NodeId>;

// a at slot 2, b at 5, c at 8, d at 10 and what reads a and d at 13, of 16.
struct Annealed {
  static StepProgram Program() {
    testing::ProgramBuilder builder;
    const ValueId a = builder.Op({.inputs = {builder.Given(1)}, .output_bytes = {8}});
    const ValueId b = builder.Op({.inputs = {a}, .output_bytes = {1}});
    const ValueId c = builder.Op({.inputs = {b}, .output_bytes = {5}});
    const ValueId d = builder.Op({.inputs = {c}, .output_bytes = {5}});
    builder.Op({.inputs = {a, d}, .output_bytes = {1}});
    return builder.program();
  }
  void Commit(const Mutation& mutation) {
    EXPECT_TRUE(state.Probe(mutation));
    state.Apply();
    state.Commit();
    best.Committed(mutation);
  }

  StepProgram program = Program();
  NodeGraph nodes = SingleNodes(program);
  AnnealState state{nodes, program.schedule, 16};
  BestSequence best{state};
};

const Nodes kOnce = {0, 1, 2, 3, 4}, kTwice = {0, 1, 2, 3, 0, 4};
constexpr Mutation kAdd = {0, kNoSlot, 12}, kRemove = {0, 12, kNoSlot}, kRotate = {0, 12, 11};

TEST(TheStartIsTheBestUntilAnotherIs) {
  Annealed annealed;
  EXPECT_TRUE(annealed.best.Sequence() == kOnce);
  annealed.Commit(kAdd);
  EXPECT_TRUE(annealed.best.Sequence() == kOnce);
  annealed.best.IsBest();
  EXPECT_TRUE(annealed.best.Sequence() == kTwice);
  annealed.Commit(kRotate);
  annealed.Commit({0, 11, kNoSlot});
  EXPECT_TRUE(annealed.state.Sequence() == kOnce);
  EXPECT_TRUE(annealed.best.Sequence() == kTwice);
}

// The journal is as long as there are slots: the 16th mutation ends it.
TEST(TheBestOutlivesTheJournal) {
  for (const int num_commits : {14, 16, 40}) {
    Annealed annealed;
    annealed.Commit(kAdd);
    annealed.best.IsBest();
    for (int i = 0; i < num_commits; ++i) annealed.Commit(i % 2 ? kAdd : kRemove);
    EXPECT_TRUE(annealed.best.Sequence() == kTwice);
    annealed.Commit(kRemove);
    annealed.best.IsBest();
    EXPECT_TRUE(annealed.best.Sequence() == kOnce);
  }
}

}  // namespace
}  // namespace coopjax
