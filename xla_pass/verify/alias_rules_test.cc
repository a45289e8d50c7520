#include "verify/alias_rules.h"

#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax::verify {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

TEST(TuplesAndElementsForwardTheirOperands) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({4}));
  const int64_t q = b.Add("negate", F32({4}), {p});
  const int64_t tuple = b.Add("tuple", TupleOf({F32({4}), F32({4})}), {p, q});
  const int64_t element = b.Element(tuple, 1);
  const ShapeNodes nodes(b.Finish());
  const AliasRules rules(nodes);
  const ShapeNode top = nodes.first(b.index(tuple));
  EXPECT_EQ(rules.forwarded(nodes.first(b.index(q))), kNoNode);
  EXPECT_EQ(rules.forwarded(top), kNoNode);
  EXPECT_EQ(rules.forwarded(top + 1), nodes.first(b.index(p)));
  EXPECT_EQ(rules.forwarded(top + 2), nodes.first(b.index(q)));
  EXPECT_EQ(rules.forwarded(nodes.first(b.index(element))), top + 2);
}

// The fusion's root updates a slice of its second parameter, seen through a bitcast.
TEST(InPlaceOperandsAreSeenThroughFusions) {
  HloBuilder b;
  const int64_t fused = b.Begin("fused");
  const int64_t update = b.Parameter(0, F32({1}));
  const int64_t whole = b.Add("bitcast", F32({4}), {b.Parameter(1, F32({4}))});
  const int64_t slice = b.Add("dynamic-update-slice", F32({4}), {whole, update});
  b.EndEmbedded();
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({1})), q = b.Parameter(1, F32({4}));
  const int64_t fusion = b.LoopFusion(F32({4}), {p, q}, fused);
  const int64_t sum = b.Add("add", F32({4}), {fusion, q});
  const ShapeNodes nodes(b.Finish());
  const AliasRules rules(nodes);
  EXPECT_EQ(rules.InPlaceOperand(nodes.first(b.index(slice))), nodes.first(b.index(whole)));
  EXPECT_EQ(rules.InPlaceOperand(nodes.first(b.index(fusion))), nodes.first(b.index(q)));
  EXPECT_EQ(rules.InPlaceOperand(nodes.first(b.index(sum))), kNoNode);
}

TEST(OnlyUnknownOpcodesMayWriteTheirOperands) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({4}));
  const int64_t gathered = b.Add("all-gather", F32({4}), {p});
  const int64_t negated = b.Add("negate", F32({4}), {gathered});
  const int64_t unknown = b.Add("of-next-year", F32({4}), {negated});
  const ShapeNodes nodes(b.Finish());
  const AliasRules rules(nodes);
  EXPECT_TRUE(!rules.MayWriteOperands(b.index(gathered)));
  EXPECT_TRUE(!rules.MayWriteOperands(b.index(negated)));
  EXPECT_TRUE(rules.MayWriteOperands(b.index(unknown)));
}

}  // namespace
}  // namespace coopjax::verify
