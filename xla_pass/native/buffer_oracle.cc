// buffer_oracle FILE...: the memory that XLA's own BufferAssigner gives scheduled modules (serialized HloModuleProtos), set up
// as XLA:CPU sets it up. Prints a JSON object of bytes per file; stops at the first file that XLA refuses.
//
// Our model of buffer assignment (hlo_heap.h) has to agree with it to the byte.

#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "module_bytes.h"
#include "xla/hlo/analysis/alias_info.h"
#include "xla/hlo/analysis/hlo_ordering.h"
#include "xla/hlo/transforms/expanders/optimization_barrier_expander.h"
#include "xla/hlo/transforms/simplifiers/hlo_dce.h"
#include "xla/hlo/transforms/simplifiers/tuple_simplifier.h"
#include "xla/service/buffer_assignment.h"
#include "xla/shape_util.h"

namespace {

constexpr int64_t kAlignment = 64, kPointerBytes = 8;

struct Sizes {
  int64_t temp = 0, argument = 0, output = 0, alias = 0;
};

// What XLA:CPU still does between the scheduler, where the hook sees a module, and buffer assignment.
absl::Status RemoveBarriers(xla::HloModule* module) {
  absl::StatusOr<bool> is_changed = xla::OptimizationBarrierExpander().Run(module);
  if (!is_changed.ok() || !*is_changed) return is_changed.status();
  if (absl::Status status = xla::TupleSimplifier().Run(module).status(); !status.ok()) return status;
  if (absl::Status status = xla::HloDCE().Run(module).status(); !status.ok()) return status;
  return module->schedule().Update();
}

absl::StatusOr<Sizes> Assign(const std::string& bytes) {
  absl::StatusOr<std::unique_ptr<xla::HloModule>> module = coopjax::ModuleFromBytes(bytes);
  if (!module.ok()) return module.status();
  if (absl::Status status = RemoveBarriers(module->get()); !status.ok()) return status;
  xla::BufferAssigner::Options options;
  options.allocate_buffers_for_constants = true;
  const xla::AliasInfo alias_info;
  absl::StatusOr<std::unique_ptr<xla::BufferAssignment>> assignment = xla::BufferAssigner::Run(
      module->get(), std::make_unique<xla::SequentialHloOrdering>((*module)->schedule()),
      [](const xla::BufferValue& buffer) { return xla::ShapeUtil::ByteSizeOf(buffer.shape(), kPointerBytes); },
      &alias_info, [](xla::LogicalBuffer::Color) { return kAlignment; }, std::move(options));
  if (!assignment.ok()) return assignment.status();
  Sizes sizes;
  for (const xla::BufferAllocation& allocation : (*assignment)->Allocations()) {
    const bool is_parameter = allocation.is_entry_computation_parameter(), is_output = allocation.maybe_live_out();
    if (is_parameter) sizes.argument += allocation.size();
    if (is_output) sizes.output += allocation.size();
    if (is_parameter && is_output) sizes.alias += allocation.size();
    if (allocation.IsPreallocatedTempBuffer()) sizes.temp += allocation.size();
  }
  return sizes;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const absl::StatusOr<Sizes> sizes = Assign(bytes);
    if (!sizes.ok()) {
      std::cerr << argv[i] << ": " << sizes.status() << "\n";
      return 1;
    }
    std::cout << (i == 1 ? "{\n" : ",\n") << "  \"" << argv[i] << "\": {\"temp\": " << sizes->temp
              << ", \"argument\": " << sizes->argument << ", \"output\": " << sizes->output
              << ", \"alias\": " << sizes->alias << "}";
  }
  std::cout << (argc > 1 ? "\n}\n" : "{}\n");
  return 0;
}
