#include "hlo/metadata.h"

#include <string>

#include "testing/expect.h"
#include "testing/hlo_proto_builder.h"

namespace coopjax::hlo {
namespace {

using testing::F32;
using testing::HloProtoBuilder;

std::string VarintField(uint32_t number, uint64_t value) {
  std::string out;
  AppendVarintField(number, value, &out);
  return out;
}

TEST(SourceLinesComeFromTheStackFrames) {
  std::string metadata, field, location, frame, frames;
  AppendBytesField(2, "jit(f)/tanh", &metadata);
  AppendVarintField(15, 1, &metadata);
  AppendBytesField(7, metadata, &field);
  HloProtoBuilder builder;
  builder.Begin("main");
  builder.Add("iota", F32({4}), {}, {.fields = field});
  AppendBytesField(1, "train.py", &frames);
  location = VarintField(1, 1) + VarintField(3, 42);
  AppendBytesField(3, location, &frames);
  frame = VarintField(1, 1);
  AppendBytesField(4, frame, &frames);
  std::string module_field;
  AppendBytesField(17, frames, &module_field);
  builder.AppendModuleFields(module_field);
  std::string error;
  const auto module = ParseModule(builder.Build(), &error);
  const Metadata read = MetadataReader(*module).Read(module->instructions[0]);
  EXPECT_EQ(read.op_name, "jit(f)/tanh");
  EXPECT_EQ(read.source_file, "train.py");
  EXPECT_EQ(read.source_line, 42);
  EXPECT_EQ(read.Source(), "train.py:42");
}

// Frame 3 calls from a package, which the user's line 7 called, which line 42 called.
TEST(TheInnermostFrameOutsideOfPackagesIsTheUsers) {
  std::string metadata, field, frames, module_field, error;
  AppendVarintField(15, 3, &metadata);
  AppendBytesField(7, metadata, &field);
  HloProtoBuilder builder;
  builder.Begin("main");
  builder.Add("iota", F32({4}), {}, {.fields = field});
  AppendBytesField(1, "train.py", &frames);
  AppendBytesField(1, "/lib/python3.12/site-packages/flax/linear.py", &frames);
  AppendBytesField(2, "main", &frames);
  AppendBytesField(2, "__call__", &frames);
  const auto add_location = [&](uint64_t file, uint64_t function, uint64_t line) {
    AppendBytesField(3, VarintField(1, file) + VarintField(2, function) + VarintField(3, line), &frames);
  };
  add_location(1, 1, 42);
  add_location(1, 2, 7);
  add_location(2, 2, 280);
  for (uint64_t id = 1; id <= 3; ++id) AppendBytesField(4, VarintField(1, id) + VarintField(2, id - 1), &frames);
  AppendBytesField(4, VarintField(1, 3) + VarintField(2, 4), &frames);  // calls itself: damaged
  AppendBytesField(17, frames, &module_field);
  builder.AppendModuleFields(module_field);
  const auto module = ParseModule(builder.Build(), &error);
  const MetadataReader reader(*module);
  const Metadata read = reader.Read(module->instructions[0]);
  EXPECT_EQ(read.Source(), "train.py:7");
  EXPECT_EQ(read.frame_id, 3);
  EXPECT_EQ(reader.FrameText(3), "/lib/python3.12/site-packages/flax/linear.py:280 (__call__)");
  EXPECT_EQ(reader.FrameText(reader.Caller(2)), "train.py:42 (main)");
  EXPECT_EQ(reader.Caller(1), 0);
  EXPECT_EQ(reader.Caller(4), 0);
  EXPECT_EQ(reader.FrameText(5), "");
}

}  // namespace
}  // namespace coopjax::hlo
