// Serialized modules as XLA's own, and back.
//
// XLA here is the one inside a TensorFlow wheel. It may be older than the XLA that wrote the bytes, and then drops the
// fields that it does not know: what `ToBytes` returns is for tests, and must never go back into a newer XLA. The hook
// (transform.h) keeps every unknown field, and needs no XLA.
#ifndef COOPJAX_XLA_PASS_NATIVE_MODULE_BYTES_H_
#define COOPJAX_XLA_PASS_NATIVE_MODULE_BYTES_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "xla/hlo/ir/hlo_module.h"

namespace coopjax {

// Reads a serialized HloModuleProto.
absl::StatusOr<std::unique_ptr<xla::HloModule>> ModuleFromBytes(const std::string& bytes);

std::string ToBytes(const xla::HloModule& module);

}  // namespace coopjax

#endif  // COOPJAX_XLA_PASS_NATIVE_MODULE_BYTES_H_
