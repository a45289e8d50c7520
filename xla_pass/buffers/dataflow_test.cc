#include "buffers/dataflow.h"

#include <utility>
#include <vector>

#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

const hlo::Shape kArray = F32({4}), kPair = TupleOf({kArray, kArray});

struct Analysis {
  explicit Analysis(HloBuilder& b) : builder(b), graph(b.Finish()), dataflow(graph) {}
  // At a node of an instruction, counted from the root of its shape.
  int32_t ValueAt(int64_t id, int32_t offset = 0) const {
    return dataflow.value_at(graph.node_base(builder.index(id)) + offset);
  }
  bool IsDefinedAt(int64_t id, int32_t offset = 0) const {
    return dataflow.definition(ValueAt(id, offset)) == graph.node_base(builder.index(id)) + offset;
  }
  // (id of the user, number of the operand) by use.
  std::vector<std::pair<int64_t, int32_t>> Uses(int32_t value) const {
    std::vector<std::pair<int64_t, int32_t>> uses;
    dataflow.ForEachUse(
        value, [&](int32_t user, int32_t number, hlo::Node) { uses.emplace_back(graph.instruction(user).id, number); });
    return uses;
  }

  HloBuilder& builder;
  hlo::Graph graph;
  HloDataflow dataflow;
};

using Uses = std::vector<std::pair<int64_t, int32_t>>;

// (p, sine(p)) is returned: the tuple defines its table and shows both. Being put into the root counts as a use.
TEST(ATupleShowsItsElements) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, kArray);
  const int64_t unread = b.Add("cosine", kArray, {p});
  const int64_t sine = b.Add("sine", kArray, {p});
  const int64_t pair = b.Add("tuple", kPair, {p, sine});
  const Analysis a(b);
  EXPECT_EQ(a.dataflow.num_values(), 4);
  EXPECT_TRUE(a.IsDefinedAt(pair));
  EXPECT_EQ(a.ValueAt(pair, 1), a.ValueAt(p));
  EXPECT_EQ(a.ValueAt(pair, 2), a.ValueAt(sine));
  EXPECT_EQ(a.dataflow.positions(a.ValueAt(p)).size(), 2u);
  EXPECT_TRUE(a.dataflow.lives_out(a.ValueAt(p)) && a.dataflow.lives_out(a.ValueAt(sine)));
  EXPECT_TRUE(!a.dataflow.lives_out(a.ValueAt(unread)));
  EXPECT_TRUE((a.Uses(a.ValueAt(p)) == Uses{{unread, 0}, {sine, 0}, {pair, 0}}));
  EXPECT_TRUE((a.Uses(a.ValueAt(sine)) == Uses{{pair, 1}}));
  EXPECT_EQ(a.dataflow.defining_instruction(a.ValueAt(sine)), b.index(sine));
}

// An element that is put into a tuple and taken out of it again is read where it is used, not on the way.
TEST(PassingThroughIsNoUse) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, kPair);
  const int64_t first = b.Element(p, 0);
  const int64_t flat = b.Add("bitcast", F32({2, 2}), {first});
  const int64_t again = b.Element(b.Add("tuple", TupleOf({kArray, F32({2, 2})}), {first, flat}), 1);
  const int64_t sine = b.Add("sine", F32({2, 2}), {again});
  const Analysis a(b);
  EXPECT_EQ(a.ValueAt(flat), a.ValueAt(p, 1));
  EXPECT_TRUE((a.Uses(a.ValueAt(p, 1)) == Uses{{flat, 0}, {sine, 0}}));
  EXPECT_TRUE((a.Uses(a.ValueAt(p)) == Uses{{first, 0}}));   // the table is read
  EXPECT_TRUE(a.Uses(a.ValueAt(p, 2)).empty());
}

// A copy of a tuple makes a new table and shows the same elements.
TEST(ACopyIsShallow) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, kPair);
  const int64_t copy = b.Add("copy", kPair, {p});
  const Analysis a(b);
  EXPECT_TRUE(a.IsDefinedAt(copy));
  EXPECT_EQ(a.ValueAt(copy, 1), a.ValueAt(p, 1));
  EXPECT_EQ(a.ValueAt(copy, 2), a.ValueAt(p, 2));
}

// Branches that return what they got: the result is that value, and a phi where one of them makes another.
TEST(WhereBranchesMeetThereIsAPhiIfTheyDiffer) {
  for (const bool differ : {false, true}) {
    HloBuilder b;
    const int64_t same = b.Begin("same");
    b.Parameter(0, kArray);
    const int64_t other = b.Begin("other");
    const int64_t in = b.Parameter(0, kArray);
    if (differ) b.Add("negate", kArray, {in});
    b.Begin("main");
    const int64_t index = b.Parameter(0, F32({})), x = b.Parameter(1, kArray);
    const int64_t result = b.Add("conditional", kArray, {index, x, x}, {same, other});
    const Analysis a(b);
    EXPECT_EQ(a.ValueAt(in), a.ValueAt(x));
    EXPECT_EQ(a.IsDefinedAt(result), differ);
    EXPECT_EQ(a.ValueAt(result) == a.ValueAt(x), !differ);
    EXPECT_EQ(a.dataflow.num_values(), differ ? 4 : 2);   // the index, x; negate and the phi
  }
}

// What a fused computation makes has no buffer of its own.
TEST(FusionsHaveNoValuesInside) {
  HloBuilder b;
  const int64_t fused = b.Begin("fused");
  const int64_t inside = b.Add("negate", kArray, {b.Parameter(0, kArray)});
  b.EndEmbedded();
  b.Begin("main");
  const int64_t fusion = b.LoopFusion(kArray, {b.Parameter(0, kArray)}, fused);
  const Analysis a(b);
  EXPECT_EQ(a.ValueAt(inside), HloDataflow::kNoValue);
  EXPECT_TRUE(a.IsDefinedAt(fusion));
}

// copy-start: (destination, source, context); its done shows the destination.
TEST(AnAsynchronousCopyHandsItsDestinationOn) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, kArray);
  const int64_t start = b.Add("copy-start", TupleOf({kArray, kArray, F32({})}), {p});
  const int64_t done = b.Add("copy-done", kArray, {start});
  const Analysis a(b);
  EXPECT_TRUE(a.IsDefinedAt(start, 1) && a.IsDefinedAt(start, 3));
  EXPECT_EQ(a.ValueAt(start, 2), a.ValueAt(p));
  EXPECT_EQ(a.ValueAt(done), a.ValueAt(start, 1));
}

}  // namespace
}  // namespace coopjax
