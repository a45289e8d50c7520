#include "verify/verify.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bridge/transform.h"
#include "hlo/emit.h"
#include "testing/expect.h"
#include "testing/hlo_proto_builder.h"

namespace coopjax::verify {
namespace {

std::string VerifyBytes(const hlo::Module& before, const std::string& after_bytes) {
  std::string error;
  const auto after = hlo::ParseModule(after_bytes, &error);
  return after == nullptr ? error : VerifyTransform(before, *after);
}

using testing::F32;
using testing::HloProtoBuilder;
using testing::Parsed;
using testing::TupleShape;

// main(p, x): p is donated to the output u = p - s, where s = sum-fusion(x, p) and e = exp(x);
// outputs (u, add(e, s)).
struct Step : HloProtoBuilder {
  int64_t p, x, e, s, u, out;
  std::vector<int64_t> ops;
  Step() {
    const int64_t reducer = Begin("sum");
    const int64_t left = Parameter(0, F32({})), right = Parameter(1, F32({}));
    Add("add", F32({}), {left, right});
    const int64_t fused = Begin("fused", /*is_scheduled=*/false);
    const int64_t a = Parameter(0, F32({4})), b = Parameter(1, F32({4}));
    Add("reduce", F32({4}), {a, b}, {.called = {reducer}});
    Begin("main");
    p = Parameter(0, F32({4}));
    x = Parameter(1, F32({4}));
    e = Add("exponential", F32({4}), {x});
    s = Add("fusion", F32({4}), {x, p}, {.called = {fused}});
    u = Add("subtract", F32({4}), {p, s});
    out = Add("add", F32({4}), {e, s});
    Add("tuple", TupleShape({F32({4}), F32({4})}), {u, out});
    Alias({0}, 0);
    ops = {e, s, u, out};
  }
};

// The verdict on the step after `schedule` (of the ops e, s, u, out).
std::string Verdict(const Schedule& schedule) {
  const Step step;
  const auto before = Parsed(step.Build());
  const TransformResult result = ApplySchedule(*before, step.ops, schedule);
  EXPECT_EQ(result.error, "");
  return VerifyBytes(*before, result.bytes);
}

TEST(WhatTheTransformationMakesIsAccepted) {
  EXPECT_EQ(Verdict({0, 1, 2, 3}), "");
  EXPECT_EQ(Verdict({1, 2, 0, 3}), "");
  EXPECT_EQ(Verdict({0, 0, 1, 1, 1, 0, 2, 0, 3}), "");
}

TEST(ACloneThatReadsAnOverwrittenParameterIsRefused) {
  // s reads p, u overwrites it.
  EXPECT_EQ(Verdict({0, 1, 1, 2, 3}), "");
  EXPECT_EQ(Verdict({0, 1, 2, 1, 3}),
            "'fusion.10.coop_remat1' reads 'parameter.7' after 'subtract.11' has overwritten its buffer");
}

// An edit of the entry computation: takes and returns what EmitHloModule takes.
using Edit = std::function<void(const hlo::Module&, std::vector<hlo::InstructionEdit>&, hlo::ComputationEdit&)>;

// The verdict on a module whose entry computation was changed by hand. `schedule` is applied first.
std::string Mutated(const Schedule& schedule, const Edit& edit) {
  const Step step;
  const auto before = Parsed(step.Build());
  const auto module = Parsed(ApplySchedule(*before, step.ops, schedule).bytes);
  hlo::ComputationEdit computation;
  computation.computation = module->entry;
  computation.sequence = module->entry_computation().sequence;
  std::vector<hlo::InstructionEdit> edits;
  for (const int32_t i : module->entry_computation().instructions) {
    const hlo::Instruction& old = module->instructions[i];
    edits.push_back(hlo::AsItIs(*module, old));
  }
  edit(*module, edits, computation);
  if (computation.instructions.empty()) {
    for (size_t k = 0; k < edits.size(); ++k) {
      const hlo::Instruction& old = module->instructions[module->entry_computation().instructions[k]];
      computation.instructions.push_back(hlo::EmitInstruction(old, edits[k]));
    }
  }
  return VerifyBytes(*before, hlo::EmitModule(*module, {computation}));
}

hlo::InstructionEdit& Named(std::vector<hlo::InstructionEdit>& edits, const std::string& name) {
  return *std::ranges::find_if(edits, [&](const hlo::InstructionEdit& edit) { return edit.name == name; });
}

TEST(AnUntouchedModulePasses) {
  EXPECT_EQ(Mutated({0, 1, 2, 3}, [](auto&, auto&, auto&) {}), "");
}

TEST(SwappedOperandsAreRefused) {
  EXPECT_EQ(Mutated({0, 1, 2, 3},
                    [](auto&, auto& edits, auto&) { std::ranges::reverse(Named(edits, "subtract.11").operand_ids); }),
            "operand 0 of 'subtract.11' is not what 'subtract.11' reads");
  EXPECT_EQ(
      Mutated({0, 1, 1, 2, 3}, [](auto&, auto& edits,
                                  auto&) { std::ranges::reverse(Named(edits, "fusion.10.coop_remat1").operand_ids); }),
      "operand 0 of 'fusion.10.coop_remat1' is not what 'fusion.10' reads");
  EXPECT_EQ(
      Mutated({0, 1, 2, 3}, [](auto&, auto& edits, auto&) { Named(edits, "subtract.11").operand_ids.pop_back(); }),
      "'subtract.11' has other operands");
}

TEST(ChangedFieldsAreRefused) {
  EXPECT_EQ(Mutated({0, 1, 2, 3},
                    [](auto& module, auto& edits, auto& computation) {
                      for (size_t k = 0; k < edits.size(); ++k) {
                        const hlo::Instruction& old = module.instructions[module.entry_computation().instructions[k]];
                        computation.instructions.push_back(hlo::EmitInstruction(old, edits[k]));
                      }
                      hlo::AppendVarintField(89, 1, &computation.instructions[2]);
                    }),
            "'exponential.9' differs from 'exponential.9'");
}

TEST(ACloneMustBeOfWhatItSays) {
  const auto renamed = [](const Schedule& schedule, const std::string& name) {
    return Mutated(schedule, [&](auto&, auto& edits, auto&) { Named(edits, "exponential.9.coop_remat1").name = name; });
  };
  EXPECT_EQ(renamed({0, 0, 1, 2, 3}, "exponential.9.coop_remat77"), "");
  EXPECT_EQ(renamed({0, 0, 1, 2, 3}, "fusion.10.coop_remat7"), "'fusion.10.coop_remat7' differs from 'fusion.10'");
  EXPECT_EQ(renamed({0, 0, 1, 2, 3}, "nameless"), "'nameless' is no copy of any instruction");
  EXPECT_EQ(renamed({0, 0, 1, 2, 3}, "exponential.9.coop_rematX"),
            "'exponential.9.coop_rematX' is no copy of any instruction");
  EXPECT_EQ(renamed({0, 0, 0, 1, 2, 3}, "exponential.9.coop_remat2"), "the name 'exponential.9.coop_remat2' is taken");
}

TEST(ACloneMustHaveAComputationOfItsOwn) {
  EXPECT_EQ(Mutated({0, 1, 1, 2, 3},
                    [](auto&, auto& edits, auto&) {
                      Named(edits, "fusion.10.coop_remat1").called_computation_ids =
                          Named(edits, "fusion.10").called_computation_ids;
                    }),
            "computation 'fused' has the wrong number of callers");
}

TEST(AMissingInstructionIsRefused) {
  EXPECT_EQ(Mutated({0, 1, 2, 3}, [](auto&, auto&, auto& computation) { computation.sequence.pop_back(); }),
            "the schedule of 'main' lacks 'tuple.13'");
  EXPECT_EQ(Mutated({0, 1, 2, 3},
                    [](auto& module, auto& edits, auto& computation) {
                      for (size_t k = 0; k < edits.size();
                           ++k) {  // x's reader aside, drop the exponential and let the output read x
                        const hlo::Instruction& old = module.instructions[module.entry_computation().instructions[k]];
                        if (old.name == "add.12") edits[k].operand_ids[0] = edits[k].operand_ids[1];
                        if (old.name != "exponential.9")
                          computation.instructions.push_back(hlo::EmitInstruction(old, edits[k]));
                      }
                      std::erase(computation.sequence, Named(edits, "exponential.9").id);
                    }),
            "operand 0 of 'add.12' is not what 'add.12' reads");
}

TEST(IdsOccurOnce) {
  EXPECT_EQ(Mutated({0, 0, 1, 2, 3},
                    [](auto&, auto& edits, auto&) {
                      Named(edits, "exponential.9.coop_remat1").id = Named(edits, "exponential.9").id;
                    }),
            "instruction id " + std::to_string(Step().e) + " occurs twice");
}

TEST(TheRootAndTheControlPredecessorsStay) {
  EXPECT_EQ(Mutated({0, 1, 2, 3},
                    [](auto&, auto& edits, auto& computation) { computation.new_root_id = Named(edits, "add.12").id; }),
            "the root changed");
  EXPECT_EQ(Mutated({0, 1, 2, 3},
                    [](auto&, auto& edits, auto&) {
                      Named(edits, "subtract.11").control_predecessor_ids = {Named(edits, "exponential.9").id};
                    }),
            "'subtract.11' changed");
}

TEST(NothingElseInTheModuleChanges) {
  const Step step;
  const auto before = Parsed(step.Build());
  Step renamed;
  renamed.AppendModuleFields("\xa0\x06\x01");  // field 100
  EXPECT_EQ(VerifyBytes(*before, renamed.Build()), "something besides computations and schedule changed");
  std::string changed = step.Build();
  changed.replace(changed.find("reduce"), 6, "remuce");
  EXPECT_EQ(VerifyBytes(*before, changed), "computation 'fused' changed");
}

// One op of `opcode`, made twice.
std::string Twice(const std::string& opcode, const std::string& fields = "") {
  HloProtoBuilder builder;
  builder.Begin("main");
  const int64_t p = builder.Parameter(0, F32({4}));
  const int64_t op = builder.Add(opcode, F32({4}), {p, p, p}, {.fields = fields});
  const int64_t end = builder.Add("negate", F32({4}), {op});
  const auto before = Parsed(builder.Build());
  return VerifyBytes(*before, ApplySchedule(*before, {op, end}, {0, 0, 1}).bytes);
}

TEST(WhatMustNotRunTwice) {
  for (const std::string opcode : {"select", "dot", "copy", "dynamic-slice", "reduce-window", "sort", "clamp"}) {
    EXPECT_EQ(Twice(opcode), "");
  }
  for (const std::string opcode : {"dynamic-update-slice", "scatter", "custom-call", "rng", "rng-bit-generator",
                                   "rng-get-and-update-state", "all-reduce", "all-gather", "infeed", "copy-start",
                                   "async-start", "while", "conditional", "call", "an-opcode-of-the-future"}) {
    EXPECT_TRUE(Twice(opcode).ends_with("must not run twice"));
  }
  std::string alias;
  hlo::AppendBytesField(74, "", &alias);  // output_operand_aliasing
  EXPECT_TRUE(Twice("fusion", alias).ends_with("must not run twice"));
}

// A fusion whose computation is root(inner(p)), made twice.
std::string FusionTwice(const std::string& inner, const std::string& root) {
  HloProtoBuilder builder;
  const int64_t fused = builder.Begin("fused", /*is_scheduled=*/false);
  const int64_t q = builder.Parameter(0, F32({4}));
  builder.Add(root, F32({4}), {builder.Add(inner, F32({4}), {q, q, q})});
  builder.Begin("main");
  const int64_t p = builder.Parameter(0, F32({4}));
  const int64_t op = builder.Add("fusion", F32({4}), {p}, {.called = {fused}});
  const int64_t end = builder.Add("negate", F32({4}), {op});
  const auto before = Parsed(builder.Build());
  return VerifyBytes(*before, ApplySchedule(*before, {op, end}, {0, 0, 1}).bytes);
}

TEST(FusionsThatMustNotRunTwice) {
  EXPECT_EQ(FusionTwice("select", "negate"), "");
  EXPECT_EQ(FusionTwice("dynamic-update-slice", "negate"), "");  // the update is the fusion's own affair
  EXPECT_TRUE(FusionTwice("dynamic-update-slice", "bitcast").ends_with("must not run twice"));
  EXPECT_TRUE(FusionTwice("scatter", "tuple").ends_with("must not run twice"));
  EXPECT_TRUE(FusionTwice("custom-call", "negate").ends_with("must not run twice"));
  EXPECT_TRUE(FusionTwice("rng", "negate").ends_with("must not run twice"));
}

TEST(EffectsKeepTheirOrder) {
  for (const std::string opcode : {"all-reduce", "rng-get-and-update-state", "negate", "rng-bit-generator"}) {
    HloProtoBuilder builder;
    builder.Begin("main");
    const int64_t p = builder.Parameter(0, F32({4}));
    const int64_t a = builder.Add(opcode, F32({4}), {p}), b = builder.Add(opcode, F32({4}), {p});
    builder.Add("tuple", TupleShape({F32({4}), F32({4})}), {a, b});
    const auto before = Parsed(builder.Build());
    const bool has_effects = opcode == "all-reduce" || opcode == "rng-get-and-update-state";
    EXPECT_EQ(VerifyBytes(*before, ApplySchedule(*before, {a, b}, {1, 0}).bytes),
              has_effects ? "instructions with effects changed their order" : "");
  }
}

TEST(ClonesPrecedeControlSuccessors) {
  HloProtoBuilder builder;
  builder.Begin("main");
  const int64_t p = builder.Parameter(0, F32({4}));
  const int64_t a = builder.Add("negate", F32({4}), {p});
  const int64_t b = builder.Add("exponential", F32({4}), {p}, {.control = {a}});
  const int64_t c = builder.Add("add", F32({4}), {a, b});
  const auto before = Parsed(builder.Build());
  const auto verdict = [&](const Schedule& schedule) {
    return VerifyBytes(*before, ApplySchedule(*before, {a, b, c}, schedule).bytes);
  };
  EXPECT_EQ(verdict({0, 0, 1, 1, 2}), "");
  EXPECT_EQ(verdict({0, 1, 0, 2}), "'negate.2.coop_remat1' runs after a control successor of its original");
}

TEST(GarbageIsRefused) {
  const Step step;
  const auto before = Parsed(step.Build());
  const std::string after = ApplySchedule(*before, step.ops, {0, 1, 1, 0, 2, 0, 3}).bytes;
  EXPECT_EQ(VerifyBytes(*before, after), "");
  for (size_t size = 0; size < after.size(); ++size) {
    EXPECT_TRUE(!VerifyBytes(*before, after.substr(0, size)).empty());
  }
  // Only flips that leave a module of the same meaning may pass: in the number of a clone, or from an
  // operand to its clone.
  int num_accepted = 0;
  for (size_t at = 0; at < after.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = after;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      num_accepted += VerifyBytes(*before, flipped).empty();
    }
  }
  EXPECT_TRUE(num_accepted < 50);
}

// e, in place over a, comes before the barrier's reader: what only the barrier keeps must have read a by then.
TEST(WhatOnlyABarrierKeepsReadsInTime) {
  HloProtoBuilder builder;
  builder.Begin("main");
  const int64_t p = builder.Parameter(0, F32({4})), at = builder.Parameter(1, "\x10\x04");
  const int64_t a = builder.Add("negate", F32({4}), {p}), x = builder.Add("sine", F32({4}), {p});
  const int64_t dead = builder.Add("reverse", F32({4}), {a});
  const std::string pair = TupleShape({F32({4}), F32({4})});
  const int64_t barrier = builder.Add("opt-barrier", pair, {builder.Add("tuple", pair, {x, dead})});
  const int64_t y = builder.Add("cosine", F32({4}), {builder.Element(F32({4}), barrier, 0)});
  const int64_t e = builder.Add("dynamic-update-slice", F32({4}), {a, p, at});
  const int64_t root = builder.Add("add", F32({4}), {y, e});
  const auto before = Parsed(builder.Build());
  // Without y's waiting for a: the verifier's is the last word.
  EXPECT_EQ(VerifyBytes(*before, ApplySchedule(*before, {a, x, y, e, root}, {0, 3, 1, 2, 4}).bytes), "");
  EXPECT_EQ(VerifyBytes(*before, ApplySchedule(*before, {a, x, y, e, root}, {0, 1, 1, 2, 3, 4}).bytes), "");
}

}  // namespace
}  // namespace coopjax::verify
