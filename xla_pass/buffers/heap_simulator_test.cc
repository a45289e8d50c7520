#include "buffers/heap_simulator.h"

#include <string>
#include <vector>

#include "buffers/analysis.h"
#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

const hlo::Shape kKilobyte = F32({256});

// All values but the parameters are in the heap.
std::vector<HeapInterval> Simulate(HloBuilder& b) {
  std::string error;
  const auto analysis = AnalyzeHlo(b.Finish(), &error);
  EXPECT_EQ(error, "");
  const HloDataflow& dataflow = *analysis->dataflow;
  std::vector<uint8_t> is_in_heap;
  for (int32_t value = 0; value < dataflow.num_values(); ++value) {
    is_in_heap.push_back(dataflow.graph().op(dataflow.defining_instruction(value)) != hlo::Op::kParameter);
  }
  return SimulateHeap(*analysis->alias, analysis->ranges, is_in_heap);
}

// x, y = reverse(x), z = reverse(y): each is allocated before the one it is made from is freed, in six events:
// x, y, -x, z, -y, -z.
TEST(EventsAreCounted) {
  HloBuilder b;
  b.Begin("main");
  const int64_t x = b.Add("reverse", kKilobyte, {b.Parameter(0, kKilobyte)});
  const int64_t y = b.Add("reverse", kKilobyte, {x});
  b.Add("reverse", kKilobyte, {y});
  const std::vector<HeapInterval> heap = Simulate(b);
  EXPECT_EQ(heap.size(), 3u);
  const std::vector<int32_t> starts = {0, 1, 3}, ends = {2, 4, 5}, start_times = {1, 2, 3};
  for (int k = 0; k < 3; ++k) {
    EXPECT_EQ(heap[k].bytes, 1024);
    EXPECT_EQ(heap[k].start, starts[k]);
    EXPECT_EQ(heap[k].end, ends[k]);
    EXPECT_EQ(heap[k].shared_with, -1);
    EXPECT_EQ(heap[k].start_time, start_times[k]);
  }
  EXPECT_EQ(PeakLiveBytes(heap), 2 * 1024);
}

// negate(x) takes x's memory over, if x dies there: not if somebody reads it later, nor does a copy.
TEST(ADyingOperandIsTakenOver) {
  const auto shared_with = [](const std::string& opcode, bool is_read_later) {
    HloBuilder b;
    b.Begin("main");
    const int64_t x = b.Add("reverse", kKilobyte, {b.Parameter(0, kKilobyte)});
    const int64_t y = b.Add(opcode, kKilobyte, {x});
    b.Add("concatenate", kKilobyte, {y, is_read_later ? x : y});
    return Simulate(b)[1].shared_with;
  };
  EXPECT_EQ(shared_with("negate", false), 0);
  EXPECT_EQ(shared_with("negate", true), -1);
  EXPECT_EQ(shared_with("copy", false), -1);
}

// On XLA:GPU a collective between whose start and done nothing runs is a plain one, and its result is taken over too.
TEST(WhatASynchronousCollectiveMakesIsTakenOver) {
  for (const bool is_gpu : {false, true}) {
    HloBuilder b;
    const int64_t wrapped = b.Begin("wrapped");
    b.Add("all-reduce", kKilobyte, {b.Parameter(0, kKilobyte)});
    b.Begin("main");
    const int64_t x = b.Add("reverse", kKilobyte, {b.Parameter(0, kKilobyte)});
    const int64_t start = b.Add("async-start", TupleOf({TupleOf({kKilobyte}), kKilobyte}), {x}, {wrapped});
    b.Add("negate", kKilobyte, {b.Add("async-done", kKilobyte, {start})});
    if (is_gpu) b.SetRaw(R"({"operation_queue_id":"0"})");
    const std::vector<HeapInterval> heap = Simulate(b);
    EXPECT_EQ(heap.back().shared_with, is_gpu ? 3 : -1);  // after x and two tables
  }
}

// Results of one collective have one rank: the values' numbers then decide.
TEST(TiesGoByRankThenByValue) {
  std::vector<HeapInterval> intervals;
  for (int k = 40; k-- > 0;) intervals.push_back({k, 64, 0, 100, -1, 0, 0, k / 20});
  const Packing packing = PackHeap(intervals, {});
  for (size_t k = 0; k < 40; ++k) EXPECT_EQ(packing.offsets[k], 64 * (39 - static_cast<int64_t>(k)));
}

// 40 bytes under 16: 64 + 16 at multiples of 64, and 40 + 16 without.
TEST(WhatIsNotOnTopIsRoundedUp) {
  const std::vector<HeapInterval> intervals = {{0, 40, 0, 3, -1, 0, 0}, {1, 16, 1, 2, -1, 0, 0}};
  EXPECT_EQ(LeastHeapBytes(intervals, 64), 64 + 16);
  EXPECT_EQ(LeastHeapBytes(intervals, 1), 40 + 16);
  EXPECT_EQ(PeakLiveBytes(intervals), 40 + 16);
  EXPECT_EQ(PackHeap(intervals, {}).heap_bytes, 64 + 16);
}

// An end is inclusive: what starts at the same event lies beside, what starts at the next one below.
TEST(EndsAreInclusive) {
  EXPECT_EQ(PackHeap({{0, 64, 0, 2, -1, 0, 0}, {1, 64, 2, 3, -1, 0, 0}}, {}).heap_bytes, 128);
  EXPECT_EQ(PackHeap({{0, 64, 0, 2, -1, 0, 0}, {1, 64, 3, 4, -1, 0, 0}}, {}).heap_bytes, 64);
}

// The second 128 is made when the first one is gone, and fits between the two 64s that stay.
TEST(BestFitTakesTheSmallestGap) {
  const std::vector<HeapInterval> intervals = {
      {0, 64, 0, 20, -1, 0, 0}, {1, 128, 1, 5, -1, 0, 0}, {2, 64, 2, 19, -1, 0, 0}, {3, 128, 6, 18, -1, 0, 0}};
  const Packing packing = PackHeap(intervals, {});
  EXPECT_EQ(packing.heap_bytes, 64 + 128 + 64);
  EXPECT_EQ(packing.offsets[1], packing.offsets[3]);
}

// Members of a group get one offset, which is free for all of their ranges together.
TEST(SharedIntervalsHaveOneOffset) {
  const std::vector<HeapInterval> intervals = {
      {0, 128, 0, 3, -1, 0, 0}, {1, 64, 1, 9, -1, 0, 0}, {2, 128, 4, 8, 0, 0, 0}};
  const Packing packing = PackHeap(intervals, {});
  EXPECT_EQ(packing.offsets[0], packing.offsets[2]);
  EXPECT_EQ(packing.heap_bytes, 192);
  EXPECT_EQ(PeakLiveBytes(intervals), 192);
}

// In the first case placing by size gives 320 and by duration 384; in the second 448 and 384.
TEST(TheSmallerOfTwoHeapsWins) {
  const std::vector<HeapInterval> by_size = {
      {0, 192, 0, 2, -1, 0, 0}, {1, 64, 1, 5, -1, 0, 0}, {2, 128, 3, 7, -1, 0, 0}, {3, 128, 4, 6, -1, 0, 0}};
  EXPECT_EQ(PackHeap(by_size, {}).heap_bytes, 320);
  EXPECT_EQ(PeakLiveBytes(by_size), 320);
  const std::vector<HeapInterval> by_duration = {
      {0, 128, 0, 7, -1, 0, 0}, {1, 192, 1, 2, -1, 0, 0}, {2, 128, 3, 6, -1, 0, 0}, {3, 128, 4, 5, -1, 0, 0}};
  EXPECT_EQ(PackHeap(by_duration, {}).heap_bytes, 384);
  // As it runs, the first 128 takes the place of the 192, and the second does not fit beside it.
  EXPECT_EQ(PackHeap(by_size, {.packs_as_it_runs = true}).heap_bytes, 384);
}

}  // namespace
}  // namespace coopjax
