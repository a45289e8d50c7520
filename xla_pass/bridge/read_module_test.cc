#include "bridge/read_module.h"

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "testing/expect.h"
#include "testing/hlo_proto_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloProtoBuilder;

// OpMetadata with this op_name, as an instruction's field.
std::string Scope(const std::string& op_name) {
  std::string metadata, field;
  hlo::AppendBytesField(2, op_name, &metadata);
  hlo::AppendBytesField(7, metadata, &field);
  return field;
}

// p -> x, y, each 4 KiB, one of them in the scope coop_kept; z of both is the output.
std::string TwoWide() {
  HloProtoBuilder builder;
  builder.Begin("main");
  const int64_t p = builder.Parameter(0, F32({16}));
  const int64_t x = builder.Add("broadcast", F32({64, 16}), {p}, {.fields = Scope("jit(f)/coop_kept/broadcast")});
  const int64_t y = builder.Add("broadcast", F32({64, 16}), {p}, {.fields = Scope("jit(f)/broadcast")});
  builder.Add("concatenate", F32({128, 16}), {x, y});
  return builder.Build();
}

HloProgram Read(const ProgramReader& reader) {
  std::string error;
  const std::optional<ReadModule> module = ReadBytes(TwoWide(), &error);
  EXPECT_EQ(error, "");
  HloProgram hlo;
  EXPECT_EQ(reader.Read(*module->analysis, &hlo), "");
  return hlo;
}

std::vector<OpId> Control(const HloProgram& hlo, OpId op) {
  const std::span<const int32_t> row = hlo.program.op_control[op];
  return {row.begin(), row.end()};
}

TEST(BytesAreReadWithTheirHeap) {
  std::string error;
  const std::optional<ReadModule> read = ReadBytes(TwoWide(), &error);
  EXPECT_EQ(error, "");
  EXPECT_EQ(read->module->entry_computation().sequence.size(), size_t{4});
  EXPECT_EQ(read->Heap().temp_bytes, 2 * 4096);   // x and y; z is the output
}

TEST(WhatIsNoModuleIsSaid) {
  std::string error;
  EXPECT_TRUE(!ReadBytes("no module", &error));
  EXPECT_TRUE(!error.empty());
}

TEST(WhatIsInTheKeptScopeDoesNotRunAgain) {
  EXPECT_TRUE(Read({}).program.op_can_recompute == (std::vector<uint8_t>{1, 1, 0}));
  EXPECT_TRUE(Read({.kept_scope = "coop_kept"}).program.op_can_recompute == (std::vector<uint8_t>{0, 1, 0}));
}

TEST(AKeptOrderIsControl) {
  const HloProgram free = Read({}), fixed = Read({.keeps_order = true});
  EXPECT_TRUE(Control(free, 1).empty());
  EXPECT_TRUE(Control(fixed, 0).empty());
  EXPECT_TRUE(Control(fixed, 1) == (std::vector<OpId>{0}));
  EXPECT_TRUE(Control(fixed, 2) == (std::vector<OpId>{1}));
}

}  // namespace
}  // namespace coopjax
