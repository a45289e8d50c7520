#include "native/recompute_order_hlo_pass.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "native/buffer_sizes.h"
#include "testing/expect.h"
#include "xla/hlo/ir/hlo_instruction.h"
#include "xla/hlo/parser/hlo_parser.h"
#include "xla/service/hlo_verifier.h"

namespace coopjax {
namespace {

constexpr int64_t kMiB = 1 << 20;

// Two independent halves, the wide values of both made first: 2 MiB where 1 MiB will do.
constexpr char kTwoSums[] = R"(
HloModule two_sums, is_scheduled=true

add {
  p0 = f32[] parameter(0)
  p1 = f32[] parameter(1)
  ROOT sum = f32[] add(p0, p1)
}

ENTRY main {
  x = f32[1024]{0} parameter(0)
  zero = f32[] constant(0)
  wide_a = f32[256,1024]{1,0} broadcast(x), dimensions={1}
  wide_b = f32[256,1024]{1,0} broadcast(x), dimensions={1}
  sum_a = f32[1024]{0} reduce(wide_a, zero), dimensions={0}, to_apply=add
  sum_b = f32[1024]{0} reduce(wide_b, zero), dimensions={0}, to_apply=add
  ROOT both = (f32[1024]{0}, f32[1024]{0}) tuple(sum_a, sum_b)
}
)";

// `wide` (1 MiB) is read first and last, and what lies between needs 2 MiB: 3 MiB in the only order there is, 2 MiB
// and a few vectors of 4 KiB if it is made again. It comes from a fusion, whose computation a clone must not share.
constexpr char kEarlyAndLate[] = R"(
HloModule early_and_late, is_scheduled=true

add {
  p0 = f32[] parameter(0)
  p1 = f32[] parameter(1)
  ROOT sum = f32[] add(p0, p1)
}

widen {
  v = f32[1024]{0} parameter(0)
  b = f32[256,1024]{1,0} broadcast(v), dimensions={1}
  ROOT n = f32[256,1024]{1,0} negate(b)
}

ENTRY main {
  x = f32[1024]{0} parameter(0)
  zero = f32[] constant(0)
  wide = f32[256,1024]{1,0} fusion(x), kind=kLoop, calls=widen
  early = f32[1024]{0} reduce(wide, zero), dimensions={0}, to_apply=add
  up = f32[256,1024]{1,0} broadcast(early), dimensions={1}
  turned = f32[256,1024]{1,0} reverse(up), dimensions={0}
  middle = f32[1024]{0} reduce(turned, zero), dimensions={0}, to_apply=add
  start = f32[] reduce(middle, zero), dimensions={0}, to_apply=add
  ROOT late = f32[1024]{0} reduce(wide, start), dimensions={0}, to_apply=add
}
)";

// kEarlyAndLate in the body of a loop that runs three times: what it needs is needed inside.
constexpr char kLoop[] = R"(
HloModule loop, is_scheduled=true

add {
  p0 = f32[] parameter(0)
  p1 = f32[] parameter(1)
  ROOT sum = f32[] add(p0, p1)
}

widen {
  v = f32[1024]{0} parameter(0)
  b = f32[256,1024]{1,0} broadcast(v), dimensions={1}
  ROOT n = f32[256,1024]{1,0} negate(b)
}

body {
  state = (s32[], f32[1024]{0}) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[1024]{0} get-tuple-element(state), index=1
  one = s32[] constant(1)
  zero = f32[] constant(0)
  next = s32[] add(i, one)
  wide = f32[256,1024]{1,0} fusion(x), kind=kLoop, calls=widen
  early = f32[1024]{0} reduce(wide, zero), dimensions={0}, to_apply=add
  up = f32[256,1024]{1,0} broadcast(early), dimensions={1}
  turned = f32[256,1024]{1,0} reverse(up), dimensions={0}
  middle = f32[1024]{0} reduce(turned, zero), dimensions={0}, to_apply=add
  start = f32[] reduce(middle, zero), dimensions={0}, to_apply=add
  late = f32[1024]{0} reduce(wide, start), dimensions={0}, to_apply=add
  ROOT out = (s32[], f32[1024]{0}) tuple(next, late)
}

condition {
  state = (s32[], f32[1024]{0}) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  last = s32[] constant(3)
  ROOT goes_on = pred[] compare(i, last), direction=LT
}

ENTRY main {
  i = s32[] parameter(0)
  x = f32[1024]{0} parameter(1)
  init = (s32[], f32[1024]{0}) tuple(i, x)
  while = (s32[], f32[1024]{0}) while(init), condition=condition, body=body,
    backend_config={"known_trip_count":{"n":"3"}}
  ROOT out = f32[1024]{0} get-tuple-element(while), index=1
}
)";

// The donated `x` is overwritten in place: who reads it comes before, however much memory another order might save.
constexpr char kInPlace[] = R"(
HloModule in_place, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

add {
  p0 = f32[] parameter(0)
  p1 = f32[] parameter(1)
  ROOT sum = f32[] add(p0, p1)
}

ENTRY main {
  x = f32[256,1024]{1,0} parameter(0)
  zero = f32[] constant(0)
  first = s32[] constant(0)
  row = f32[1,1024]{1,0} constant({...})
  turned = f32[256,1024]{1,0} reverse(x), dimensions={0}
  again = f32[256,1024]{1,0} reverse(turned), dimensions={1}
  new_x = f32[256,1024]{1,0} dynamic-update-slice(x, row, first, first)
  sum = f32[1024]{0} reduce(again, zero), dimensions={0}, to_apply=add
  ROOT both = (f32[256,1024]{1,0}, f32[1024]{0}) tuple(new_x, sum)
}
)";

std::unique_ptr<xla::HloModule> Parse(const char* text) {
  xla::HloModuleConfig config;
  config.mutable_debug_options().set_xla_multiheap_size_constraint_per_heap(-1);
  auto module = xla::ParseAndReturnUnverifiedModule(text, config);
  if (!module.ok()) std::cerr << module.status() << "\n";
  EXPECT_TRUE(module.ok());
  return *std::move(module);
}

// Whether the pass changed the module, which XLA then still accepts.
bool Run(xla::HloModule* module, std::optional<int64_t> budget_bytes, bool may_reorder = true,
         bool may_recompute = true) {
  PlanBytesOptions options;
  options.budget_bytes = budget_bytes;
  options.may_reorder = may_reorder;
  options.may_recompute = may_recompute;
  const absl::StatusOr<bool> is_changed = CoopRecomputeOrder(options).Run(module);
  if (!is_changed.ok()) std::cerr << is_changed.status() << "\n";
  EXPECT_TRUE(is_changed.ok());
  EXPECT_TRUE(xla::HloVerifier(/*layout_sensitive=*/true, /*allow_mixed_precision=*/false).Run(module).ok());
  return is_changed.value_or(false);
}

// Of the entry by default, without what does no work.
std::string Sequence(const xla::HloModule& module, const xla::HloComputation* computation = nullptr) {
  if (computation == nullptr) computation = module.entry_computation();
  std::string names;
  for (const xla::HloInstruction* instruction : module.schedule().sequence(computation).instructions()) {
    const bool is_glue =
        instruction->opcode() == xla::HloOpcode::kParameter || instruction->opcode() == xla::HloOpcode::kConstant ||
        instruction->opcode() == xla::HloOpcode::kTuple || instruction->opcode() == xla::HloOpcode::kGetTupleElement;
    if (!is_glue) names += (names.empty() ? "" : " ") + std::string(instruction->name());
  }
  return names;
}

int64_t TempBytes(xla::HloModule* module) {
  const auto sizes = AssignCpuBuffers(module);
  EXPECT_TRUE(sizes.ok());
  return sizes->temp;
}

TEST(OrderAloneHalvesTwoIndependentHalves) {
  auto module = Parse(kTwoSums);
  EXPECT_EQ(TempBytes(module.get()), 2 * kMiB);
  EXPECT_TRUE(Run(module.get(), std::nullopt));
  const std::string sequence = Sequence(*module);
  EXPECT_TRUE(sequence == "wide_a sum_a wide_b sum_b" || sequence == "wide_b sum_b wide_a sum_a");
  EXPECT_EQ(TempBytes(module.get()), kMiB);
  EXPECT_TRUE(!Run(module.get(), std::nullopt));  // there is nothing left to gain
}

TEST(WhatFitsStaysAsItIs) {
  auto module = Parse(kTwoSums);
  const std::string before = module->ToString();
  EXPECT_TRUE(!Run(module.get(), 2 * kMiB));
  EXPECT_EQ(module->ToString(), before);
  EXPECT_TRUE(Run(module.get(), 2 * kMiB - 1));
  EXPECT_EQ(TempBytes(module.get()), kMiB);
}

TEST(ABudgetClonesWhatIsReadLateRightBeforeItIsRead) {
  auto module = Parse(kEarlyAndLate);
  const int64_t before_bytes = TempBytes(module.get());
  EXPECT_TRUE(before_bytes >= 3 * kMiB);
  EXPECT_TRUE(!Run(module.get(), before_bytes));
  EXPECT_TRUE(!Run(module.get(), before_bytes - 1, /*may_reorder=*/true, /*may_recompute=*/false));
  EXPECT_TRUE(Run(module.get(), 2 * kMiB + 64 * 1024));
  EXPECT_EQ(Sequence(*module), "wide early up turned middle start wide.coop_remat1 late");
  EXPECT_TRUE(TempBytes(module.get()) <= 2 * kMiB + 64 * 1024);
  xla::HloComputation* entry = module->entry_computation();
  const xla::HloInstruction* clone = entry->GetInstructionWithName("wide.coop_remat1");
  const xla::HloInstruction* original = entry->GetInstructionWithName("wide");
  EXPECT_TRUE(entry->root_instruction()->operand(0) == clone);
  EXPECT_TRUE(clone->fused_instructions_computation() != original->fused_instructions_computation());
  EXPECT_TRUE(*clone->fused_instructions_computation() == *original->fused_instructions_computation());
}

TEST(WhatALoopRunsIsClonedInside) {
  auto module = Parse(kLoop);
  EXPECT_TRUE(TempBytes(module.get()) >= 3 * kMiB);
  EXPECT_TRUE(Run(module.get(), 2 * kMiB + 64 * 1024));
  EXPECT_TRUE(TempBytes(module.get()) <= 2 * kMiB + 64 * 1024);
  EXPECT_EQ(Sequence(*module), "while");
  const xla::HloComputation* body = module->entry_computation()->GetInstructionWithName("while")->while_body();
  EXPECT_EQ(Sequence(*module, body), "next wide early up turned middle start wide.coop_remat1 late");
}

TEST(ABudgetOutOfReachGivesTheSmallestThatIsFound) {
  auto module = Parse(kEarlyAndLate);
  EXPECT_TRUE(Run(module.get(), kMiB));
  const int64_t temp_bytes = TempBytes(module.get());
  EXPECT_TRUE(temp_bytes >= 2 * kMiB && temp_bytes <= 2 * kMiB + 64 * 1024);
}

TEST(ReadersComeBeforeWhatOverwritesInPlace) {
  auto module = Parse(kInPlace);
  const int64_t before_bytes = TempBytes(module.get());
  Run(module.get(), 0);
  const std::string sequence = Sequence(*module);
  EXPECT_TRUE(sequence.find("turned") < sequence.find("new_x"));
  EXPECT_TRUE(sequence.rfind("turned") < sequence.find("new_x"));  // a clone of it is a reader, too
  EXPECT_TRUE(TempBytes(module.get()) <= before_bytes);
}

TEST(LayoutsAliasesAndNamesStay) {
  std::string text = kEarlyAndLate;
  const std::string flag = "is_scheduled=true";
  text.replace(text.find(flag), flag.size(), flag + ", input_output_alias={ {}: (0, {}, may-alias) }");
  auto module = Parse(text.c_str());
  const std::string aliases = module->input_output_alias_config().ToString();
  const std::string layout = module->entry_computation_layout().ToString();
  EXPECT_TRUE(aliases.find("may-alias") != std::string::npos);
  EXPECT_TRUE(Run(module.get(), 2 * kMiB + 64 * 1024));
  EXPECT_EQ(module->name(), "early_and_late");
  EXPECT_EQ(module->input_output_alias_config().ToString(), aliases);
  EXPECT_EQ(module->entry_computation_layout().ToString(), layout);
  EXPECT_EQ(AssignCpuBuffers(module.get())->alias, 4096);
}

TEST(AModuleWithoutAScheduleIsRefused) {
  std::string text = kTwoSums;
  text.erase(text.find(", is_scheduled=true"), std::string(", is_scheduled=true").size());
  auto module = Parse(text.c_str());
  EXPECT_TRUE(absl::IsFailedPrecondition(CoopRecomputeOrder(PlanBytesOptions()).Run(module.get()).status()));
}

}  // namespace
}  // namespace coopjax
