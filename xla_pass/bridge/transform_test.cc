#include "bridge/transform.h"

#include <memory>
#include <string>
#include <vector>

#include "testing/expect.h"
#include "testing/hlo_proto_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloProtoBuilder;
using testing::Parsed;
using testing::TupleShape;

// The transformed module; nullptr, and the reason in `error`, when there is none.
std::unique_ptr<hlo::Module> Applied(const HloProtoBuilder& builder, const std::vector<int64_t>& ops,
                                     const Schedule& schedule, std::string* error) {
  const TransformResult result = ApplySchedule(*Parsed(builder.Build()), ops, schedule);
  *error = result.error;
  return result.error.empty() ? Parsed(result.bytes) : nullptr;
}

// The entry's schedule in words: "add.3(p.1 negate.2) ...", parameters left out.
std::string Text(const hlo::Module& module) {
  std::string text;
  for (const int64_t id : module.entry_computation().sequence) {
    const hlo::Instruction& instruction = module.by_id(id);
    if (instruction.opcode == "parameter") continue;
    text.append(text.empty() ? "" : " ").append(instruction.name).append("(");
    for (size_t k = 0; k < instruction.operands.size(); ++k) {
      text.append(k == 0 ? "" : " ").append(module.instructions[instruction.operands[k]].name);
    }
    text += ")";
  }
  return text;
}

std::string AppliedText(const HloProtoBuilder& builder, const std::vector<int64_t>& ops, const Schedule& schedule) {
  std::string error;
  const auto module = Applied(builder, ops, schedule, &error);
  return module == nullptr ? "error: " + error : Text(*module);
}

// parameter.1 -> negate.2 -> exp.3, add.4(negate, exp), multiply.5(negate, add)
struct Chain : HloProtoBuilder {
  std::vector<int64_t> ops;
  Chain() {
    Begin("main");
    const int64_t p = Parameter(0, F32({4}));
    ops.push_back(Add("negate", F32({4}), {p}));
    ops.push_back(Add("exp", F32({4}), {ops[0]}));
    ops.push_back(Add("add", F32({4}), {ops[0], ops[1]}));
    ops.push_back(Add("multiply", F32({4}), {ops[0], ops[2]}));
  }
};

TEST(TheGivenOrderChangesNothing) {
  const Chain chain;
  EXPECT_TRUE(ApplySchedule(*Parsed(chain.Build()), chain.ops, {0, 1, 2, 3}).bytes == chain.Build());
}

// callee: negate, exp, add of both; main: the same with a call of it.
TEST(SeveralComputationsAtOnce) {
  HloProtoBuilder builder;
  const auto add_ops = [&](int64_t p) {
    const int64_t negate = builder.Add("negate", F32({4}), {p}), exp = builder.Add("exp", F32({4}), {p});
    return std::vector<int64_t>{negate, exp, builder.Add("add", F32({4}), {negate, exp})};
  };
  const int64_t callee = builder.Begin("callee");
  const std::vector<int64_t> inner = add_ops(builder.Parameter(0, F32({4})));
  builder.Begin("main");
  const int64_t p = builder.Parameter(0, F32({4}));
  const std::vector<int64_t> outer = add_ops(builder.Add("call", F32({4}), {p}, {.called = {callee}}));
  const auto module = Parsed(builder.Build());
  std::vector<ComputationSchedule> schedules = {{0, inner, {1, 0, 2}},
                                                {1, {p + 1, outer[0], outer[1], outer[2]}, {0, 2, 1, 3}}};
  const auto ordered = Parsed(ApplySchedules(*module, schedules).bytes);
  EXPECT_TRUE(ordered->computations[0].sequence == (std::vector<int64_t>{inner[0] - 1, inner[1], inner[0], inner[2]}));
  EXPECT_TRUE(ordered->computations[1].sequence == (std::vector<int64_t>{p, p + 1, outer[1], outer[0], outer[2]}));
  // With repeats it is what comes of one after the other.
  schedules[0].schedule = {0, 1, 0, 2};
  schedules[1].schedule = {0, 1, 2, 1, 3};
  const TransformResult both = ApplySchedules(*module, schedules);
  EXPECT_EQ(both.num_clones, 2);
  const auto one = Parsed(ApplySchedule(*module, schedules[0].op_instruction_ids, schedules[0].schedule, 0).bytes);
  EXPECT_EQ(both.bytes, ApplySchedule(*one, schedules[1].op_instruction_ids, schedules[1].schedule).bytes);
  schedules[1].computation = 2;
  EXPECT_EQ(ApplySchedules(*module, schedules).error, "there is no such computation");
}

TEST(AUseReadsTheMostRecentProduction) {
  const Chain chain;
  EXPECT_EQ(AppliedText(chain, chain.ops, {0, 1, 0, 2, 0, 3}),
            "negate.2(parameter.1) exp.3(negate.2) negate.2.coop_remat1(parameter.1) "
            "add.4(negate.2.coop_remat1 exp.3) negate.2.coop_remat2(parameter.1) "
            "multiply.5(negate.2.coop_remat2 add.4)");
  EXPECT_EQ(ApplySchedule(*Parsed(chain.Build()), chain.ops, {0, 1, 0, 2, 0, 3}).num_clones, 2);
}

TEST(TheRootIsTheLastProduction) {
  const Chain chain;
  std::string error;
  const auto module = Applied(chain, chain.ops, {0, 1, 2, 3, 3}, &error);
  EXPECT_EQ(module->by_id(module->entry_computation().root_id).name, "multiply.5.coop_remat1");
}

TEST(CloneNamesAvoidThoseTaken) {
  const Chain chain;
  std::string error;
  const auto once = Applied(chain, chain.ops, {0, 1, 0, 2, 3}, &error);
  // A second round, in which the first round's clone is an op like any other.
  std::vector<int64_t> ops;
  for (const int64_t id : once->entry_computation().sequence) {
    if (once->by_id(id).opcode != "parameter") ops.push_back(id);
  }
  const TransformResult twice = ApplySchedule(*once, ops, {0, 1, 2, 3, 0, 2, 4});
  EXPECT_EQ(Text(*Parsed(twice.bytes)),
            "negate.2(parameter.1) exp.3(negate.2) negate.2.coop_remat1(parameter.1) "
            "add.4(negate.2.coop_remat1 exp.3) negate.2.coop_remat2(parameter.1) "
            "negate.2.coop_remat1.coop_remat1(parameter.1) multiply.5(negate.2.coop_remat1.coop_remat1 add.4)");
}

// op a; bitcast b of a; ops c and d read b; tuple of all.
struct Glued : HloProtoBuilder {
  std::vector<int64_t> ops;
  Glued() {
    Begin("main");
    const int64_t p = Parameter(0, F32({4}));
    const int64_t a = Add("negate", F32({4}), {p});
    const int64_t bitcast = Add("bitcast", F32({2, 2}), {a});
    const int64_t c = Add("exp", F32({2, 2}), {bitcast});
    const int64_t d = Add("add", F32({2, 2}), {bitcast, c});
    Add("tuple", TupleShape({F32({4}), F32({2, 2})}), {a, d});
    ops = {a, c, d};
  }
};

TEST(GlueFollowsItsOperandAndRunsAtItsFirstUse) {
  const Glued glued;
  EXPECT_EQ(AppliedText(glued, glued.ops, {0, 1, 2}),
            "negate.2(parameter.1) bitcast.3(negate.2) exp.4(bitcast.3) add.5(bitcast.3 exp.4) "
            "tuple.6(negate.2 add.5)");
  // The root's tuple reads the clone, too: it is the most recent production of a.
  EXPECT_EQ(AppliedText(glued, glued.ops, {0, 1, 0, 2}),
            "negate.2(parameter.1) bitcast.3(negate.2) exp.4(bitcast.3) negate.2.coop_remat1(parameter.1) "
            "bitcast.3.coop_remat1(negate.2.coop_remat1) add.5(bitcast.3.coop_remat1 exp.4) "
            "tuple.6(negate.2.coop_remat1 add.5)");
  // Nobody reads the first production through the bitcast: the original bitcast serves the clone.
  EXPECT_EQ(AppliedText(glued, glued.ops, {0, 0, 1, 2}),
            "negate.2(parameter.1) negate.2.coop_remat1(parameter.1) bitcast.3(negate.2.coop_remat1) "
            "exp.4(bitcast.3) add.5(bitcast.3 exp.4) tuple.6(negate.2.coop_remat1 add.5)");
}

TEST(GlueIsMadeOncePerCombinationOfProductions) {
  // t = (a, b); get-tuple-element 0 of t read by c and d; b recomputed in between: new tuple, new
  // element. c and d read before, e after.
  HloProtoBuilder builder;
  builder.Begin("main");
  const int64_t p = builder.Parameter(0, F32({4}));
  const int64_t a = builder.Add("negate", F32({4}), {p}), b = builder.Add("exp", F32({4}), {p});
  const int64_t t = builder.Add("tuple", TupleShape({F32({4}), F32({4})}), {a, b});
  const int64_t barrier = builder.Add("opt-barrier", TupleShape({F32({4}), F32({4})}), {t});
  const int64_t x = builder.Element(F32({4}), barrier, 0);
  const int64_t c = builder.Add("sine", F32({4}), {x}), d = builder.Add("cosine", F32({4}), {x});
  const int64_t e = builder.Add("add", F32({4}), {x, c});
  builder.Add("add", F32({4}), {d, e});
  const int64_t root = (int64_t{1} << 32) + 9;
  EXPECT_EQ(AppliedText(builder, {a, b, c, d, e, root}, {0, 1, 2, 3, 1, 4, 5}),
            "negate.2(parameter.1) exp.3(parameter.1) tuple.4(negate.2 exp.3) opt-barrier.5(tuple.4) "
            "get-tuple-element.6(opt-barrier.5) sine.7(get-tuple-element.6) cosine.8(get-tuple-element.6) "
            "exp.3.coop_remat1(parameter.1) tuple.4.coop_remat1(negate.2 exp.3.coop_remat1) "
            "opt-barrier.5.coop_remat1(tuple.4.coop_remat1) "
            "get-tuple-element.6.coop_remat1(opt-barrier.5.coop_remat1) "
            "add.9(get-tuple-element.6.coop_remat1 sine.7) add.10(cosine.8 add.9)");
}

TEST(DeadGlueRunsAsSoonAsItCan) {
  HloProtoBuilder builder;
  builder.Begin("main");
  const int64_t p = builder.Parameter(0, F32({4}));
  const int64_t a = builder.Add("negate", F32({4}), {p});
  const int64_t dead = builder.Add("bitcast", F32({2, 2}), {a});
  builder.Add("bitcast", F32({4}), {dead});
  const int64_t b = builder.Add("exp", F32({4}), {a}), c = builder.Add("exp", F32({4}), {b});
  EXPECT_EQ(AppliedText(builder, {a, b, c}, {0, 1, 2}),
            "negate.2(parameter.1) bitcast.3(negate.2) bitcast.4(bitcast.3) exp.5(negate.2) exp.6(exp.5)");
}

TEST(ACloneOfAFusionBringsItsOwnComputations) {
  HloProtoBuilder builder;
  const int64_t reducer = builder.Begin("sum");  // scheduled, as reducers are
  const int64_t left = builder.Parameter(0, F32({})), right = builder.Parameter(1, F32({}));
  builder.Add("add", F32({}), {left, right});
  const int64_t fused = builder.Begin("fused", /*is_scheduled=*/false);
  const int64_t inner = builder.Parameter(0, F32({4}));
  builder.Add("reduce", F32({}), {inner, inner}, {.called = {reducer}});
  builder.Begin("main");
  const int64_t p = builder.Parameter(0, F32({4}));
  const int64_t a = builder.Add("fusion", F32({}), {p}, {.called = {fused}});
  const int64_t b = builder.Add("exp", F32({}), {a}), c = builder.Add("add", F32({}), {a, b});
  std::string error;
  const auto module = Applied(builder, {a, b, c}, {0, 1, 0, 2}, &error);
  EXPECT_EQ(error, "");
  EXPECT_EQ(module->computations.size(), 5u);
  const hlo::Computation &new_sum = module->computations[2], &new_fused = module->computations[3];
  EXPECT_EQ(new_sum.name, "sum.coop_remat1");
  EXPECT_EQ(new_fused.name, "fused.coop_remat1");
  EXPECT_EQ(new_sum.sequence.size(), 3u);
  EXPECT_EQ(new_fused.sequence.size(), 0u);
  const hlo::Instruction& new_reduce = module->by_id(new_fused.root_id);
  EXPECT_EQ(new_reduce.name, "reduce.5.coop_remat1");
  EXPECT_EQ(module->computations[new_reduce.called[0]].id, new_sum.id);
  EXPECT_EQ(new_reduce.id >> 32, new_fused.id);
  EXPECT_EQ(Text(*module),
            "fusion.7(parameter.6) exp.8(fusion.7) fusion.7.coop_remat1(parameter.6) "
            "add.9(fusion.7.coop_remat1 exp.8)");
}

TEST(ControlPredecessorsStayWithTheOriginal) {
  HloProtoBuilder builder;
  builder.Begin("main");
  const int64_t p = builder.Parameter(0, F32({4}));
  const int64_t a = builder.Add("negate", F32({4}), {p});
  const int64_t glue = builder.Add("bitcast", F32({4}), {a});
  const int64_t b = builder.Add("exp", F32({4}), {p}, {.control = {glue}});
  const int64_t c = builder.Add("add", F32({4}), {b, p});
  std::string error;
  const auto module = Applied(builder, {a, b, c}, {0, 1, 1, 2}, &error);
  // The bitcast has no user, yet it must precede b.
  EXPECT_EQ(Text(*module),
            "negate.2(parameter.1) bitcast.3(negate.2) exp.4(parameter.1) exp.4.coop_remat1(parameter.1) "
            "add.5(exp.4.coop_remat1 parameter.1)");
  EXPECT_EQ(module->by_id(b).control_predecessors.size(), 1u);
  EXPECT_EQ(module->by_id(module->entry_computation().sequence[4]).control_predecessors.size(), 0u);
  EXPECT_EQ(AppliedText(builder, {a, b, c}, {1, 0, 2}),
            "error: the schedule has nothing before that produces 'negate.2', which must precede 'exp.4'");
}

TEST(TheSequenceIsThatOfTheModuleThatComes) {
  // Two branches, exp and sine of the negate; the second is to run first.
  HloProtoBuilder builder;
  builder.Begin("main");
  const int64_t a = builder.Add("negate", F32({4}), {builder.Parameter(0, F32({4}))});
  const int64_t b = builder.Add("exp", F32({4}), {a}), flat = builder.Add("bitcast", F32({2, 2}), {a});
  const int64_t c = builder.Add("sine", F32({2, 2}), {flat}), d = builder.Add("add", F32({4}), {b, c});
  const auto module = Parsed(builder.Build());
  const std::vector<int64_t> ops = {a, b, c, d};
  const auto ordered = Parsed(ApplySchedule(*module, ops, {0, 2, 1, 3}).bytes);
  EXPECT_TRUE(SequenceOf(*module, ops, {0, 2, 1, 3}) == (std::vector<int32_t>{0, 1, 3, 4, 2, 5}));
  std::vector<int64_t> ids;
  for (const int32_t i : SequenceOf(*module, ops, {0, 2, 1, 3})) ids.push_back(module->instructions[i].id);
  EXPECT_TRUE(ordered->entry_computation().sequence == ids);
  EXPECT_TRUE(SequenceOf(*module, ops, {1, 0, 2, 3}).empty());
}

TEST(SchedulesThatCannotBeCarriedOut) {
  const Chain chain;
  EXPECT_EQ(AppliedText(chain, chain.ops, {0, 1, 2}), "error: the schedule lacks op 3");
  EXPECT_EQ(AppliedText(chain, chain.ops, {0, 1, 2, 3, 4}), "error: the schedule names op 4, which does not exist");
  EXPECT_EQ(AppliedText(chain, chain.ops, {0, 1, 2, 3, -1}), "error: the schedule names op -1, which does not exist");
  EXPECT_EQ(AppliedText(chain, chain.ops, {1, 0, 2, 3}),
            "error: the schedule has nothing before that produces 'negate.2', which 'exp.3' reads");
  EXPECT_EQ(AppliedText(chain, {chain.ops[0], chain.ops[0]}, {0, 1}), "error: 'negate.2' is two ops");
  EXPECT_EQ(AppliedText(chain, {17}, {0}), "error: op 0 is not an instruction of 'main'");
}

}  // namespace
}  // namespace coopjax
