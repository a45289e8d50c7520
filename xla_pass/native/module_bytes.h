// Serialized modules as XLA's own.
//
// XLA here is the one inside a TensorFlow wheel. It may be older than the XLA that wrote the bytes, and drops the
// fields that it does not know: what it serializes again must never go back into a newer XLA. The hook
// (bridge/transform.h) keeps unknown fields, and needs no XLA.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "xla/hlo/ir/hlo_module.h"

namespace coopjax {

// Reads a serialized HloModuleProto, with the debug options that JAX compiles with.
absl::StatusOr<std::unique_ptr<xla::HloModule>> ModuleFromBytes(const std::string& bytes);

// The same with a given configuration.
absl::StatusOr<std::unique_ptr<xla::HloModule>> ModuleFromBytes(const std::string& bytes,
                                                                const xla::HloModuleConfig& config);

}  // namespace coopjax
