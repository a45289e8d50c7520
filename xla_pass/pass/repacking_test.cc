#include "pass/repacking.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bridge/transform.h"
#include "program/liveness.h"
#include "testing/loop_module.h"
#include "testing/two_wide_module.h"
#include "verify/verify.h"

namespace coopjax {
namespace {

using testing::Analyzed;
using testing::AnalyzedModule;
using testing::CalledTwoWide;
using testing::TwoWide;

const Schedule kLoose = {0, 2, 1, 3, 0, 4, 5, 6};   // of TwoWide: wide runs again for b, but beside other at first

TEST(RunsOfTheEntryMoveUntilItPacks) {
  const AnalyzedModule came = Analyzed(TwoWide());
  const ProgramReader reader;
  HloProgram hlo;
  EXPECT_EQ(reader.Read(*came.analysis, &hlo), "");
  CarriedOut loose = {.plan = {.schedule = kLoose}, .cost_s = 7};
  std::string fault;
  EXPECT_TRUE(CarryOut(*came.analysis, hlo, &loose, &fault));
  EXPECT_TRUE(loose.heap.temp_bytes >= 2 * 4096);
  const auto packed = Repacked(loose, hlo.program, reader, {.target_bytes = 4096}, &fault);
  EXPECT_EQ(fault, "");
  EXPECT_TRUE(packed.has_value());
  // One wide value at a time, and what is sliced of them.
  EXPECT_TRUE(packed->heap.temp_bytes <= 4096 + 2 * 64);
  EXPECT_EQ(packed->plan.limit_bytes, 4096);
  EXPECT_EQ(packed->plan.peak_bytes, ComputeLiveness(hlo.program, packed->plan.schedule).peak_bytes);
  EXPECT_EQ(packed->cost_s, 7.0);
  EXPECT_EQ(verify::VerifyTransform(*came.module, *packed->module), "");
  // What was given stays.
  EXPECT_TRUE(loose.plan.schedule == kLoose);
}

TEST(RunsInsideMoveToo) {
  const AnalyzedModule came = Analyzed(CalledTwoWide());
  const ProgramReader reader;
  HloProgram entry;
  EXPECT_EQ(reader.Read(*came.analysis, &entry), "");
  InnerPlan inner;
  inner.plan.schedule = kLoose;
  EXPECT_EQ(reader.Read(*came.analysis, &inner.hlo, /*computation=*/0), "");
  std::string fault;
  std::optional<ReadModule> inside =
      ReadBytes(ApplySchedule(*came.module, inner.hlo.op_instruction_ids, kLoose, 0).bytes, &fault);
  CarriedOut loose;
  loose.plan.schedule = entry.program.schedule;
  loose.inner = std::make_shared<const std::vector<InnerPlan>>(1, inner);
  loose.op_workspace_bytes = entry.program.op_workspace_bytes;
  loose.heap = inside->Heap();
  loose.module = std::move(inside->module);
  EXPECT_TRUE(loose.heap.temp_bytes >= 2 * 4096);
  const auto packed = Repacked(loose, entry.program, reader, {.target_bytes = 4096}, &fault);
  EXPECT_TRUE(packed.has_value());
  EXPECT_TRUE(packed->heap.temp_bytes <= 4096 + 3 * 64);
  EXPECT_EQ(verify::VerifyTransform(*came.module, *packed->module), "");
  const InnerPlan& moved = packed->inner->front();
  EXPECT_EQ(CheckSchedule(inner.hlo.program, moved.plan.schedule), "");
  EXPECT_EQ(moved.plan.peak_bytes, ComputeLiveness(inner.hlo.program, moved.plan.schedule).peak_bytes);
  EXPECT_TRUE(packed->op_workspace_bytes[0] < 2 * 4096);   // the call's, from inside
}

TEST(WhatPacksWellIsLeftAlone) {
  const AnalyzedModule came = Analyzed(TwoWide());
  const ProgramReader reader;
  HloProgram hlo;
  EXPECT_EQ(reader.Read(*came.analysis, &hlo), "");
  CarriedOut packed = {.plan = {.schedule = {0, 1, 4, 2, 3, 5, 6}}};
  std::string fault;
  EXPECT_TRUE(CarryOut(*came.analysis, hlo, &packed, &fault));
  const PackedOrderOptions options = {.target_bytes = packed.heap.temp_bytes};
  EXPECT_TRUE(!Repacked(packed, hlo.program, reader, options, &fault));
}

}  // namespace
}  // namespace coopjax
