#include "native/module_bytes.h"

#include "xla/xla.pb.h"

namespace coopjax {
namespace {

absl::StatusOr<xla::HloModuleProto> ProtoFromBytes(const std::string& bytes) {
  xla::HloModuleProto proto;
  if (!proto.ParseFromString(bytes)) return absl::InvalidArgumentError("these bytes are no HloModuleProto");
  return proto;
}

}  // namespace

absl::StatusOr<std::unique_ptr<xla::HloModule>> ModuleFromBytes(const std::string& bytes) {
  const absl::StatusOr<xla::HloModuleProto> proto = ProtoFromBytes(bytes);
  if (!proto.ok()) return proto.status();
  xla::DebugOptions options;
  options.set_xla_multiheap_size_constraint_per_heap(-1);  // one heap, as JAX has it; unset would be none at all
  const absl::StatusOr<xla::HloModuleConfig> config = xla::HloModule::CreateModuleConfigFromProto(*proto, options);
  if (!config.ok()) return config.status();
  return xla::HloModule::CreateFromProto(*proto, *config);
}

absl::StatusOr<std::unique_ptr<xla::HloModule>> ModuleFromBytes(const std::string& bytes,
                                                                const xla::HloModuleConfig& config) {
  const absl::StatusOr<xla::HloModuleProto> proto = ProtoFromBytes(bytes);
  if (!proto.ok()) return proto.status();
  return xla::HloModule::CreateFromProto(*proto, config);
}

}  // namespace coopjax
