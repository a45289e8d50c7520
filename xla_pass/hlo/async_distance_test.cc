#include "hlo/async_distance.h"

#include <string>
#include <utility>
#include <vector>

#include "hlo/emit.h"
#include "testing/expect.h"
#include "testing/hlo_proto_builder.h"

namespace coopjax::hlo {
namespace {

using testing::F32;
using testing::HloProtoBuilder;
using testing::TupleShape;

// A copy starts, a and b hide it, it is done, c follows. `order` names them: s, a, b, d, c.
std::string Module(const std::string& order) {
  HloProtoBuilder builder;
  builder.Begin("main");
  const int64_t p = builder.Parameter(0, F32({4}));
  const int64_t start = builder.Add("copy-start", TupleShape({F32({4}), F32({4}), F32({})}), {p});
  const int64_t update = builder.Add("async-update", TupleShape({F32({4}), F32({4}), F32({})}), {start});
  const int64_t a = builder.Add("negate", F32({4}), {p}), b = builder.Add("sine", F32({4}), {p});
  const int64_t done = builder.Add("copy-done", F32({4}), {update});
  const int64_t c = builder.Add("cosine", F32({4}), {p});
  const int64_t root = builder.Add("tuple", TupleShape({F32({4}), F32({4}), F32({4}), F32({4})}), {a, b, c, done});
  std::string error;
  const auto module = ParseModule(builder.Build(), &error);
  EXPECT_EQ(error, "");
  ComputationEdit edit;
  edit.computation = 0;
  for (const Instruction& instruction : module->instructions) edit.instructions.emplace_back(instruction.raw);
  edit.sequence = {p};
  for (const char name : order) {
    if (name == 's') edit.sequence.insert(edit.sequence.end(), {start, update});
    for (const auto& [letter, id] : {std::pair{'a', a}, {'b', b}, {'d', done}, {'c', c}}) {
      if (name == letter) edit.sequence.push_back(id);
    }
  }
  edit.sequence.push_back(root);
  return EmitModule(*module, {edit});
}

std::string Fault(const std::string& before, const std::string& after) {
  std::string error;
  const auto first = ParseModule(Module(before), &error), second = ParseModule(Module(after), &error);
  EXPECT_EQ(error, "");
  return CheckAsyncDistance(*first, *second);
}

TEST(WhatIsBetweenStaysBetween) {
  EXPECT_EQ(Fault("sabdc", "sabdc"), "");
  EXPECT_EQ(Fault("sabdc", "sbadc"), "");
  EXPECT_EQ(Fault("sabdc", "csabd"), "");
  EXPECT_EQ(Fault("sabdc", "sabcd"), "");  // more may be hidden behind it
  EXPECT_EQ(Fault("sabdc", "asbdc"), "'negate.4' has left 'copy-start.2' and 'copy-done.6'");
  EXPECT_EQ(Fault("sabdc", "sadbc"), "'sine.5' has left 'copy-start.2' and 'copy-done.6'");
  EXPECT_EQ(Fault("asdbc", "asbdc"), "");
}

TEST(ADoneFindsItsStart) {
  std::string error;
  const auto module = ParseModule(Module("sabdc"), &error);
  for (const Instruction& instruction : module->instructions) {
    const Instruction* start = StartOf(*module, instruction);
    EXPECT_EQ(start == nullptr ? "" : start->name, instruction.opcode == "copy-done" ? "copy-start.2" : "");
  }
}

}  // namespace
}  // namespace coopjax::hlo
