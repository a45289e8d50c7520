#include "native/buffer_sizes.h"

#include <memory>
#include <utility>

#include "xla/hlo/analysis/alias_info.h"
#include "xla/hlo/analysis/hlo_ordering.h"
#include "xla/hlo/transforms/expanders/optimization_barrier_expander.h"
#include "xla/hlo/transforms/simplifiers/hlo_dce.h"
#include "xla/hlo/transforms/simplifiers/tuple_simplifier.h"
#include "xla/service/buffer_assignment.h"
#include "xla/shape_util.h"

namespace coopjax {
namespace {

constexpr int64_t kAlignment = 64, kPointerBytes = 8;

absl::Status RemoveBarriers(xla::HloModule* module) {
  const absl::StatusOr<bool> is_changed = xla::OptimizationBarrierExpander().Run(module);
  if (!is_changed.ok() || !*is_changed) return is_changed.status();
  if (absl::Status status = xla::TupleSimplifier().Run(module).status(); !status.ok()) return status;
  if (absl::Status status = xla::HloDCE().Run(module).status(); !status.ok()) return status;
  return module->schedule().Update();
}

}  // namespace

absl::StatusOr<BufferSizes> AssignCpuBuffers(xla::HloModule* module) {
  if (absl::Status status = RemoveBarriers(module); !status.ok()) return status;
  xla::BufferAssigner::Options options;
  options.allocate_buffers_for_constants = true;
  const xla::AliasInfo alias_info;
  const auto buffer_bytes = [](const xla::BufferValue& buffer) {
    return xla::ShapeUtil::ByteSizeOf(buffer.shape(), kPointerBytes);
  };
  const absl::StatusOr<std::unique_ptr<xla::BufferAssignment>> assignment = xla::BufferAssigner::Run(
      module, std::make_unique<xla::SequentialHloOrdering>(module->schedule()), buffer_bytes, &alias_info,
      [](xla::LogicalBuffer::Color) { return kAlignment; }, std::move(options));
  if (!assignment.ok()) return assignment.status();
  BufferSizes sizes;
  for (const xla::BufferAllocation& allocation : (*assignment)->Allocations()) {
    const bool is_parameter = allocation.is_entry_computation_parameter(), is_output = allocation.maybe_live_out();
    if (is_parameter) sizes.argument += allocation.size();
    if (is_output) sizes.output += allocation.size();
    if (is_parameter && is_output) sizes.alias += allocation.size();
    if (allocation.IsPreallocatedTempBuffer()) sizes.temp += allocation.size();
  }
  return sizes;
}

}  // namespace coopjax
