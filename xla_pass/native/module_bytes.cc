#include "module_bytes.h"

#include "xla/xla.pb.h"

namespace coopjax {

absl::StatusOr<std::unique_ptr<xla::HloModule>> ModuleFromBytes(const std::string& bytes) {
  xla::HloModuleProto proto;
  if (!proto.ParseFromString(bytes)) return absl::InvalidArgumentError("these bytes are no HloModuleProto");
  xla::DebugOptions options;
  options.set_xla_multiheap_size_constraint_per_heap(-1);  // one heap, as JAX has it; unset would be none at all
  absl::StatusOr<xla::HloModuleConfig> config = xla::HloModule::CreateModuleConfigFromProto(proto, options);
  if (!config.ok()) return config.status();
  return xla::HloModule::CreateFromProto(proto, *config);
}

std::string ToBytes(const xla::HloModule& module) { return module.ToProto().SerializeAsString(); }

}  // namespace coopjax
