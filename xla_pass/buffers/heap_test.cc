#include "buffers/heap.h"

#include <string>
#include <utility>

#include "buffers/analysis.h"
#include "buffers/heap_simulator.h"
#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

const hlo::Shape kKilobyte = F32({256});

HeapResult Assign(HloBuilder& b) {
  std::string error;
  const auto analysis = AnalyzeHlo(b.Finish(), &error);
  EXPECT_EQ(error, "");
  return AssignBuffers(*analysis->alias, analysis->ranges);
}

// p -> a -> b -> scalar; "reverse" can't run in place, so a and b are live together: 2 KB. The result has 4 bytes.
TEST(ValuesThatOverlapAddUp) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, kKilobyte);
  const int64_t x = b.Add("reverse", kKilobyte, {p});
  const int64_t y = b.Add("reverse", kKilobyte, {x});
  b.Add("bitcast-convert", F32({}), {y});
  const HeapResult heap = Assign(b);
  EXPECT_EQ(heap.temp_bytes, 2048);
  EXPECT_EQ(heap.peak_live_bytes, 2048);
  EXPECT_EQ(heap.argument_bytes, 1024);
  EXPECT_EQ(heap.output_bytes, 4);
}

// p -> a (40 bytes) -> b (16) -> scalar. b stands on a's 40 bytes rounded up to 64: no packing takes less than 64 + 16,
// or than 64 + 40 were a on top.
TEST(WhatIsBelowIsRoundedUp) {
  HloBuilder b;
  b.Begin("main");
  const int64_t x = b.Add("reverse", F32({10}), {b.Parameter(0, F32({10}))});
  b.Add("bitcast-convert", F32({}), {b.Add("slice", F32({4}), {x})});
  const HeapResult heap = Assign(b);
  EXPECT_EQ(heap.peak_live_bytes, 40 + 16);
  EXPECT_EQ(heap.least_temp_bytes, 64 + 16);
  EXPECT_EQ(heap.temp_bytes, 64 + 16);
}

// The same chain with elementwise ops: each takes over its operand's buffer, one kilobyte for all.
TEST(DyingOperandsAreTakenOver) {
  HloBuilder b;
  b.Begin("main");
  int64_t x = b.Add("reverse", kKilobyte, {b.Parameter(0, kKilobyte)});
  for (int k = 0; k < 3; ++k) x = b.Add("negate", kKilobyte, {x});
  b.Add("bitcast-convert", F32({}), {x});
  const HeapResult heap = Assign(b);
  EXPECT_EQ(heap.temp_bytes, 1024);
  EXPECT_EQ(heap.peak_live_bytes, 1024);
}

// x = reverse(p); y = reverse(x); out = reverse(y): x lies in the output's buffer, which is not written yet.
TEST(OutputsServeAsScratch) {
  HloBuilder b;
  b.Begin("main");
  const int64_t x = b.Add("reverse", kKilobyte, {b.Parameter(0, kKilobyte)});
  const int64_t y = b.Add("reverse", kKilobyte, {x});
  b.Add("reverse", kKilobyte, {y});
  const HeapResult heap = Assign(b);
  EXPECT_EQ(heap.temp_bytes, 1024);
  EXPECT_TRUE(heap.buffers[1].kind == AllocationKind::kOutput);
  EXPECT_TRUE(heap.buffers[2].kind == AllocationKind::kTemporary);
}

// z = x + x, w = reverse(z), out = reverse(w), where x was seen through a bitcast before: z takes over x, which lies in
// the output's buffer.
TEST(WhatIsSeenElsewhereIsTakenOver) {
  HloBuilder b;
  b.Begin("main");
  const int64_t x = b.Add("reverse", kKilobyte, {b.Parameter(0, kKilobyte)});
  const int64_t seen = b.Add("bitcast", F32({1, 256}), {x});
  const int64_t y = b.Add("bitcast-convert", F32({}), {seen});
  const int64_t z = b.Add("add", kKilobyte, {x, x});
  const int64_t out = b.Add("reverse", kKilobyte, {b.Add("reverse", kKilobyte, {z})});
  b.Add("tuple", TupleOf({kKilobyte, F32({})}), {out, y});
  const HeapResult heap = Assign(b);
  EXPECT_EQ(heap.temp_bytes, 1024);
  for (const HeapBuffer& buffer : heap.buffers) {
    if (buffer.instruction_id == z) EXPECT_TRUE(buffer.kind == AllocationKind::kOutput);
  }
}

// The donated parameter is dead after x, so y lies in it; x itself may not, it is made while p is read.
TEST(DonatedParametersServeAsScratch) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, kKilobyte);
  const int64_t x = b.Add("reverse", kKilobyte, {p});
  const int64_t y = b.Add("reverse", kKilobyte, {x});
  const int64_t z = b.Add("reverse", kKilobyte, {y});
  b.Add("reverse", kKilobyte, {z});
  b.Donate(0, {});
  const HeapResult heap = Assign(b);
  EXPECT_EQ(heap.temp_bytes, 1024);
  EXPECT_EQ(heap.alias_bytes, 1024);
  EXPECT_TRUE(heap.buffers[2].kind == AllocationKind::kParameter);
}

// x and y are live together and as large as the result, which lends its buffer to one of them: to the one whose
// unread reader has the smaller id, wherever it stands. XLA sorts instructions by id when it reads a module.
TEST(TiesGoByIdNotByPlace) {
  for (const bool is_swapped : {false, true}) {
    HloBuilder b;
    b.Begin("main");
    const int64_t p = b.Parameter(0, kKilobyte);
    const int64_t x = b.Add("reverse", kKilobyte, {p});
    const int64_t y = b.Add("reverse", kKilobyte, {p});
    const int64_t reads_x = b.Add("bitcast-convert", F32({}), {x});
    const int64_t reads_y = b.Add("bitcast-convert", F32({}), {y});
    b.Add("reverse", kKilobyte, {p});
    hlo::Module module = b.Finish();
    if (is_swapped) {
      std::swap(module.instructions[b.index(reads_x)].id, module.instructions[b.index(reads_y)].id);
      module.instruction_index = {};
      for (const int32_t i : module.computations[0].instructions) {
        module.instruction_index.Add(module.instructions[i].id, i);
      }
      std::swap(module.computations[0].sequence[3], module.computations[0].sequence[4]);
    }
    std::string error;
    const auto analysis = AnalyzeHlo(module, &error);
    EXPECT_EQ(error, "");
    for (const HeapBuffer& buffer : AssignBuffers(*analysis->alias, analysis->ranges).buffers) {
      if (buffer.instruction_id == x) EXPECT_TRUE((buffer.kind == AllocationKind::kOutput) == !is_swapped);
      if (buffer.instruction_id == y) EXPECT_TRUE((buffer.kind == AllocationKind::kOutput) == is_swapped);
    }
  }
}

// Two scalars live together: the second starts at the next multiple of 64, its own 4 bytes are not padded.
TEST(OffsetsAreAligned) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({}));
  const int64_t x = b.Add("reverse", F32({}), {p});
  const int64_t y = b.Add("reverse", F32({}), {p});
  b.Add("concatenate", F32({2}), {x, y});
  EXPECT_EQ(Assign(b).temp_bytes, 64 + 4);
}

// while (x, w): x = reverse(reverse(x)). The loop's x is the output's buffer. Inside, the first reverse needs one
// kilobyte; the condition's scalar is dead by then. All tuples of the loop are one table of 2 * 8 bytes, which stands
// before the heap and is padded to 64.
TEST(LoopsHoldTheirInnerTemporaries) {
  HloBuilder b;
  const hlo::Shape state = TupleOf({kKilobyte, kKilobyte});
  const int64_t body = b.Begin("body");
  const int64_t in = b.Parameter(0, state);
  const int64_t x = b.Element(in, 0);
  const int64_t w = b.Element(in, 1);
  const int64_t once = b.Add("reverse", kKilobyte, {x});
  const int64_t twice = b.Add("reverse", kKilobyte, {once});
  b.Add("tuple", state, {twice, w});
  const int64_t condition = b.Begin("condition");
  b.Add("is-finite", F32({}), {b.Element(b.Parameter(0, state), 0)});
  b.Begin("main");
  const int64_t p = b.Parameter(0, kKilobyte);
  const int64_t x0 = b.Add("copy", kKilobyte, {p});
  const int64_t init = b.Add("tuple", state, {x0, p});
  b.Element(b.Add("while", state, {init}, {body, condition}), 0);
  const HeapResult heap = Assign(b);
  EXPECT_EQ(heap.heap_bytes, 1024);
  EXPECT_EQ(heap.temp_bytes, 64 + 1024);
  EXPECT_EQ(heap.output_bytes, 1024);
}

// On TPU every buffer is at a multiple of 16 KB, the pair's table behind the heap; v is in vector memory, and nothing
// lies in the output's buffer.
TEST(TpuAlignsWidelyAndCountsItsMainMemory) {
  hlo::Shape array = F32({256});
  array.tiles = {{128}};
  hlo::Shape in_vector_memory = array;
  in_vector_memory.memory_space = 1;
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, array);
  const int64_t x = b.Add("reverse", array, {p});
  const int64_t v = b.Add("reverse", in_vector_memory, {x});
  const int64_t pair = b.Add("custom-call", TupleOf({array, array}), {x, v});
  b.Add("concatenate", array, {b.Element(pair, 0), b.Element(pair, 1), x});
  const HeapResult heap = Assign(b);
  EXPECT_EQ(heap.heap_bytes, 2 * 16384 + 1024);  // x and the pair's elements
  EXPECT_EQ(heap.peak_live_bytes, 3 * 1024);
  EXPECT_EQ(heap.output_bytes, 1024);
  // 4 x 16 KB with the table, of which 3 x 1 KB and 512 bytes are live: the rest is counted a second time.
  EXPECT_EQ(heap.temp_bytes, 2 * 4 * 16384 - (3 * 1024 + 512));
  EXPECT_EQ(heap.least_temp_bytes, heap.temp_bytes);  // alignment alone loses bytes here
  for (const HeapBuffer& buffer : heap.buffers) EXPECT_TRUE(buffer.instruction_id != v);
}

// while (stack, x): x = reverse(reverse(x)), and what is between the two goes into the stack, or is it. What is lost is
// counted twice, and so is the stack that is filled in place.
TEST(TpuCountsStacksTwice) {
  hlo::Shape array = F32({256});
  array.tiles = {{128}};
  const hlo::Shape state = TupleOf({array, array});
  const auto assigned = [&](const std::string& update) {
    HloBuilder b;
    const int64_t body = b.Begin("body");
    const int64_t in = b.Parameter(0, state);
    const int64_t stack = b.Element(in, 0);
    const int64_t once = b.Add("reverse", array, {b.Element(in, 1)});
    const int64_t twice = b.Add("reverse", array, {once});
    b.Add("tuple", state, {b.Add(update, array, {stack, once}), twice});
    const int64_t condition = b.Begin("condition");
    b.Add("is-finite", F32({}), {b.Element(b.Parameter(0, state), 1)});
    b.Begin("main");
    const int64_t p = b.Parameter(0, array);
    const int64_t init = b.Add("tuple", state, {b.Add("custom-call", array), b.Add("reverse", array, {p})});
    const int64_t loop = b.Add("while", state, {init}, {body, condition});
    b.Add("concatenate", array, {b.Element(loop, 0), b.Element(loop, 1)});
    return Assign(b);
  };
  const HeapResult filled = assigned("dynamic-update-slice"), made = assigned("add");
  EXPECT_EQ(made.peak_live_bytes, filled.peak_live_bytes);
  EXPECT_EQ(filled.temp_bytes - made.temp_bytes, 1024);
}

// x -> y; a kilobyte each. Behind the barrier nobody reads d, nor its kilobyte.
TEST(WhatOnlyABarrierKeepsTakesNothing) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, kKilobyte);
  const int64_t x = b.Add("reverse", kKilobyte, {p}), d = b.Add("reverse", kKilobyte, {p});
  const hlo::Shape pair = TupleOf({kKilobyte, kKilobyte});
  const int64_t barrier = b.Add("opt-barrier", pair, {b.Add("tuple", pair, {x, d})});
  b.Add("bitcast-convert", F32({}), {b.Add("reverse", kKilobyte, {b.Element(barrier, 0)})});
  EXPECT_EQ(Assign(b).temp_bytes, 2048);
}

}  // namespace
}  // namespace coopjax
