#include "buffers/platform.h"

#include "testing/expect.h"
#include "testing/hlo_builder.h"

namespace coopjax {
namespace {

using testing::F32;
using testing::HloBuilder;
using testing::TupleOf;

hlo::Shape Tiled(hlo::Shape shape, int64_t memory_space = hlo::kMainMemorySpace) {
  shape.tiles = {{8, 128}};
  shape.memory_space = memory_space;
  return shape;
}

HloPlatform PlatformOfNegate(const hlo::Shape& shape, const char* raw, const char* attributes = "") {
  HloBuilder b;
  b.Begin("main");
  b.Add("negate", shape, {b.Parameter(0, shape)});
  b.SetRaw(raw);
  b.SetAttributes(attributes);
  return PlatformOf(b.Finish());
}

TEST(AModuleShowsWhatItWasCompiledFor) {
  EXPECT_TRUE(PlatformOfNegate(F32({8}), "") == HloPlatform::kCpu);
  EXPECT_TRUE(PlatformOfNegate(F32({8}), R"({"operation_queue_id":"0"})") == HloPlatform::kGpu);
  EXPECT_TRUE(PlatformOfNegate(F32({8}), "", "fingerprint_before_lhs") == HloPlatform::kGpu);
  EXPECT_TRUE(PlatformOfNegate(Tiled(F32({8, 128})), "") == HloPlatform::kTpu);
  EXPECT_TRUE(PlatformOfNegate(TupleOf({F32({}), Tiled(F32({8, 128}))}), "") == HloPlatform::kTpu);
}

TEST(ValuesElsewhereTakeNothingAndTpuRoundsUp) {
  const HeapRules cpu = RulesFor(HloPlatform::kCpu), gpu = RulesFor(HloPlatform::kGpu),
                  tpu = RulesFor(HloPlatform::kTpu);
  EXPECT_EQ(cpu.Bytes(TupleOf({F32({}), F32({})})), 16);
  EXPECT_EQ(tpu.Bytes(TupleOf({F32({}), F32({})})), 512);
  EXPECT_EQ(tpu.Bytes(Tiled(F32({8, 128}))), 4096);
  EXPECT_EQ(tpu.Bytes(Tiled(F32({9, 128}))), 8192);  // whole tiles
  for (const int64_t small : {1, 2}) EXPECT_EQ(tpu.Bytes(Tiled(F32({8, 128}), small)), 0);
  const hlo::Shape on_host = Tiled(F32({8, 128}), hlo::kHostMemorySpace);
  EXPECT_EQ(tpu.Bytes(on_host), 0);
  EXPECT_EQ(gpu.Bytes(on_host), 0);
  EXPECT_EQ(cpu.Bytes(on_host), 4096);
}

}  // namespace
}  // namespace coopjax
