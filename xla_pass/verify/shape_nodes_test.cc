#include "verify/shape_nodes.h"

#include <vector>

#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax::verify {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

TEST(NodesAreNumberedInPreOrder) {
  HloBuilder b;
  b.Begin("main");
  const int64_t second = b.Parameter(1, F32({4}));
  // (a, (b, c), d): 6 nodes, numbered 0, 1, 2 (3, 4), 5 from its root.
  const int64_t nested = b.Parameter(0, TupleOf({F32({1}), TupleOf({F32({2}), F32({3})}), F32({4})}));
  b.Add("add-dependency", F32({4}), {second, nested});
  const ShapeNodes nodes(b.Finish());
  EXPECT_EQ(nodes.num_nodes(), 1 + 6 + 1);
  EXPECT_EQ(nodes.first(1), 1);
  EXPECT_EQ(nodes.end(1), 7);
  EXPECT_EQ(nodes.subtree_size(3), 3);
  EXPECT_EQ(nodes.Child(1, 2), 6);
  EXPECT_EQ(nodes.Child(1, 3), kNoNode);
  EXPECT_EQ(nodes.Child(2, 0), kNoNode);
  const std::vector<int64_t> path = {1, 1}, too_deep = {1, 1, 0};
  EXPECT_EQ(nodes.At(1, path), 5);
  EXPECT_EQ(nodes.At(1, too_deep), kNoNode);
  EXPECT_EQ(nodes.owner(5), 1);
  EXPECT_EQ(nodes.OperandNode(2, 1, 4), 5);
  EXPECT_EQ(nodes.OperandNode(2, 1, 6), kNoNode);
  EXPECT_EQ(nodes.OperandNode(2, 2, 0), kNoNode);
}

TEST(ParametersAreFoundByNumber) {
  HloBuilder b;
  b.Begin("main");
  b.Parameter(1, F32({4}));
  b.Parameter(0, F32({4}));
  const ShapeNodes nodes(b.Finish());
  EXPECT_EQ(nodes.parameter(0, 0), 1);
  EXPECT_EQ(nodes.parameter(0, 1), 0);
  EXPECT_EQ(nodes.parameter(0, 2), -1);
  EXPECT_EQ(nodes.root(0), 1);
}

}  // namespace
}  // namespace coopjax::verify
