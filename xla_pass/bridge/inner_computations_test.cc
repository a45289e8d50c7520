// What runs inside loops, conditionals and calls: read as a StepProgram, rewritten, verified.
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bridge/hlo_program.h"
#include "bridge/transform.h"
#include "hlo/emit.h"
#include "testing/expect.h"
#include "testing/hlo_proto_builder.h"
#include "verify/verify.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloProtoBuilder;
using testing::Parsed;
using testing::TupleShape;

int32_t IndexOf(const hlo::Module& module, int64_t id) { return module.computation_index.Find(id); }

StepProgram Read(const hlo::Module& module, int64_t computation_id) {
  std::string error;
  const auto analysis = AnalyzeHlo(module, &error);
  EXPECT_EQ(error, "");
  HloProgram result;
  EXPECT_EQ(BuildHloProgram(*analysis, {1e9, 1e9, 1e9, 1e-6}, &result, IndexOf(module, computation_id)), "");
  return result.program;
}

// A computation's schedule in words: "add.3(p.1 negate.2) ...", without sources and elements.
std::string Text(const hlo::Module& module, int64_t computation_id) {
  std::string text;
  for (const int64_t id : module.computations[IndexOf(module, computation_id)].sequence) {
    const hlo::Instruction& instruction = module.by_id(id);
    if (instruction.opcode == "parameter" || instruction.opcode == "get-tuple-element") continue;
    text.append(text.empty() ? "" : " ").append(instruction.name).append("(");
    for (size_t k = 0; k < instruction.operands.size(); ++k) {
      text.append(k == 0 ? "" : " ").append(module.instructions[instruction.operands[k]].name);
    }
    text += ")";
  }
  return text;
}

std::vector<int32_t> ToVector(std::span<const int32_t> row) { return {row.begin(), row.end()}; }

std::string TripCountField(int count) {
  std::string field;
  hlo::AppendBytesField(43, R"({"known_trip_count":{"n":")" + std::to_string(count) + R"("}})", &field);
  return field;
}

// while (x, w), five times, with x of 4 KB:
//   h = fusion(x, w); d = dot(h, w); e = exponential(h); x' = add(d, e); root (x', w).
struct Loop : HloProtoBuilder {
  int64_t fused, body, condition, entry;
  std::vector<int64_t> ops;
  Loop() {
    const std::string x_shape = F32({1024}), w_shape = F32({16}), state = TupleShape({x_shape, w_shape});
    fused = Begin("fused", /*is_scheduled=*/false);
    const int64_t q = Parameter(0, x_shape);
    Parameter(1, w_shape);
    Add("negate", x_shape, {q});
    body = Begin("body");
    const int64_t in = Parameter(0, state);
    const int64_t x = Element(x_shape, in, 0), w = Element(w_shape, in, 1);
    const int64_t h = Add("fusion", x_shape, {x, w}, {.called = {fused}});
    const int64_t d = Add("reverse", x_shape, {h}), e = Add("exponential", x_shape, {h});
    const int64_t next = Add("add", x_shape, {d, e});
    Add("tuple", state, {next, w});
    ops = {h, d, e, next};
    condition = Begin("condition");
    Add("is-finite", F32({}), {Element(x_shape, Parameter(0, state), 0)});
    entry = Begin("main");
    const int64_t p = Parameter(0, x_shape), v = Parameter(1, w_shape);
    const int64_t init = Add("tuple", state, {Add("reverse", x_shape, {p}), v});
    const int64_t loop = Add("while", state, {init}, {.called = {body, condition}, .fields = TripCountField(5)});
    Add("reverse", x_shape, {Element(x_shape, loop, 0)});
  }
};

TEST(ABodyKeepsItsStateInTheCallersBuffers) {
  const Loop loop;
  const StepProgram program = Read(*Parsed(loop.Build()), loop.body);
  // Values: the state's x and w, h, d, e, and the next x in the place of x.
  EXPECT_EQ(program.num_ops(), 4);
  EXPECT_TRUE(program.value_kind ==
              (std::vector<ValueKind>{ValueKind::kParameter, ValueKind::kParameter, ValueKind::kTemporary,
                                      ValueKind::kTemporary, ValueKind::kTemporary, ValueKind::kOutput}));
  EXPECT_TRUE(program.value_in_place_of == (std::vector<ValueId>{kNoValue, kNoValue, kNoValue, kNoValue, kNoValue, 0}));
  EXPECT_TRUE(ToVector(program.op_inputs[0]) == (std::vector<int32_t>{0, 1}));
  EXPECT_TRUE(program.op_can_recompute == (std::vector<uint8_t>{1, 1, 1, 0}));
  // 4 KB read and written in 8.192 us, a microsecond for the op, five times.
  EXPECT_TRUE(std::abs(program.op_cost_s[1] - 5 * (8.192e-6 + 1e-6)) < 1e-12);
}

TEST(TheCallerCountsTheInnerPeak) {
  const Loop loop;
  // d, and h, in whose place e comes; x and its successor have the loop's buffer.
  EXPECT_EQ(Read(*Parsed(loop.Build()), loop.entry).op_workspace_bytes[1], 2 * 4096);
}

TEST(OnlyWhatControlFlowRunsIsRead) {
  const Loop loop;
  const auto module = Parsed(loop.Build());
  std::string error;
  const auto analysis = AnalyzeHlo(*module, &error);
  HloProgram result;
  EXPECT_EQ(BuildHloProgram(*analysis, {}, &result, IndexOf(*module, loop.fused)),
            "the computation is not called by a loop, a conditional or a call");
}

// The module with a schedule of the body's ops.
TransformResult InBody(const Loop& loop, const Schedule& schedule) {
  const auto module = Parsed(loop.Build());
  return ApplySchedule(*module, loop.ops, schedule, IndexOf(*module, loop.body));
}

std::string Verdict(const Loop& loop, const std::string& after_bytes) {
  return verify::VerifyTransform(*Parsed(loop.Build()), *Parsed(after_bytes));
}

TEST(ABodyIsRewrittenAndNothingElse) {
  const Loop loop;
  const TransformResult result = InBody(loop, {0, 1, 0, 2, 3});
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(result.num_clones, 1);
  const auto before = Parsed(loop.Build()), after = Parsed(result.bytes);
  EXPECT_EQ(Text(*after, loop.body),
            "fusion.7(get-tuple-element.5 get-tuple-element.6) reverse.8(fusion.7) "
            "fusion.7.coop_remat1(get-tuple-element.5 get-tuple-element.6) exponential.9(fusion.7.coop_remat1) "
            "add.10(reverse.8 exponential.9) tuple.11(add.10 get-tuple-element.6)");
  EXPECT_EQ(Text(*after, loop.entry), Text(*before, loop.entry));
  // The clone's computation stands before its caller.
  EXPECT_EQ(after->computations[1].name, "fused.coop_remat1");
  EXPECT_EQ(after->computations[2].id, loop.body);
  EXPECT_EQ(Verdict(loop, result.bytes), "");
}

TEST(SeveralComputationsAreRewrittenOneAfterTheOther) {
  const Loop loop;
  const auto once = Parsed(InBody(loop, {0, 1, 0, 2, 3}).bytes);
  const hlo::Computation& entry = once->entry_computation();
  std::vector<int64_t> ops;
  for (const int64_t id : entry.sequence) {
    if (!hlo::IsGlue(once->by_id(id).info.op)) ops.push_back(id);
  }
  const TransformResult twice = ApplySchedule(*once, ops, {0, 0, 1, 2});
  EXPECT_EQ(twice.error, "");
  EXPECT_EQ(Verdict(loop, twice.bytes), "");
}

TEST(TheStateIsReadBeforeItIsOverwritten) {
  const Loop loop;
  EXPECT_EQ(Verdict(loop, InBody(loop, {0, 2, 1, 3}).bytes), "");
  // The clone of h reads x, in whose buffer add.10 has put the next iteration's.
  EXPECT_EQ(Verdict(loop, InBody(loop, {0, 1, 2, 3, 0}).bytes),
            "'fusion.7.coop_remat1' reads 'parameter.4' after 'add.10' has overwritten its buffer");
}

TEST(ABodyIsProvedLikeTheEntry) {
  const Loop loop;
  const auto before = Parsed(loop.Build()), after = Parsed(InBody(loop, {0, 1, 0, 2, 3}).bytes);
  const hlo::Computation& body = after->computations[IndexOf(*after, loop.body)];
  const auto edited = [&](const auto& edit) {
    hlo::ComputationEdit computation;
    computation.computation = IndexOf(*after, loop.body);
    computation.sequence = body.sequence;
    for (const int32_t i : body.instructions) {
      const hlo::Instruction& old = after->instructions[i];
      hlo::InstructionEdit fields = hlo::AsItIs(*after, old);
      edit(fields, computation);
      computation.instructions.push_back(hlo::EmitInstruction(old, fields));
    }
    std::string error;
    const auto changed = hlo::ParseModule(hlo::EmitModule(*after, {computation}), &error);
    return changed == nullptr ? error : verify::VerifyTransform(*before, *changed);
  };
  EXPECT_EQ(edited([](auto&, auto&) {}), "");
  EXPECT_EQ(edited([](hlo::InstructionEdit& fields, auto&) {
              if (fields.name == "add.10") fields.operand_ids[1] = fields.operand_ids[0];
            }),
            "operand 1 of 'add.10' is not what 'add.10' reads");
  EXPECT_EQ(edited([](hlo::InstructionEdit& fields, hlo::ComputationEdit& computation) {
              if (fields.name == "add.10") computation.new_root_id = fields.id;
            }),
            "the root changed");
  EXPECT_EQ(edited([](auto&, hlo::ComputationEdit& computation) { computation.sequence.clear(); }),
            "'body' has no schedule");
}

// A computation that a reduction applies, or that two calls share, stays as it is.
TEST(OtherComputationsDoNotChange) {
  for (const bool is_called : {false, true}) {
    for (const bool is_shared : {false, true}) {
      HloProtoBuilder b;
      const int64_t callee = b.Begin("callee");
      const int64_t x = b.Parameter(0, F32({})), y = b.Parameter(1, F32({}));
      const int64_t n = b.Add("negate", F32({}), {x}), sum = b.Add("add", F32({}), {n, y});
      b.Begin("main");
      const int64_t p = b.Parameter(0, F32({})), q = b.Parameter(1, F32({}));
      const int64_t first = b.Add(is_called ? "call" : "reduce", F32({}), {p, q}, {.called = {callee}});
      if (is_shared) b.Add("call", F32({}), {first, q}, {.called = {callee}});
      const auto before = Parsed(b.Build());
      const auto after = Parsed(ApplySchedule(*before, {n, sum}, {0, 0, 1}, IndexOf(*before, callee)).bytes);
      EXPECT_EQ(verify::VerifyTransform(*before, *after),
                is_called && !is_shared ? "" : "computation 'callee' changed");
    }
  }
}

// conditional(i, x, x) with branches negate(reverse(x)) and tanh(x).
TEST(ABranchGivesItsResultToTheCaller) {
  HloProtoBuilder b;
  const std::string array = F32({1024});
  const int64_t first = b.Begin("first");
  const int64_t r = b.Add("reverse", array, {b.Parameter(0, array)}), n = b.Add("reverse", array, {r});
  const int64_t second = b.Begin("second");
  b.Add("tanh", array, {b.Parameter(0, array)});
  const int64_t entry = b.Begin("main");
  const int64_t p = b.Parameter(0, array), index = b.Parameter(1, testing::ArrayShape(4, {}));
  const int64_t x = b.Add("reverse", array, {p});
  b.Add("reverse", array, {b.Add("conditional", array, {index, x, x}, {.called = {first, second}})});
  const auto module = Parsed(b.Build());
  const StepProgram program = Read(*module, first);
  EXPECT_TRUE(program.value_kind ==
              (std::vector<ValueKind>{ValueKind::kParameter, ValueKind::kTemporary, ValueKind::kOutput}));
  EXPECT_EQ(Read(*module, entry).op_workspace_bytes[1], 4096);
  const auto after = Parsed(ApplySchedule(*module, {r, n}, {0, 0, 1}, IndexOf(*module, first)).bytes);
  EXPECT_EQ(Text(*after, first),
            "reverse.2(parameter.1) reverse.2.coop_remat1(parameter.1) reverse.3(reverse.2.coop_remat1)");
  EXPECT_EQ(verify::VerifyTransform(*module, *after), "");
}

// for 3: for 7: x = reverse(reverse(x)).
TEST(InnerLoopsRunAsOftenAsBothSay) {
  HloProtoBuilder b;
  const std::string array = F32({1024});
  const int64_t inner = b.Begin("inner");
  b.Add("reverse", array, {b.Add("reverse", array, {b.Parameter(0, array)})});
  const int64_t inner_condition = b.Begin("inner_condition");
  b.Add("is-finite", F32({}), {b.Parameter(0, array)});
  const int64_t outer = b.Begin("outer");
  b.Add("while", array, {b.Parameter(0, array)}, {.called = {inner, inner_condition}, .fields = TripCountField(7)});
  const int64_t outer_condition = b.Begin("outer_condition");
  b.Add("is-finite", F32({}), {b.Parameter(0, array)});
  const int64_t entry = b.Begin("main");
  const int64_t x = b.Add("reverse", array, {b.Parameter(0, array)});
  b.Add("while", array, {x}, {.called = {outer, outer_condition}, .fields = TripCountField(3)});
  const auto module = Parsed(b.Build());
  const double once = 8.192e-6 + 1e-6;
  EXPECT_TRUE(std::abs(Read(*module, inner).op_cost_s[0] - 21 * once) < 1e-12);
  EXPECT_TRUE(Read(*module, outer).op_cost_s[0] > 3 * 7 * 2 * once);
  EXPECT_EQ(Read(*module, outer).op_workspace_bytes[0], 4096);
  EXPECT_EQ(Read(*module, entry).op_workspace_bytes[1], 4096);
}

}  // namespace
}  // namespace coopjax
