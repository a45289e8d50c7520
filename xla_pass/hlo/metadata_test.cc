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

}  // namespace
}  // namespace coopjax::hlo
