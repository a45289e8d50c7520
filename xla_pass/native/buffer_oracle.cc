// buffer_oracle [--budget=SHARE] FILE...: a JSON object with the memory (buffer_sizes.h) of each scheduled module, a
// serialized HloModuleProto. With a budget, a share of each module's temporaries, that is the memory after
// CoopRecomputeOrder, whose outcome XLA's HloVerifier has to accept. Stops at the first file that XLA refuses.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>

#include "native/buffer_sizes.h"
#include "native/module_bytes.h"
#include "native/recompute_order_hlo_pass.h"
#include "xla/service/hlo_verifier.h"

namespace {

absl::Status RunPass(xla::HloModule* module, int64_t budget_bytes) {
  coopjax::PlanBytesOptions options;
  options.budget_bytes = budget_bytes;
  if (absl::Status status = coopjax::CoopRecomputeOrder(options).Run(module).status(); !status.ok()) return status;
  return xla::HloVerifier(/*layout_sensitive=*/true, /*allow_mixed_precision=*/true).Run(module).status();
}

absl::StatusOr<coopjax::BufferSizes> Sizes(const std::string& bytes, std::optional<double> share) {
  absl::StatusOr<std::unique_ptr<xla::HloModule>> module = coopjax::ModuleFromBytes(bytes);
  if (!module.ok()) return module.status();
  absl::StatusOr<coopjax::BufferSizes> sizes = coopjax::AssignCpuBuffers(module->get());
  if (!sizes.ok() || !share) return sizes;
  module = coopjax::ModuleFromBytes(bytes);  // with its barriers
  const auto budget_bytes = static_cast<int64_t>(*share * static_cast<double>(sizes->temp));
  if (absl::Status status = RunPass(module->get(), budget_bytes); !status.ok()) return status;
  return coopjax::AssignCpuBuffers(module->get());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string flag = "--budget=";
  std::optional<double> share;
  const char* separator = "{\n";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.compare(0, flag.size(), flag) == 0) {
      share = std::atof(argument.c_str() + flag.size());
      continue;
    }
    std::ifstream file(argument, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const absl::StatusOr<coopjax::BufferSizes> sizes = Sizes(bytes, share);
    if (!sizes.ok()) {
      std::cerr << argument << ": " << sizes.status() << "\n";
      return 1;
    }
    std::cout << separator << "  \"" << argument << "\": {\"temp\": " << sizes->temp
              << ", \"argument\": " << sizes->argument << ", \"output\": " << sizes->output
              << ", \"alias\": " << sizes->alias << "}";
    separator = ",\n";
  }
  std::cout << "\n}\n";
  return 0;
}
