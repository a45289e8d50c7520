#include "pass/carried_out.h"

#include <string>

#include "testing/loop_module.h"
#include "testing/two_wide_module.h"
#include "verify/verify.h"

namespace coopjax {
namespace {

using testing::Analyzed;
using testing::AnalyzedModule;

HeapResult Heap(int64_t temp_bytes, int64_t least_temp_bytes) {
  HeapResult heap;
  heap.temp_bytes = temp_bytes;
  heap.least_temp_bytes = least_temp_bytes;
  return heap;
}

TEST(RanksCompareTheBudgetThenTheCostThenTheBytes) {
  const CarriedOut small = {.cost_s = 2, .heap = Heap(400, 300)}, cheap = {.cost_s = 1, .heap = Heap(500, 500)};
  EXPECT_TRUE(cheap.Rank(500) < small.Rank(500));   // both hold it
  EXPECT_TRUE(small.Rank(499) < cheap.Rank(499));   // one is over by a byte
  EXPECT_EQ(cheap.Rank(499).excess_bytes, 1);
  EXPECT_EQ(cheap.Rank(501).excess_bytes, 0);
  EXPECT_EQ(small.LeastRank(350).excess_bytes, 0);
  EXPECT_EQ(small.LeastRank(299).excess_bytes, 1);
  const CarriedOut smaller = {.cost_s = 2, .heap = Heap(399, 300)};
  EXPECT_TRUE(smaller.Rank(500) < small.Rank(500));
}

TEST(HardlyAByteIsLostInAPackedHeap) {
  // Up to 1.005 times the least.
  EXPECT_TRUE(IsPacked(Heap(1004, 1000)));
  EXPECT_TRUE(!IsPacked(Heap(1006, 1000)));
}

// As it came wide and other are there at once: 8 KiB. With other after b, which reads wide last, one is.
TEST(APlanIsCarriedOut) {
  const AnalyzedModule came = Analyzed(testing::TwoWide());
  HloProgram hlo;
  EXPECT_EQ(BuildHloProgram(*came.analysis, Roofline(), &hlo), "");
  CarriedOut done = {.plan = {.schedule = {0, 1, 4, 2, 3, 5, 6}}};
  std::string fault;
  EXPECT_TRUE(CarryOut(*came.analysis, hlo, &done, &fault));
  EXPECT_EQ(fault, "");
  EXPECT_TRUE(done.heap.temp_bytes >= 4096 && done.heap.temp_bytes <= 4096 + 3 * 64);
  EXPECT_EQ(verify::VerifyTransform(*came.module, *done.module), "");
  EXPECT_TRUE(done.op_workspace_bytes == hlo.program.op_workspace_bytes);
}

TEST(WhatCannotBeCarriedOutIsSaid) {
  const AnalyzedModule came = Analyzed(testing::TwoWide());
  HloProgram hlo;
  EXPECT_EQ(BuildHloProgram(*came.analysis, Roofline(), &hlo), "");
  CarriedOut done = {.plan = {.schedule = {0, 1, 2}}};
  std::string fault;
  EXPECT_TRUE(!CarryOut(*came.analysis, hlo, &done, &fault));
  EXPECT_EQ(fault, "the schedule lacks op 3");
  EXPECT_TRUE(done.module == nullptr);
}

}  // namespace
}  // namespace coopjax
