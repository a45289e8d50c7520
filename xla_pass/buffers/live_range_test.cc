#include "buffers/live_range.h"

#include <cstdint>
#include <vector>

#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

const hlo::Shape kArray = F32({4});

struct Analysis {
  explicit Analysis(HloBuilder& b) : builder(b), graph(b.Finish()), dataflow(graph), alias(dataflow) {}
  // Whether the value that `id` defines lives in [start, end], both included.
  bool Lives(const HloLiveRanges& ranges, int64_t id, int32_t start, int32_t end) const {
    const HloLiveRange& range = ranges.of_value[dataflow.value_at(graph.node_base(builder.index(id)))];
    return range.start == start && range.end == end;
  }

  HloBuilder& builder;
  hlo::Graph graph;
  HloDataflow dataflow;
  HloAlias alias;
};

// p at 0, x at 1, y at 2, z = x + y at 3: x and y end where z reads them, z and p, not donated, with the program at 4.
TEST(AValueLivesToItsLastUse) {
  for (const bool is_donated : {false, true}) {
    HloBuilder b;
    b.Begin("main");
    const int64_t p = b.Parameter(0, kArray);
    const int64_t x = b.Add("reverse", kArray, {p}), y = b.Add("reverse", kArray, {p});
    const int64_t z = b.Add("add", kArray, {x, y});
    if (is_donated) b.Donate(0, {});
    const Analysis a(b);
    const HloLiveRanges ranges = ComputeHloLiveRanges(a.alias);
    EXPECT_EQ(ranges.end_time(), 4);
    EXPECT_TRUE(a.Lives(ranges, p, 0, is_donated ? 2 : 4));   // z is written into it
    EXPECT_TRUE(a.Lives(ranges, x, 1, 3) && a.Lives(ranges, y, 2, 3) && a.Lives(ranges, z, 3, 4));
  }
}

// The same with y first. And a value that nobody reads lives at its own time only.
TEST(AnotherOrderMovesTheTimes) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, kArray);
  const int64_t x = b.Add("reverse", kArray, {p}), unread = b.Add("reverse", kArray, {p});
  const int64_t z = b.Add("reverse", kArray, {x});
  const Analysis a(b);
  const HloLiveRanges before = ComputeHloLiveRanges(a.alias);
  EXPECT_TRUE(a.Lives(before, x, 1, 3) && a.Lives(before, unread, 2, 2));
  const std::vector<int32_t> sequence = {b.index(p), b.index(unread), b.index(x), b.index(z)};
  const HloLiveRanges after = ComputeHloLiveRanges(a.alias, 0, sequence);
  EXPECT_TRUE(a.Lives(after, x, 2, 3) && a.Lives(after, unread, 1, 1));
  EXPECT_TRUE(after.sequence == sequence);
  EXPECT_EQ(after.time[b.index(x)], 2);
}

// What the result shows lives as long as the program, 4, not only to the tuple at 3.
TEST(WhatTheResultShowsLivesToTheEnd) {
  HloBuilder b;
  b.Begin("main");
  const int64_t x = b.Add("reverse", kArray, {b.Parameter(0, kArray)});
  const int64_t y = b.Add("reverse", kArray, {x});
  b.Add("tuple", TupleOf({kArray}), {x});
  const Analysis a(b);
  const HloLiveRanges ranges = ComputeHloLiveRanges(a.alias);
  EXPECT_TRUE(a.Lives(ranges, x, 1, 4) && a.Lives(ranges, y, 2, 2));
}

// p at 0, x at 1; what is wrapped at 2 and 3, its start at 4, its done at 5, where XLA:GPU has the collective run.
TEST(WhatIsMadeSynchronousRunsAtItsDone) {
  for (const bool is_gpu : {false, true}) {
    HloBuilder b;
    const int64_t wrapped = b.Begin("wrapped");
    const int64_t reduced = b.Add("all-reduce", kArray, {b.Parameter(0, kArray)});
    b.Begin("main");
    const int64_t x = b.Add("reverse", kArray, {b.Parameter(0, kArray)});
    const int64_t start = b.Add("async-start", TupleOf({TupleOf({kArray}), kArray}), {x}, {wrapped});
    b.Add("reverse", kArray, {b.Add("async-done", kArray, {start})});
    if (is_gpu) b.SetRaw(R"({"operation_queue_id":"0"})");
    const Analysis a(b);
    const HloLiveRanges ranges = ComputeHloLiveRanges(a.alias);
    EXPECT_TRUE(a.Lives(ranges, x, 1, 5) && a.Lives(ranges, reduced, is_gpu ? 5 : 3, 6));
    EXPECT_EQ(ranges.place_of(b.index(reduced)), b.index(is_gpu ? start : reduced));
  }
}

// p at 0, x at 1; what is called stands before its call, parameter at 2, sine at 3; the call at 4, the fusion at 5. x
// is last read by sine, whose value is the call's and lives until the fusion has read it. A fusion has no times inside.
TEST(CallsAreFlattened) {
  HloBuilder b;
  const int64_t fused = b.Begin("fused");
  const int64_t inside = b.Parameter(0, kArray);
  b.EndEmbedded();
  const int64_t f = b.Begin("f");
  const int64_t sine = b.Add("sine", kArray, {b.Parameter(0, kArray)});
  b.Begin("main");
  const int64_t x = b.Add("reverse", kArray, {b.Parameter(0, kArray)});
  const int64_t call = b.Add("call", kArray, {x}, {f});
  const int64_t fusion = b.LoopFusion(kArray, {call}, fused);
  const Analysis a(b);
  const HloLiveRanges ranges = ComputeHloLiveRanges(a.alias);
  EXPECT_EQ(ranges.time[b.index(sine)], 3);
  EXPECT_EQ(ranges.time[b.index(call)], 4);
  EXPECT_EQ(ranges.time[b.index(inside)], -1);
  EXPECT_EQ(ranges.span[1].start, 2);
  EXPECT_EQ(ranges.span[1].end, 4);
  EXPECT_EQ(ranges.span[0].start, -1);
  EXPECT_TRUE(a.Lives(ranges, x, 1, 3) && a.Lives(ranges, sine, 3, 5) && a.Lives(ranges, fusion, 5, 6));
}

// y = dynamic-update-slice(x) lies where x does: x, which z reads afterwards by the order, ends where y starts, and y
// lives as long as any of both.
TEST(ValuesOfOneBufferFollowEachOther) {
  HloBuilder b;
  b.Begin("main");
  const int64_t row = b.Parameter(0, F32({1}));
  const int64_t x = b.Add("iota", kArray);
  const int64_t y = b.Add("dynamic-update-slice", kArray, {x, row});
  const int64_t reads_x = b.Add("sine", kArray, {x});
  b.Add("add", kArray, {reads_x, reads_x});
  const Analysis a(b);
  const HloLiveRanges ranges = ComputeHloLiveRanges(a.alias);
  EXPECT_TRUE(a.Lives(ranges, x, 1, 2));
  EXPECT_TRUE(a.Lives(ranges, y, 2, 3));   // unread by itself
}

}  // namespace
}  // namespace coopjax
