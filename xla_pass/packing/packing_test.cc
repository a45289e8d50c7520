#include "packing/packing.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "packing/blocks.h"
#include "testing/expect.h"

namespace coopjax {
namespace {

PackingProblem Of(std::vector<PackingBuffer> buffers) { return {std::move(buffers), kNoCapacity}; }

// a [0, 3) and b [3, 9) follow each other, c [0, 9) lives beside both: 4 + 4.
TEST(BuffersThatFollowEachOtherShareBytes) {
  const PackingProblem problem = Of({{0, 3, 4}, {3, 9, 4}, {0, 9, 4}});
  EXPECT_EQ(PeakLiveBytes(problem), 8);
  const Packing packing = PackBestFit(problem);
  EXPECT_EQ(packing.heap_bytes, 8);
  EXPECT_EQ(CheckPacking(problem, packing), "");
}

// By size: a (10) at 0, b (6) above it at 10 while a lives [0, 2); c (5) lives [2, 4) beside b [0, 4) and goes
// into the gap [0, 10), d (4) beside both: best fit puts it into [5, 10), first fit too; e (9, [4, 6)) is alone.
TEST(BestFitTakesTheTightestGap) {
  const PackingProblem problem = Of({{0, 2, 10}, {0, 4, 6}, {2, 4, 5}, {2, 4, 4}, {4, 6, 9}});
  const Packing packing = PackInOrder(problem, PackingOrder::kSize, FitRule::kBest);
  EXPECT_TRUE((packing.offsets == std::vector<int64_t>{0, 10, 0, 5, 0}));
  EXPECT_EQ(packing.heap_bytes, 16);
  // Gaps for the last one (2 bytes, time 9): [0, 10) and [12, 15). Best fit takes the second, first fit the first.
  PackingProblem gaps = Of({{8, 10, 2, 1, 10}, {8, 10, 5, 1, 15}, {9, 10, 2}});
  EXPECT_EQ(PackInOrder(gaps, PackingOrder::kSize, FitRule::kBest).offsets[2], 12);
  EXPECT_EQ(PackInOrder(gaps, PackingOrder::kSize, FitRule::kFirst).offsets[2], 0);
  gaps.buffers[2].size = 4;   // 3 bytes are too few now
  EXPECT_EQ(PackInOrder(gaps, PackingOrder::kSize, FitRule::kBest).offsets[2], 0);
}

// 10 and 3 bytes aligned to 8: one at 0, the other at 16 or 8: the smaller on top of the larger ends at 16 + 3,
// the larger on top of the smaller at 8 + 10 = 18, which is the bound: 16 + 8, less the slack of 6 on top.
TEST(AlignmentCostsBytes) {
  const PackingProblem problem = Of({{0, 2, 10, 8}, {0, 2, 3, 8}});
  EXPECT_EQ(PeakLiveBytes(problem), 13);
  EXPECT_EQ(PackingLowerBound(MakePackingBlocks(problem)), 18);
  EXPECT_EQ(PackInOrder(problem, PackingOrder::kSize, FitRule::kBest).heap_bytes, 19);
}

// v (8) [0, 3), overwritten in place by w (8) [3, 5): one rectangle. A third member of 4 bytes makes it a staircase:
// 8 bytes in [0, 5), 4 in [5, 7). Beside it x (4) in [5, 7): it fits above the small step, 4 + 4.
TEST(TiedBuffersMoveTogether) {
  const PackingProblem problem = Of({{0, 3, 8}, {3, 5, 8, 1, kAnyOffset, 0}, {5, 7, 4, 1, kAnyOffset, 1}, {5, 7, 4}});
  const PackingBlocks blocks = MakePackingBlocks(problem);
  EXPECT_EQ(std::ssize(blocks.blocks), 2);
  EXPECT_EQ(std::ssize(blocks.segments), 3);
  EXPECT_EQ(PeakLiveBytes(problem), 8);
  const Packing packing = PackBestFit(problem);
  EXPECT_EQ(packing.heap_bytes, 8);
  EXPECT_TRUE((packing.offsets == std::vector<int64_t>{0, 0, 0, 4}));
}

TEST(FaultsAreNamed) {
  EXPECT_EQ(CheckPackingProblem(Of({{0, 1, 4}, {3, 3, 4}})), "buffer 1 lives from 3 to 3, which is no time");
  EXPECT_EQ(CheckPackingProblem(Of({{0, 1, -4}})), "buffer 0 has the negative size -4");
  EXPECT_EQ(CheckPackingProblem(Of({{0, 1, 4, 0}})), "buffer 0 has the alignment 0");
  EXPECT_EQ(CheckPackingProblem(Of({{0, 1, 4, 1, kAnyOffset, 0}})),
            "buffer 0 is tied to buffer 0, which is not an earlier one");
  EXPECT_EQ(CheckPackingProblem(Of({{0, 1, 4, 8, 4}})), "buffer 0 is fixed off its alignment");
  EXPECT_EQ(CheckPackingProblem(Of({{0, 2, 4, 1, 0}, {1, 2, 4, 1, 3}})),
            "buffer 0 and buffer 1 share bytes at the same time");
  EXPECT_EQ(CheckPackingProblem(Of({{0, 2, 4, 1, 0}, {1, 2, 4, 1, 4}})), "");
  EXPECT_EQ(CheckPackingProblem(Of({{0, 1, 4, 1, 0}, {1, 2, 4, 1, 4, 0}})),
            "buffer 1 is tied to a buffer fixed elsewhere");
}

TEST(WrongPackingsAreFound) {
  const PackingProblem problem = Of({{0, 2, 4}, {1, 3, 4}, {2, 4, 4, 2}});
  EXPECT_EQ(CheckPacking(problem, {8, {0, 4, 0}}), "");
  EXPECT_EQ(CheckPacking(problem, {7, {0, 3, 0}}), "buffer 0 and buffer 1 share bytes at the same time");
  EXPECT_EQ(CheckPacking(problem, {7, {0, 4, 0}}), "buffer 1 lies outside the heap");
  EXPECT_EQ(CheckPacking(problem, {12, {0, 4, 9}}), "buffer 2 lies at 9");
}

TEST(EmptyProblems) {
  EXPECT_EQ(PackBestFit(Of({})).heap_bytes, 0);
  EXPECT_EQ(PackBestFit(Of({{0, 5, 0}, {1, 2, 0}})).heap_bytes, 0);
}

// The obvious greedy: all placed rectangles, sorted, gap by gap.
std::vector<int64_t> SlowFit(const PackingProblem& problem, const std::vector<int32_t>& sequence, FitRule rule) {
  std::vector<int64_t> offsets(problem.buffers.size(), -1);
  for (const int32_t k : sequence) {
    const PackingBuffer& buffer = problem.buffers[k];
    std::vector<std::pair<int64_t, int64_t>> used;
    for (size_t other = 0; other < offsets.size(); ++other) {
      const PackingBuffer& o = problem.buffers[other];
      if (offsets[other] < 0 || o.lower >= buffer.upper || buffer.lower >= o.upper) continue;
      used.emplace_back(offsets[other], offsets[other] + o.size);
    }
    std::ranges::sort(used);
    int64_t at = 0, best = -1, best_gap = INT64_MAX;
    for (const auto& [begin, end] : used) {
      const int64_t gap = begin - at;
      if (gap >= buffer.size && gap < best_gap && (rule == FitRule::kBest || best < 0)) {
        best = at;
        best_gap = gap;
      }
      at = std::max(at, AlignUp(end, buffer.alignment));
    }
    offsets[k] = best < 0 ? at : best;
  }
  return offsets;
}

TEST(TheTreeOfTimesFindsWhatAScanFinds) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    PackingProblem problem;
    const int32_t alignment = round % 2 ? 1 : 8;
    const int32_t most = round % 3 ? 20 : 200;
    for (int k = 0; k < 5 + round; ++k) {
      const auto lower = static_cast<int32_t>(random() % (10 + round));
      const auto duration = static_cast<int32_t>(1 + random() % (round % 5 ? 6 : 40));
      problem.buffers.push_back({lower, lower + duration, 1 + static_cast<int64_t>(random() % most), alignment});
    }
    std::vector<int32_t> sequence(problem.buffers.size());
    std::iota(sequence.begin(), sequence.end(), 0);
    std::ranges::shuffle(sequence, random);
    for (const FitRule rule : {FitRule::kBest, FitRule::kFirst}) {
      const Packing packing = PackInSequence(problem, sequence, rule);
      EXPECT_EQ(CheckPacking(problem, packing), "");
      EXPECT_TRUE(packing.offsets == SlowFit(problem, sequence, rule));
    }
  }
}

}  // namespace
}  // namespace coopjax
