#include "pass/packed_module.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "bridge/transform.h"
#include "program/liveness.h"
#include "testing/expect.h"
#include "testing/two_wide_module.h"
#include "verify/verify.h"

namespace coopjax {
namespace {

using testing::CalledTwoWide;
using testing::TwoWide;

struct Module {
  explicit Module(std::string bytes) {
    std::string error;
    module = hlo::ParseModule(std::move(bytes), &error);
    analysis = AnalyzeHlo(*module, &error);
    EXPECT_EQ(error, "");
    EXPECT_EQ(BuildHloProgram(*analysis, Roofline(), &hlo), "");
  }
  HeapResult Heap() const { return AssignBuffers(*analysis->alias, analysis->ranges); }

  std::unique_ptr<hlo::Module> module;
  std::unique_ptr<const HloAnalysis> analysis;
  HloProgram hlo;
};

TEST(TheHeapOfAnotherOrderIsThatOfTheModuleInIt) {
  const Module given(TwoWide());
  const Schedule order = {2, 0, 1, 4, 3, 5, 6};
  const Module reordered(ApplySchedule(*given.module, given.hlo.op_instruction_ids, order).bytes);
  const HeapResult heap = HeapInOrder(*given.analysis, given.hlo.op_instruction_ids, order);
  EXPECT_EQ(heap.temp_bytes, reordered.Heap().temp_bytes);
  EXPECT_TRUE(heap.temp_bytes >= 2 * 4096);
}

// wide is made anew for b, but other comes while it is there: 8 KiB and what is small. Moved, one of them at a time.
TEST(RunsMoveAndReadsStayWithTheirProduction) {
  const Module given(TwoWide());
  const Schedule schedule = {0, 2, 1, 3, 0, 4, 5, 6};
  const Module cloned(ApplySchedule(*given.module, given.hlo.op_instruction_ids, schedule).bytes);
  EXPECT_TRUE(cloned.Heap().temp_bytes >= 2 * 4096);
  const PackedSchedule packed = PackScheduleOf(*cloned.module, Roofline(), schedule, {.target_bytes = 4096});
  const Module moved(packed.bytes);
  EXPECT_TRUE(moved.Heap().temp_bytes <= 4096 + 2 * 64);
  EXPECT_EQ(verify::VerifyTransform(*given.module, *moved.module), "");
  EXPECT_EQ(CheckSchedule(given.hlo.program, packed.schedule), "");
  EXPECT_EQ(std::ssize(packed.schedule), std::ssize(schedule));
  const auto step = [&](OpId op) { return std::ranges::find(packed.schedule, op) - packed.schedule.begin(); };
  const auto again = std::ssize(packed.schedule) - 1 -
                     (std::find(packed.schedule.rbegin(), packed.schedule.rend(), 0) - packed.schedule.rbegin());
  EXPECT_TRUE(step(0) < step(1) && step(1) < again && again < step(4));
}

TEST(RunsInsideACallMove) {
  const Module given(CalledTwoWide());
  HloProgram called;
  EXPECT_EQ(BuildHloProgram(*given.analysis, Roofline(), &called, 0), "");
  const Schedule schedule = {0, 2, 1, 3, 0, 4, 5, 6};
  const Module cloned(ApplySchedule(*given.module, called.op_instruction_ids, schedule, 0).bytes);
  EXPECT_TRUE(cloned.Heap().temp_bytes >= 2 * 4096);
  const PackedSchedule packed =
      PackScheduleOf(*cloned.module, Roofline(), schedule, {.target_bytes = 4096}, /*computation=*/0);
  const Module moved(packed.bytes);
  EXPECT_TRUE(moved.Heap().temp_bytes <= 4096 + 3 * 64);
  EXPECT_EQ(verify::VerifyTransform(*given.module, *moved.module), "");
  EXPECT_EQ(CheckSchedule(called.program, packed.schedule), "");
}

TEST(WhatPacksWellStays) {
  const Module given(TwoWide());
  const Schedule& schedule = given.hlo.program.schedule;
  const int64_t temp_bytes = given.Heap().temp_bytes;
  const PackedSchedule packed = PackScheduleOf(*given.module, Roofline(), schedule, {.target_bytes = temp_bytes});
  EXPECT_EQ(packed.bytes, "");
  EXPECT_TRUE(packed.schedule == schedule);
}

// As above, but b, and a, read wide behind a barrier that has come by then for what else is in it: the first of three
// runs of wide (op 1) has no reader.
TEST(RunsThatNobodyReadsAreNoOps) {
  testing::HloProtoBuilder builder;
  builder.Begin("main");
  const std::string small = testing::F32({16}), large = testing::F32({64, 16});
  const std::string pair = testing::TupleShape({small, large});
  const int64_t p = builder.Parameter(0, small);
  const int64_t x = builder.Add("negate", small, {p}), wide = builder.Add("broadcast", large, {p});
  const int64_t barrier = builder.Add("opt-barrier", pair, {builder.Add("tuple", pair, {x, wide})});
  const int64_t y = builder.Add("negate", small, {builder.Element(small, barrier, 0)});
  const int64_t behind = builder.Element(large, barrier, 1);
  const int64_t a = builder.Add("slice", small, {behind}), other = builder.Add("broadcast", large, {p});
  const int64_t c = builder.Add("slice", small, {other}), b = builder.Add("slice", small, {behind});
  const int64_t sum = builder.Add("add", small, {builder.Add("add", small, {a, c}), b});
  builder.Add("add", small, {sum, y});
  const Module given(builder.Build());
  const Schedule schedule = {0, 1, 2, 1, 4, 3, 5, 1, 6, 7, 8, 9};
  const Module cloned(ApplySchedule(*given.module, given.hlo.op_instruction_ids, schedule).bytes);
  EXPECT_EQ(cloned.hlo.program.num_ops(), 11);
  EXPECT_TRUE(RunsOfOps(cloned.analysis->graph, cloned.module->entry, schedule) ==
              (std::vector<int32_t>{0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_TRUE(RunsOfOps(cloned.analysis->graph, cloned.module->entry, given.hlo.program.schedule).empty());
  EXPECT_EQ(verify::VerifyTransform(*given.module, *cloned.module), "");
  EXPECT_TRUE(cloned.Heap().temp_bytes >= 2 * 4096);
  const PackedSchedule packed = PackScheduleOf(*cloned.module, Roofline(), schedule, {.target_bytes = 4096});
  const Module moved(packed.bytes);
  EXPECT_TRUE(moved.Heap().temp_bytes < 2 * 4096);
  EXPECT_EQ(verify::VerifyTransform(*given.module, *moved.module), "");
  EXPECT_EQ(CheckSchedule(given.hlo.program, packed.schedule), "");
  EXPECT_EQ(std::ssize(packed.schedule), std::ssize(schedule));
}

}  // namespace
}  // namespace coopjax
