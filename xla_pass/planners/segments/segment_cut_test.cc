#include "planners/segments/segment_cut.h"

#include "testing/expect.h"

namespace coopjax {
namespace {

// Step 0 (cost 2) makes p0 (4 bytes) from outside input p2 (3 bytes); step 1 (cost 1) makes p1 (8 bytes) from p0.
// The late steps want p1.
SegmentProblem TwoSteps() {
  SegmentProblem problem;
  problem.step_cost_s = {2, 1};
  problem.may_repeat = {1, 1};
  problem.inputs.AddRow(std::vector<int32_t>{2});
  problem.inputs.AddRow(std::vector<int32_t>{0});
  problem.producer = {0, 1};
  problem.bytes = {4, 8, 3};
  problem.flags = {0, SegmentProblem::kWanted, 0};
  return problem;
}

const std::vector<uint8_t> kNothingHeld = {0, 0, 0};

TEST(HoldsWhatIsCheapToHold) {
  SegmentCuts cuts;
  const int32_t kind = cuts.KindOf(TwoSteps());
  // To hold p1 costs 8 x price. To hold p0 and run step 1: 4 x price + 1. To hold p2 and run both: 3 x price + 3.
  EXPECT_TRUE(cuts.Choose(kind, 0.2, kNothingHeld).repeated.empty());                          // 1.6, 1.8, 3.6
  EXPECT_TRUE(cuts.Choose(kind, 0.3, kNothingHeld).repeated == (std::vector<int32_t>{1}));         // 2.4, 2.2, 3.9
  const SegmentChoice& dear = cuts.Choose(kind, 3, kNothingHeld);                              // 24, 13, 12
  EXPECT_TRUE(dear.repeated == (std::vector<int32_t>{0, 1}));
  EXPECT_TRUE(dear.held_outside == (std::vector<int32_t>{2}));
}

TEST(WhatIsHeldAlreadyCostsNothing) {
  SegmentCuts cuts;
  const int32_t kind = cuts.KindOf(TwoSteps());
  EXPECT_TRUE(cuts.Choose(kind, 0.2, {1, 0, 0}).repeated == (std::vector<int32_t>{1}));            // 1 against 1.6
}

TEST(PinnedStepsAndLostInputsAreNotRepeated) {
  SegmentCuts cuts;
  SegmentProblem pinned = TwoSteps(), lost = TwoSteps();
  pinned.may_repeat[1] = 0;
  lost.flags[2] = SegmentProblem::kLost;
  EXPECT_TRUE(cuts.Choose(cuts.KindOf(pinned), 1e9, kNothingHeld).repeated.empty());
  EXPECT_TRUE(cuts.Choose(cuts.KindOf(lost), 1e9, kNothingHeld).repeated == (std::vector<int32_t>{1}));
}

TEST(EqualSegmentsAreOneKindAndSolvedOnce) {
  SegmentCuts cuts;
  SegmentProblem other = TwoSteps();
  other.bytes[0] = 5;
  const int32_t kind = cuts.KindOf(TwoSteps());
  EXPECT_EQ(cuts.KindOf(TwoSteps()), kind);
  EXPECT_TRUE(cuts.KindOf(other) != kind);
  cuts.Choose(kind, 1, kNothingHeld);
  cuts.Choose(kind, 1, kNothingHeld);
  EXPECT_EQ(cuts.num_solved(), int64_t{1});
  EXPECT_EQ(cuts.num_kinds(), 2);
}

}  // namespace
}  // namespace coopjax
