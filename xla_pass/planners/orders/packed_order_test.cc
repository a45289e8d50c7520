#include "planners/orders/packed_order.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "packing/packing.h"
#include "program/dependences.h"
#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/program_builder.h"

namespace coopjax {
namespace {

// The heap of a program's temporaries, each live range packed by itself.
OrderHeap HeapOf(const StepProgram& program, const Schedule& order, int64_t target_bytes) {
  PackingProblem problem;
  for (const LiveRange& range : ComputeLiveness(program, order).ranges) {
    if (!program.takes_budget(range.value) || range.begin == range.end) continue;
    problem.buffers.push_back({.lower = range.begin, .upper = range.end, .size = program.value_bytes[range.value]});
  }
  const Packing packing = PackBestFit(problem);
  OrderHeap heap = {packing.heap_bytes, PeakLiveBytes(problem)};
  for (size_t k = 0; k < problem.buffers.size(); ++k) {
    const int64_t bytes = problem.buffers[k].size;
    heap.over_bytes += std::clamp<int64_t>(packing.offsets[k] + bytes - target_bytes, 0, bytes);
    heap.height += static_cast<double>(bytes) * static_cast<double>(packing.offsets[k]);
  }
  return heap;
}

// The slow, obvious way: the smallest heap of all orders.
int64_t SmallestHeap(const StepProgram& program, const Csr& before, Schedule* order, int64_t smallest_bytes) {
  if (std::ssize(*order) == program.num_ops()) return std::min(smallest_bytes, HeapOf(program, *order, 0).temp_bytes);
  const auto has_run = [&](OpId op) { return std::ranges::find(*order, op) != order->end(); };
  for (OpId op = 0; op < program.num_ops(); ++op) {
    if (has_run(op) || !std::ranges::all_of(before[op], has_run)) continue;
    order->push_back(op);
    smallest_bytes = SmallestHeap(program, before, order, smallest_bytes);
    order->pop_back();
  }
  return smallest_bytes;
}

TEST(TheSmallestHeapOfAllOrdersIsFound) {
  int32_t num_smaller = 0, num_smallest = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const StepProgram program = testing::RandomProgram(seed, 8);
    const HeapJudge judge = [&](const Schedule& order, int64_t target) { return HeapOf(program, order, target); };
    Schedule order;
    const int64_t start_bytes = HeapOf(program, program.schedule, 0).temp_bytes;
    const int64_t smallest_bytes = SmallestHeap(program, OpPredecessors(program), &order, start_bytes);
    const PackedOrder packed = SearchPackedOrder(program, program.schedule, judge, {.target_bytes = smallest_bytes});
    EXPECT_EQ(CheckSchedule(program, packed.order), "");
    EXPECT_EQ(packed.heap.temp_bytes, HeapOf(program, packed.order, 0).temp_bytes);
    EXPECT_TRUE(packed.heap.temp_bytes >= smallest_bytes && packed.heap.temp_bytes <= start_bytes);
    num_smaller += smallest_bytes < start_bytes;
    num_smallest += smallest_bytes < start_bytes && packed.heap.temp_bytes == smallest_bytes;
  }
  EXPECT_TRUE(num_smaller > 20);
  EXPECT_EQ(num_smallest, num_smaller);
}

TEST(LongerProgramsLoseFewerBytes) {
  int64_t start_bytes = 0, packed_bytes = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const StepProgram program = testing::RandomProgram(seed, 40);
    const HeapJudge judge = [&](const Schedule& order, int64_t target) { return HeapOf(program, order, target); };
    const OrderHeap start = HeapOf(program, program.schedule, 0);
    const PackedOrderOptions options = {.target_bytes = start.least_bytes, .max_trials = 300};
    const PackedOrder packed = SearchPackedOrder(program, program.schedule, judge, options);
    EXPECT_EQ(CheckSchedule(program, packed.order), "");
    EXPECT_TRUE(packed.heap.temp_bytes <= start.temp_bytes);
    EXPECT_TRUE(packed.order == SearchPackedOrder(program, program.schedule, judge, options).order);
    start_bytes += start.temp_bytes - start.least_bytes;
    packed_bytes += std::max<int64_t>(packed.heap.temp_bytes - start.least_bytes, 0);
  }
  EXPECT_TRUE(4 * packed_bytes < start_bytes);
}

TEST(WhatIsGoodEnoughStays) {
  const StepProgram program = testing::RandomProgram(1, 30);
  const HeapJudge judge = [&](const Schedule& order, int64_t target) { return HeapOf(program, order, target); };
  const int64_t bytes = HeapOf(program, program.schedule, 0).temp_bytes;
  const PackedOrder packed = SearchPackedOrder(program, program.schedule, judge, {.target_bytes = bytes});
  EXPECT_TRUE(packed.order == program.schedule);
  EXPECT_EQ(packed.num_trials, 0);
}

}  // namespace
}  // namespace coopjax
