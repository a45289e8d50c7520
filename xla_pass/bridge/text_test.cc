#include "bridge/text.h"

#include <string>

#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

std::string KindOf(HloBuilder& b, int64_t id) { return OpKind(hlo::Graph(b.Finish()), b.index(id)); }

TEST(AKindIsAnOpcode) {
  HloBuilder b;
  b.Begin("main");
  const int64_t p = b.Parameter(0, F32({8}));
  EXPECT_EQ(KindOf(b, b.Add("reverse", F32({8}), {p})), "reverse");
  EXPECT_EQ(KindOf(b, b.Add("brand-new-op", F32({8}), {p})), "brand-new-op");
}

TEST(ACustomCallIsAProductByItsTarget) {
  HloBuilder b;
  b.Begin("main");
  const int64_t call = b.Add("custom-call", F32({8}), {b.Parameter(0, F32({8}))});
  const auto kind_with = [&](std::string_view target) {
    b.last().custom_call_target = target;
    return KindOf(b, call);
  };
  EXPECT_EQ(kind_with("__onednn$matmul"), "dot");
  EXPECT_EQ(kind_with("__cublas$gemm"), "dot");
  EXPECT_EQ(kind_with("__cudnn$convForward"), "convolution");
  EXPECT_EQ(kind_with("Sharding"), "custom-call");
}

// A convolution goes before a dot wherever it stands, both before what the root does.
TEST(AFusionIsItsDearestPart) {
  HloBuilder b;
  const int64_t both = b.Begin("both");
  const int64_t p = b.Parameter(0, F32({8, 8}));
  b.Add("dot", F32({8, 8}), {b.Add("convolution", F32({8, 8}), {p, p}), p});
  b.EndEmbedded();
  const int64_t product = b.Begin("product");
  const int64_t q = b.Parameter(0, F32({8, 8}));
  b.Add("tanh", F32({8, 8}), {b.Add("dot", F32({8, 8}), {q, q})});
  b.EndEmbedded();
  b.Begin("main");
  const int64_t r = b.Parameter(0, F32({8, 8}));
  const int64_t x = b.LoopFusion(F32({8, 8}), {r}, both), y = b.LoopFusion(F32({8, 8}), {x}, product);
  EXPECT_EQ(KindOf(b, x), "convolution");
  EXPECT_EQ(KindOf(b, y), "dot");
}

// Without a product inside it is what makes the root's first result, through tuples and bitcasts.
TEST(AFusionWithoutProductsIsItsRoot) {
  HloBuilder b;
  const int64_t fused = b.Begin("fused");
  const int64_t p = b.Parameter(0, F32({8}));
  const int64_t tanh = b.Add("tanh", F32({8}), {p}), negate = b.Add("negate", F32({8}), {p});
  b.Add("tuple", TupleOf({F32({2, 4}), F32({8})}), {b.Add("bitcast", F32({2, 4}), {tanh}), negate});
  b.EndEmbedded();
  b.Begin("main");
  const hlo::Shape shape = TupleOf({F32({2, 4}), F32({8})});
  const int64_t fusion = b.LoopFusion(shape, {b.Parameter(0, F32({8}))}, fused);
  EXPECT_EQ(KindOf(b, fusion), "tanh");
}

TEST(ShapesAsText) {
  EXPECT_EQ(ShapeText(F32({})), "f32[]");
  EXPECT_EQ(ShapeText(TupleOf({F32({4, 8}), F32({2})})), "(f32[4,8], f32[2])");
  EXPECT_EQ(ShapeText(testing::Token()), "token");
  hlo::Shape unknown = F32({3});
  unknown.element_type = 1000;   // of an XLA to come
  EXPECT_EQ(ShapeText(unknown), "?[3]");
}

}  // namespace
}  // namespace coopjax
