#include "bridge/hlo_program.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bridge/text.h"
#include "hlo/wire.h"
#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

HloProgram Build(HloBuilder& b) {
  HloProgram result;
  std::string error;
  const auto analysis = AnalyzeHlo(b.Finish(), &error);
  EXPECT_EQ(error, "");
  EXPECT_EQ(BuildHloProgram(*analysis, {1e9, 1e9, 1e9, 1e-6}, &result), "");
  return result;
}

std::string RawMetadata(std::string_view op_name, std::string_view source_file, uint64_t source_line) {
  std::string metadata, raw;
  hlo::AppendBytesField(2, op_name, &metadata);
  hlo::AppendBytesField(3, source_file, &metadata);
  hlo::AppendVarintField(4, source_line, &metadata);
  hlo::AppendBytesField(7, metadata, &raw);
  return raw;
}

std::vector<int32_t> ToVector(std::span<const int32_t> row) { return {row.begin(), row.end()}; }

TEST(GlueIsFolded) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({8}));
  const int64_t constant = b.Add("constant", F32({}));
  const int64_t x = b.Add("reverse", F32({8}), {p});
  b.SetRaw(RawMetadata("jit(f)/coop7/rev", "model.py", 12));
  const int64_t flat = b.Add("bitcast", F32({2, 4}), {x});
  const int64_t pair = b.Add("tuple", TupleOf({F32({2, 4}), F32({})}), {flat, constant});
  const int64_t element = b.Element(pair, 0);
  b.Add("pad", F32({12}), {element, constant});
  const HloProgram hlo = Build(b);
  const StepProgram& program = hlo.program;
  EXPECT_EQ(program.num_ops(), 2);
  EXPECT_EQ(program.num_values(), 4);  // p, constant, x, y
  EXPECT_TRUE(ToVector(program.op_inputs[1]) == (std::vector<int32_t>{2, 1}));
  EXPECT_TRUE(program.value_kind[0] == ValueKind::kParameter);
  EXPECT_TRUE(program.value_kind[1] == ValueKind::kConstant);
  EXPECT_TRUE(program.value_kind[2] == ValueKind::kTemporary);
  EXPECT_TRUE(program.value_kind[3] == ValueKind::kOutput);
  EXPECT_TRUE(program.op_can_recompute[0] == 1);
  EXPECT_TRUE(program.op_can_recompute[1] == 0);  // makes an output
  EXPECT_EQ(hlo.op_instruction_ids[0], x);
  EXPECT_EQ(hlo.op_scopes[0], "jit(f)/coop7/rev");
  EXPECT_EQ(hlo.op_sources[0], "model.py:12");
  EXPECT_EQ(hlo.op_sources[1], "");
  EXPECT_EQ(hlo.value_types[2], "f32[8]");
}

// x = reverse(p) is updated in place, and the donated p is overwritten by the result.
TEST(InPlaceWritersNameWhatTheyOverwrite) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({8}));
  const int64_t row = b.Parameter(1, F32({1}));
  const int64_t x = b.Add("reverse", F32({8}), {p});
  const int64_t y = b.Add("dynamic-update-slice", F32({8}), {x, row});
  const int64_t z = b.Add("reverse", F32({8}), {y});
  b.Add("tuple", TupleOf({F32({8})}), {z});
  b.Donate(0, {0});
  const StepProgram program = Build(b).program;
  EXPECT_TRUE(program.value_in_place_of == (std::vector<ValueId>{kNoValue, kNoValue, kNoValue, 2, 0}));
  EXPECT_TRUE(program.value_kind[3] == ValueKind::kTemporary);
  EXPECT_TRUE(program.value_kind[4] == ValueKind::kOutput);
  EXPECT_TRUE(program.op_can_recompute == (std::vector<uint8_t>{1, 0, 0}));
}

// while (x, w): x = reverse(reverse(x)); one inner temporary of 4 KB. x is overwritten, w goes through.
TEST(LoopsOverwriteTheirStateAndNeedWorkspace) {
  HloBuilder b;
  const hlo::Shape state = TupleOf({F32({1024}), F32({16})});
  const int64_t body = b.Begin("body");
  const int64_t in = b.Parameter(0, state);
  const int64_t x = b.Element(in, 0);
  const int64_t w = b.Element(in, 1);
  const int64_t once = b.Add("reverse", F32({1024}), {x});
  const int64_t twice = b.Add("reverse", F32({1024}), {once});
  b.Add("tuple", state, {twice, w});
  const int64_t condition = b.Begin("condition");
  b.Add("is-finite", F32({}), {b.Element(b.Parameter(0, state), 0)});
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({1024}));
  const int64_t x0 = b.Add("copy", F32({1024}), {p});
  const int64_t w0 = b.Add("iota", F32({16}));
  const int64_t loop = b.Add("while", state, {b.Add("tuple", state, {x0, w0})}, {body, condition});
  const int64_t x1 = b.Element(loop, 0);
  const int64_t w1 = b.Element(loop, 1);
  const int64_t sum = b.Add("concatenate", F32({1040}), {x1, w1});
  b.Add("concatenate", F32({1056}), {sum, w1});
  const StepProgram program = Build(b).program;
  // Values: p, x0, w0, the loop's x, the concatenation, the result.
  EXPECT_EQ(program.num_values(), 6);
  EXPECT_EQ(program.value_in_place_of[3], 1);
  EXPECT_TRUE(ToVector(program.op_inputs[2]) == (std::vector<int32_t>{1, 2}));
  EXPECT_TRUE(ToVector(program.op_inputs[3]) == (std::vector<int32_t>{3, 2}));
  EXPECT_TRUE(ToVector(program.op_control[4]) == (std::vector<int32_t>{2}));  // the loop hands w on
  EXPECT_EQ(program.op_workspace_bytes[2], 4096);
  EXPECT_EQ(program.op_workspace_bytes[3], 0);
  EXPECT_TRUE(program.op_can_recompute == (std::vector<uint8_t>{1, 1, 0, 1, 0}));
}

TEST(KindsAreThoseOfTheDearestPart) {
  HloBuilder b;
  const int64_t product = b.Begin("product");   // a dot, then an add: the dot counts
  const int64_t q = b.Parameter(0, F32({8, 8}));
  b.Add("add", F32({8, 8}), {b.Add("dot", F32({8, 8}), {q, q}), q});
  b.EndEmbedded();
  const int64_t pointwise = b.Begin("pointwise");   // no product: what the root does
  const int64_t r = b.Parameter(0, F32({8, 8}));
  b.Add("tanh", F32({8, 8}), {b.Add("negate", F32({8, 8}), {r})});
  b.EndEmbedded();
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({8, 8}));
  const int64_t x = b.LoopFusion(F32({8, 8}), {p}, product);
  const int64_t y = b.LoopFusion(F32({8, 8}), {x}, pointwise);
  const int64_t z = b.Add("custom-call", F32({8, 8}), {y});
  b.last().custom_call_target = "__onednn$matmul";
  b.Add("reverse", F32({8, 8}), {z});
  EXPECT_TRUE(Build(b).op_kinds == (std::vector<std::string>{"dot", "tanh", "dot", "reverse"}));
}

TEST(SharingFollowsXlasRule) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({8}));
  const int64_t x = b.Add("reverse", F32({8}), {p});
  const int64_t y = b.Add("negate", F32({8}), {x});
  const int64_t flat = b.Add("bitcast", F32({8}), {y});
  const int64_t z = b.Add("negate", F32({8}), {flat});  // through a bitcast: XLA does not look there
  const int64_t copied = b.Add("copy", F32({8}), {z});  // a copy never shares
  b.Add("reverse", F32({8}), {copied});
  const StepProgram program = Build(b).program;
  EXPECT_EQ(program.may_share.size(), size_t{1});
  EXPECT_EQ(program.may_share[0].op, 1);
  EXPECT_EQ(program.may_share[0].input, 1);
  EXPECT_EQ(program.may_share[0].output, 2);
}

TEST(OrderThatNoValueCarriesIsControl) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({8}));
  const int64_t token = b.Add("after-all", testing::Token());
  const int64_t sent = b.Add("outfeed", testing::Token(), {p, token});
  const int64_t joined = b.Add("after-all", testing::Token(), {sent});
  const int64_t more = b.Add("outfeed", testing::Token(), {p, joined});
  const int64_t x = b.Add("reverse", F32({8}), {p});
  const int64_t y = b.Add("reverse", F32({8}), {p});
  b.Follows({more});
  b.Add("add", F32({8}), {x, y});
  const StepProgram program = Build(b).program;
  EXPECT_EQ(program.num_ops(), 5);  // two outfeeds, x, y, add
  EXPECT_TRUE(program.op_control[0].empty());
  EXPECT_TRUE(ToVector(program.op_control[1]) == (std::vector<int32_t>{0}));
  EXPECT_TRUE(ToVector(program.op_control[3]) == (std::vector<int32_t>{1}));
  EXPECT_TRUE(program.op_can_recompute == (std::vector<uint8_t>{0, 0, 1, 0, 0}));
}

TEST(WhoReadsFromABarrierWaitsForAllOfIt) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({8}));
  const int64_t x = b.Add("reverse", F32({8}), {p});
  const int64_t y = b.Add("reverse", F32({8}), {p});
  const int64_t pair = b.Add("tuple", TupleOf({F32({8}), F32({8})}), {x, p});
  const int64_t both = b.Add("tuple", TupleOf({F32({8}), F32({8})}), {b.Element(pair, 0), y});
  const int64_t barrier = b.Add("opt-barrier", TupleOf({F32({8}), F32({8})}), {both});
  const int64_t z = b.Add("reverse", F32({8}), {b.Element(barrier, 0)});
  b.Add("add", F32({8}), {z, b.Element(barrier, 1)});
  const StepProgram program = Build(b).program;
  EXPECT_EQ(program.num_ops(), 4);  // x, y, z, add
  EXPECT_TRUE(ToVector(program.op_inputs[2]) == (std::vector<int32_t>{program.op_outputs[0][0]}));
  EXPECT_TRUE(ToVector(program.op_control[2]) == (std::vector<int32_t>{1}));  // it reads x
  EXPECT_TRUE(ToVector(program.op_control[3]) == (std::vector<int32_t>{0}));
  EXPECT_TRUE(program.op_can_recompute == (std::vector<uint8_t>{1, 1, 1, 0}));  // waiting does not keep z from it
}

// Nobody reads the barrier's y, which reads x: no op, but z's read places the barrier, which x must come before.
TEST(WhatOnlyABarrierKeepsIsNoOp) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({8}));
  const int64_t x = b.Add("reverse", F32({8}), {p}), w = b.Add("reverse", F32({8}), {p});
  const int64_t y = b.Add("reverse", F32({8}), {x});
  const int64_t pair = b.Add("tuple", TupleOf({F32({8}), F32({8})}), {w, y});
  const int64_t barrier = b.Add("opt-barrier", TupleOf({F32({8}), F32({8})}), {pair});
  const int64_t z = b.Add("reverse", F32({8}), {b.Element(barrier, 0)});
  b.Add("add", F32({8}), {z, x});
  const HloProgram hlo = Build(b);
  EXPECT_TRUE(hlo.op_instruction_ids == (std::vector<int64_t>{x, w, z, b.last().id}));
  EXPECT_TRUE(ToVector(hlo.program.op_control[2]) == (std::vector<int32_t>{0}));
}

TEST(EffectsKeepTheirOrder) {
  HloBuilder b;
  const int64_t sum = b.Begin("sum");
  b.Add("add", F32({}), {b.Parameter(0, F32({})), b.Parameter(1, F32({}))});
  b.EndEmbedded();
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({8}));
  const int64_t x = b.Add("all-reduce", F32({8}), {p});
  b.Calls({sum});
  const int64_t y = b.Add("reverse", F32({8}), {p});
  const int64_t z = b.Add("all-reduce", F32({8}), {p});
  b.Calls({sum});
  b.Add("add", F32({8}), {b.Add("add", F32({8}), {x, y}), z});
  const StepProgram program = Build(b).program;
  EXPECT_TRUE(program.op_control[0].empty() && program.op_control[1].empty());
  EXPECT_TRUE(ToVector(program.op_control[2]) == (std::vector<int32_t>{0}));
}

TEST(WhatMayNotRunTwice) {
  HloBuilder b;
  const int64_t random = b.Begin("random");
  b.Add("rng", F32({8}), {b.Parameter(0, F32({}))});
  b.EndEmbedded();
  const int64_t writer = b.Begin("writer");  // two results, one of them written in place of nothing
  const int64_t q = b.Parameter(0, F32({8}));
  const int64_t zeros = b.Add("broadcast", F32({8}), {b.Add("constant", F32({}))});
  const int64_t written = b.Add("dynamic-update-slice", F32({8}), {zeros, q});
  b.Add("tuple", TupleOf({F32({8}), F32({8})}), {b.Add("negate", F32({8}), {q}), written});
  b.EndEmbedded();
  b.Begin("main");
  const int64_t scalar = b.Parameter(0, F32({}));
  const int64_t r = b.LoopFusion(F32({8}), {scalar}, random);
  const int64_t pair = b.LoopFusion(TupleOf({F32({8}), F32({8})}), {r}, writer);
  const int64_t first = b.Element(pair, 0);
  const int64_t second = b.Element(pair, 1);
  const int64_t custom = b.Add("custom-call", F32({8}), {first});
  const int64_t unknown = b.Add("brand-new-op", F32({8}), {second});
  const int64_t fine = b.Add("add", F32({8}), {custom, unknown});
  b.Add("reverse", F32({8}), {fine});
  const StepProgram program = Build(b).program;
  EXPECT_TRUE(program.op_can_recompute == (std::vector<uint8_t>{0, 0, 0, 0, 1, 0}));
  EXPECT_TRUE(ToVector(program.op_outputs[1]).size() == 2);
}

// The copy is hidden by y and z, which thereby follow its start and precede its done; x and w are free. The last reads
// what the start made, through the done.
TEST(AsynchronousPairsKeepTheirDistance) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({8}));
  const int64_t x = b.Add("reverse", F32({8}), {p});
  const int64_t start = b.Add("copy-start", TupleOf({F32({8}), F32({8}), F32({})}), {p});
  const int64_t y = b.Add("reverse", F32({8}), {x});
  const int64_t z = b.Add("reverse", F32({8}), {p});
  const int64_t done = b.Add("copy-done", F32({8}), {start});
  const int64_t w = b.Add("reverse", F32({8}), {p});
  b.Add("concatenate", F32({32}), {y, z, done, w});
  const StepProgram program = Build(b).program;
  EXPECT_TRUE(ToVector(program.op_control[0]).empty());
  EXPECT_TRUE(ToVector(program.op_control[2]) == (std::vector<int32_t>{1}));
  EXPECT_TRUE(ToVector(program.op_control[3]) == (std::vector<int32_t>{1}));
  EXPECT_TRUE(ToVector(program.op_control[4]) == (std::vector<int32_t>{2, 3}));
  EXPECT_TRUE(ToVector(program.op_control[5]).empty());
  EXPECT_TRUE(ToVector(program.op_control[6]) == (std::vector<int32_t>{4}));
}

// The start updates its operand in place: its done reads the result alone.
TEST(AsynchronousStartsMayOverwriteTheirOperands) {
  HloBuilder b;
  const int64_t callee = b.Begin("callee");
  const int64_t inner = b.Parameter(0, F32({8}));
  b.Add("dynamic-update-slice", F32({8}), {inner, inner});
  b.Begin("main");
  const int64_t x = b.Add("reverse", F32({8}), {b.Parameter(0, F32({8}))});
  const hlo::Shape state = TupleOf({TupleOf({F32({8})}), F32({8}), F32({})});
  const int64_t start = b.Add("async-start", state, {x}, {callee});
  b.Add("reverse", F32({8}), {b.Add("async-done", F32({8}), {start})});
  const StepProgram program = Build(b).program;
  EXPECT_TRUE(program.value_in_place_of[2] == 1);
  EXPECT_TRUE(ToVector(program.op_inputs[1]) == (std::vector<int32_t>{1}));
  EXPECT_TRUE(ToVector(program.op_inputs[2]) == (std::vector<int32_t>{2, 3}));  // not x, value 1
}

// On TPU, x is in vector memory, y on the host: neither takes bytes, and what makes x and the flag keeps its order.
TEST(ValuesOutsideTheMainMemoryTakeNoBytes) {
  const auto in = [](int64_t space) {
    hlo::Shape shape = F32({8, 128});
    shape.tiles = {{8, 128}};
    shape.memory_space = space;
    return shape;
  };
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, in(0));
  const int64_t x = b.Add("reverse", in(1), {p});
  const int64_t flag = b.Add("custom-call", TupleOf({in(0), in(2)}), {p});
  const int64_t y = b.Add("reverse", in(5), {b.Element(flag, 0)});
  b.Add("concatenate", in(0), {x, y});
  const StepProgram program = Build(b).program;
  EXPECT_TRUE(program.value_bytes == (std::vector<int64_t>{4096, 0, 4096, 0, 0, 4096}));
  EXPECT_TRUE(ToVector(program.op_control[1]) == (std::vector<int32_t>{0}));
  EXPECT_TRUE(ToVector(program.op_control[2]).empty());
  EXPECT_EQ(program.op_can_recompute[0], 0);
  EXPECT_EQ(program.op_can_recompute[2], 1);
}

}  // namespace
}  // namespace coopjax
