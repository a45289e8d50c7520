#include "hlo/emit.h"

#include <string>
#include <string_view>
#include <vector>

#include "testing/expect.h"
#include "testing/hlo_proto_builder.h"

namespace coopjax::hlo {
namespace {

using testing::F32;
using testing::HloProtoBuilder;
using testing::Parsed;
using Ids = std::vector<int64_t>;

// f(x) = negate(x), scheduled or not; main: (p) -> sine(f(p)), with a field that the view does not read.
std::string Sample(std::string_view caller = "fusion", bool is_scheduled = false) {
  HloProtoBuilder builder;
  const int64_t f = builder.Begin("f", is_scheduled);
  builder.Add("negate", F32({4}), {builder.Parameter(0, F32({4}))});
  builder.Begin("main");
  std::string fields;
  AppendBytesField(5000, "from the future", &fields);
  const int64_t p = builder.Parameter(0, F32({4}));
  const int64_t x = builder.Add(caller, F32({4}), {p}, {.called = {f}, .fields = fields});
  builder.Add("sine", F32({4}), {x});
  return builder.Build();
}

// main as it came.
ComputationEdit MainAsItIs(const Module& module) {
  ComputationEdit edit;
  edit.computation = 1;
  for (const int32_t i : module.computations[1].instructions) {
    edit.instructions.emplace_back(module.instructions[i].raw);
  }
  edit.sequence = module.computations[1].sequence;
  return edit;
}

TEST(WhatIsNotEditedIsCopied) {
  const auto module = Parsed(Sample());
  EXPECT_TRUE(EmitModule(*module, {}) == module->bytes);
  EXPECT_TRUE(EmitModule(*module, {MainAsItIs(*module)}) == module->bytes);
  for (const Instruction& instruction : module->instructions) {
    EXPECT_TRUE(EmitInstruction(instruction, AsItIs(*module, instruction)) == instruction.raw);
  }
}

// The fusion stands third, after f's two instructions and main's parameter; sine gets a control predecessor, which no
// field said before.
TEST(AnEditedInstructionKeepsItsOtherFields) {
  const auto module = Parsed(Sample());
  const Instruction &p = module->instructions[2], &fusion = module->instructions[3], &sine = module->instructions[4];
  ComputationEdit main = MainAsItIs(*module);
  InstructionEdit renamed = AsItIs(*module, fusion), follows = AsItIs(*module, sine);
  renamed.name = "fusion.remat";
  follows.operand_ids = {p.id};
  follows.control_predecessor_ids = {fusion.id};
  main.instructions = {std::string(p.raw), EmitInstruction(fusion, renamed), EmitInstruction(sine, follows)};
  const auto after = Parsed(EmitModule(*module, {main}));
  EXPECT_EQ(after->by_id(fusion.id).name, "fusion.remat");
  EXPECT_TRUE(after->by_id(fusion.id).raw.find("from the future") != std::string_view::npos);
  EXPECT_TRUE(after->InstructionIds(after->by_id(fusion.id).operands) == Ids{p.id});
  EXPECT_TRUE(after->InstructionIds(after->by_id(sine.id).operands) == Ids{p.id});
  EXPECT_TRUE(after->InstructionIds(after->by_id(sine.id).control_predecessors) == Ids{fusion.id});
  follows.control_predecessor_ids.clear();   // the field is gone again
  EXPECT_TRUE(EmitInstruction(sine, follows).size() < main.instructions[2].size());
}

TEST(SequencesAreReplacedOrLeftOut) {
  const auto module = Parsed(Sample("call", /*is_scheduled=*/true));
  EXPECT_EQ(module->computations[0].sequence.size(), 2u);
  ComputationEdit f;
  f.computation = 0;
  for (const int32_t i : module->computations[0].instructions) {
    f.instructions.emplace_back(module->instructions[i].raw);
  }
  EXPECT_TRUE(EmitModule(*module, {f}) == Sample("call", /*is_scheduled=*/false));
  f.sequence = module->computations[0].sequence;
  EXPECT_TRUE(EmitModule(*module, {f}) == module->bytes);
}

// f.clone stands before main, which calls it in place of f, and comes last in the schedule.
TEST(AClonedComputationStandsBeforeItsCaller) {
  const auto module = Parsed(Sample("call", /*is_scheduled=*/true));
  const int64_t first = int64_t{7} << 32;
  ComputationEdit clone;
  clone.computation = 0;
  clone.is_clone = true;
  clone.new_id = 7;
  clone.new_name = "f.clone";
  clone.new_root_id = first + 1;
  clone.insert_before = 1;
  clone.instructions = {EmitInstruction(module->instructions[0], {first, "parameter.clone", {}, {}, {}}),
                        EmitInstruction(module->instructions[1], {first + 1, "negate.clone", {first}, {}, {}})};
  clone.sequence = {first, first + 1};
  ComputationEdit main = MainAsItIs(*module);
  InstructionEdit call = AsItIs(*module, module->instructions[3]);
  call.called_computation_ids = {7};
  main.instructions[1] = EmitInstruction(module->instructions[3], call);
  const auto after = Parsed(EmitModule(*module, {main, clone}));
  EXPECT_EQ(after->computations.size(), 3u);
  EXPECT_EQ(after->computations[1].name, "f.clone");
  EXPECT_EQ(after->computations[1].root_id, first + 1);
  EXPECT_TRUE((after->computations[1].sequence == Ids{first, first + 1}));
  EXPECT_EQ(after->entry, 2);
  EXPECT_TRUE(after->ComputationIds(after->by_id(module->instructions[3].id).called) == Ids{7});
  EXPECT_TRUE(after->computations[0].raw == module->computations[0].raw);
}

}  // namespace
}  // namespace coopjax::hlo
