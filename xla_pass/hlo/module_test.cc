#include "hlo/module.h"

#include <memory>
#include <string>
#include <vector>

#include "hlo/emit.h"
#include "testing/expect.h"
#include "testing/hlo_proto_builder.h"

namespace coopjax::hlo {
namespace {

using testing::F32;
using testing::HloProtoBuilder;
using testing::TupleShape;

std::string Fault(const std::string& bytes) {
  std::string error;
  ParseModule(bytes, &error);
  return error;
}

std::string VarintField(uint32_t number, uint64_t value) {
  std::string out;
  AppendVarintField(number, value, &out);
  return out;
}

// main: (p0, p1) -> tuple(fusion(p0), p1), with one field of every kind that the view reads.
std::string Sample() {
  HloProtoBuilder builder;
  const int64_t fused = builder.Begin("fused", /*is_scheduled=*/false);
  builder.Add("negate", F32({4}), {builder.Parameter(0, F32({4}))});
  builder.Begin("main");
  const int64_t p0 = builder.Parameter(0, F32({4})), p1 = builder.Parameter(1, F32({4}));
  std::string fields, entry, alias;
  AppendBytesField(1, "key", &entry);
  AppendBytesField(2, "value", &entry);
  std::string map, metadata;
  AppendBytesField(1, entry, &map);
  AppendBytesField(68, map, &fields);
  AppendVarintField(2, 0, &alias);
  AppendBytesField(74, alias, &fields);
  AppendBytesField(5000, "from the future", &fields);
  const testing::Extra extra = {.control = {p1}, .called = {fused}, .fields = fields};
  const int64_t fusion = builder.Add("fusion", F32({4}), {p0}, extra);
  builder.Add("tuple", TupleShape({F32({4}), F32({4})}), {fusion, p1});
  builder.Alias({0}, 0);
  builder.AppendModuleFields(VarintField(4000, 17));
  return builder.Build();
}

TEST(FieldsAreParsed) {
  std::string error;
  const auto module = ParseModule(Sample(), &error);
  EXPECT_EQ(error, "");
  EXPECT_EQ(module->name, "test");
  EXPECT_EQ(module->entry_computation().name, "main");
  EXPECT_EQ(module->entry_computation().sequence.size(), 4u);
  EXPECT_EQ(module->computations[0].sequence.size(), 0u);
  const Instruction& p1 = module->instructions[3];
  EXPECT_EQ(p1.parameter_number, 1);
  EXPECT_EQ(module->instructions[2].parameter_number, 0);  // proto3 leaves the zero out
  const Instruction& fusion = module->instructions[4];
  EXPECT_EQ(fusion.name, "fusion.5");
  EXPECT_TRUE(module->InstructionIds(fusion.operands) == std::vector<int64_t>{module->instructions[2].id});
  EXPECT_TRUE(module->InstructionIds(fusion.control_predecessors) == std::vector<int64_t>{p1.id});
  EXPECT_TRUE(module->ComputationIds(fusion.called) == std::vector<int64_t>{module->computations[0].id});
  EXPECT_EQ(fusion.output_operand_aliasing.size(), 1u);
  EXPECT_EQ(fusion.shape->byte_size(), 16);
  EXPECT_EQ(&module->by_id(fusion.id), &fusion);
  EXPECT_TRUE(module->input_output_aliases[0].output_index == std::vector<int64_t>{0});
}

// set-up = async-start(), start = async-update(set-up, p), done = async-done(start): as on a TPU's SparseCore.
TEST(AnAsynchronousStartIsWhereItsOperandsCome) {
  HloProtoBuilder builder;
  const int64_t callee = builder.Begin("callee", /*is_scheduled=*/false);
  builder.Add("negate", F32({4}), {builder.Parameter(0, F32({4}))});
  builder.Begin("main");
  const int64_t p = builder.Parameter(0, F32({4}));
  const int64_t set_up =
      builder.Add("async-start", TupleShape({TupleShape({}), TupleShape({})}), {}, {.called = {callee}});
  const int64_t start = builder.Add("async-update", TupleShape({TupleShape({F32({4})}), F32({4})}), {set_up, p});
  builder.Add("async-done", F32({4}), {start});
  std::string error;
  const auto module = ParseModule(builder.Build(), &error);
  EXPECT_EQ(error, "");
  EXPECT_TRUE(module->by_id(set_up).info.op == Op::kOther && module->by_id(set_up).called.empty());
  EXPECT_TRUE(module->by_id(start).info.op == Op::kAsyncStart);
  EXPECT_TRUE(module->InstructionIds(module->by_id(start).operands) == std::vector<int64_t>{p});
  EXPECT_TRUE(module->InstructionIds(module->by_id(start).control_predecessors) == std::vector<int64_t>{set_up});
  EXPECT_TRUE(module->ComputationIds(module->by_id(start).called) == std::vector<int64_t>{callee});
}

TEST(EmittingEverythingAnewChangesNothing) {
  std::string error;
  const auto module = ParseModule(Sample(), &error);
  EXPECT_TRUE(EmitModule(*module, {}) == module->bytes);
  std::vector<ComputationEdit> edits;
  for (int32_t c = 0; c < 2; ++c) {
    ComputationEdit& edit = edits.emplace_back();
    edit.computation = c;
    edit.sequence = module->computations[c].sequence;
    for (const int32_t i : module->computations[c].instructions) {
      const Instruction& old = module->instructions[i];
      edit.instructions.push_back(EmitInstruction(old, AsItIs(*module, old)));
      EXPECT_TRUE(edit.instructions.back() == old.raw);
    }
  }
  EXPECT_TRUE(EmitModule(*module, edits) == module->bytes);
}

TEST(AClonedComputationKeepsUnknownFields) {
  std::string error;
  const auto module = ParseModule(Sample(), &error);
  ComputationEdit clone;
  clone.computation = 1;
  clone.is_clone = true;
  clone.new_id = 77;
  clone.new_name = "main.clone";
  clone.insert_before = 1;
  const int64_t id = int64_t{77} << 32;
  clone.new_root_id = id;
  clone.sequence = {id};
  const InstructionEdit edit = {id, "fusion.clone", {}, {}, {module->computations[0].id}};
  clone.instructions.push_back(EmitInstruction(module->instructions[4], edit));
  const auto after = ParseModule(EmitModule(*module, {clone}), &error);
  EXPECT_EQ(error, "");
  EXPECT_EQ(after->computations.size(), 3u);
  EXPECT_EQ(after->computations[1].name, "main.clone");
  EXPECT_EQ(after->entry, 2);
  const Instruction& fusion = after->by_id(id);
  EXPECT_EQ(fusion.name, "fusion.clone");
  EXPECT_TRUE(fusion.raw.find("from the future") != std::string_view::npos);
  EXPECT_EQ(after->computations[1].sequence.size(), 1u);
}

TEST(MalformedModulesAreRefusedWithAReason) {
  EXPECT_EQ(Fault(""), "the module has no schedule");
  EXPECT_EQ(Fault("\x0a\x05"), "the bytes are not a protobuf message");
  EXPECT_EQ(Fault(VarintField(6, 3) + std::string("\x3a\x00", 2)), "the module has no entry computation");
  HloProtoBuilder forward;
  forward.Begin("main");
  const int64_t next = (int64_t{1} << 32) + 1;
  forward.Add("negate", F32({4}), {next});
  forward.Add("iota", F32({4}));
  EXPECT_EQ(Fault(forward.Build()),
            "'negate.1' refers to instruction 4294967297, which does not stand before it in its computation");
  HloProtoBuilder calls;
  calls.Begin("main");
  calls.Add("fusion", F32({4}), {}, {.called = {1}});
  EXPECT_EQ(Fault(calls.Build()), "'fusion.1' calls computation 1, which does not stand before its own");
  HloProtoBuilder unscheduled;
  unscheduled.Begin("main", /*is_scheduled=*/false);
  unscheduled.Add("iota", F32({4}));
  EXPECT_EQ(Fault(unscheduled.Build()), "the entry computation is not in the schedule");
}

TEST(AnEmptySequenceSchedulesNothing) {
  const auto build = [](bool is_fusion) {
    HloProtoBuilder builder;
    builder.ListUnscheduled();
    const int64_t callee = builder.Begin("callee", /*is_scheduled=*/false);
    builder.Add("negate", F32({4}), {builder.Parameter(0, F32({4}))});
    builder.Begin("main");
    builder.Add(is_fusion ? "fusion" : "call", F32({4}), {builder.Parameter(0, F32({4}))}, {.called = {callee}});
    return builder.Build();
  };
  std::string error;
  const auto module = ParseModule(build(/*is_fusion=*/true), &error);
  EXPECT_EQ(error, "");
  EXPECT_EQ(module->computations[0].sequence.size(), 0u);
  EXPECT_EQ(EmitModule(*module, {}) == module->bytes, true);
  EXPECT_EQ(Fault(build(/*is_fusion=*/false)), "");  // whether a call's computation has one, hlo/graph_check.h asks
}

// iota, negate: both scheduled, as given.
std::string WithSequence(const std::vector<int64_t>& sequence) {
  HloProtoBuilder builder;
  builder.Begin("main");
  builder.Add("negate", F32({4}), {builder.Add("iota", F32({4}))});
  std::string error;
  const auto module = ParseModule(builder.Build(), &error);
  ComputationEdit edit;
  edit.computation = 0;
  for (const Instruction& instruction : module->instructions) edit.instructions.emplace_back(instruction.raw);
  edit.sequence = sequence;
  return EmitModule(*module, {edit});
}

TEST(BadSequencesAreRefusedWithAReason) {
  const int64_t a = int64_t{1} << 32, b = a + 1;
  EXPECT_EQ(Fault(WithSequence({a, b})), "");
  EXPECT_EQ(Fault(WithSequence({b, a})), "the schedule of 'main' has 'negate.2' before 'iota.1'");
  EXPECT_EQ(Fault(WithSequence({a})), "the schedule of 'main' lacks 'negate.2'");
  EXPECT_EQ(Fault(WithSequence({a, b, a})), "the schedule of 'main' names 'iota.1' twice");
  EXPECT_EQ(Fault(WithSequence({a, b, 5})), "the schedule of 'main' names instruction 5, which is not in it");
}

TEST(TruncatedAndFlippedBytesNeverCrash) {
  const std::string bytes = Sample();
  for (size_t size = 0; size < bytes.size(); ++size) Fault(bytes.substr(0, size));
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = bytes;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      Fault(flipped);
    }
  }
}

}  // namespace
}  // namespace coopjax::hlo
