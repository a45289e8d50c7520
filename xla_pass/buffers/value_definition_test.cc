#include "buffers/value_definition.h"

#include <string>

#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

// One letter a node, in pre-order: d where the value is defined, f where it is forwarded.
std::string Definitions(const hlo::Graph& graph, int32_t instruction) {
  std::string letters;
  for (hlo::Node node = graph.node_base(instruction); node < graph.node_end(instruction); ++node) {
    letters += DefinesValueAt(graph, node) ? 'd' : 'f';
  }
  return letters;
}

TEST(TuplesAndCopiesDefineTheirTopAlone) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({4}));
  const int64_t negate = b.Add("negate", F32({4}), {p});
  const int64_t bitcast = b.Add("bitcast", F32({4}), {negate});
  const int64_t tuple = b.Add("tuple", TupleOf({F32({4}), F32({4})}), {negate, bitcast});
  const int64_t copy = b.Add("copy", TupleOf({F32({4}), F32({4})}), {tuple});
  const hlo::Graph graph(b.Finish());
  EXPECT_EQ(Definitions(graph, b.index(p)), "d");
  EXPECT_EQ(Definitions(graph, b.index(negate)), "d");
  EXPECT_EQ(Definitions(graph, b.index(bitcast)), "f");
  EXPECT_EQ(Definitions(graph, b.index(tuple)), "dff");
  EXPECT_EQ(Definitions(graph, b.index(copy)), "dff");
}

TEST(ACalledComputationIsHandedItsParameters) {
  HloBuilder b;
  const int64_t callee = b.Begin("callee");
  const int64_t inner = b.Parameter(0, F32({4}));
  b.Add("negate", F32({4}), {inner});
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({4}));
  const int64_t call = b.Add("call", F32({4}), {p}, {callee});
  const hlo::Graph graph(b.Finish());
  EXPECT_EQ(Definitions(graph, b.index(inner)), "f");
  EXPECT_EQ(Definitions(graph, b.index(p)), "d");
  EXPECT_EQ(Definitions(graph, b.index(call)), "f");
}

// A copy-start's result is (destination, source, context), a collective-permute-start's (source, destination).
TEST(AsynchronousStartsForwardTheirSource) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({4}));
  const int64_t copy = b.Add("copy-start", TupleOf({F32({4}), F32({4}), F32({})}), {p});
  const int64_t copied = b.Add("copy-done", F32({4}), {copy});
  const int64_t permute = b.Add("collective-permute-start", TupleOf({F32({4}), F32({4})}), {copied});
  const int64_t permuted = b.Add("collective-permute-done", F32({4}), {permute});
  const hlo::Graph graph(b.Finish());
  EXPECT_EQ(Definitions(graph, b.index(copy)), "ddfd");
  EXPECT_EQ(Definitions(graph, b.index(copied)), "f");
  EXPECT_EQ(Definitions(graph, b.index(permute)), "dfd");
  EXPECT_EQ(Definitions(graph, b.index(permuted)), "f");
}

}  // namespace
}  // namespace coopjax
