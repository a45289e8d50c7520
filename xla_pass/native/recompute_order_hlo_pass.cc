#include "native/recompute_order_hlo_pass.h"

#include <memory>
#include <utility>
#include <vector>

#include "native/module_bytes.h"
#include "xla/hlo/ir/hlo_computation.h"
#include "xla/hlo/ir/hlo_instruction.h"
#include "xla/hlo/ir/hlo_schedule.h"

namespace coopjax {
namespace {

// Puts the computations and the schedule of `from` in the place of those of `module`.
absl::Status ReplaceComputations(xla::HloModule* module, std::unique_ptr<xla::HloModule> from) {
  std::vector<std::pair<xla::HloComputation*, std::vector<xla::HloInstruction*>>> sequences;
  for (xla::HloComputation* computation : from->MakeNonfusionComputations()) {
    if (!from->schedule().is_computation_scheduled(computation)) continue;
    sequences.emplace_back(computation, from->schedule().sequence(computation).instructions());
  }
  // A new entry computation resets these.
  const xla::ComputationLayout layout = module->entry_computation_layout();
  const xla::HloInputOutputAliasConfig aliases = module->input_output_alias_config();
  const xla::HloBufferDonorConfig donors = module->buffer_donor_config();
  module->clear_schedule();
  from->clear_schedule();
  module->MoveComputationsFrom(from.get());
  *module->mutable_entry_computation_layout() = layout;
  module->input_output_alias_config() = aliases;
  module->buffer_donor_config() = donors;
  if (absl::Status status = module->RemoveUnusedComputations(); !status.ok()) return status;
  xla::HloSchedule schedule(module);
  for (const auto& [computation, instructions] : sequences) schedule.set_sequence(computation, instructions);
  return module->set_schedule(std::move(schedule));  // verifies it
}

}  // namespace

absl::StatusOr<bool> CoopRecomputeOrder::RunImpl(xla::HloModule* module,
                                                 const absl::flat_hash_set<absl::string_view>& execution_threads) {
  if (!module->has_schedule()) {
    return absl::FailedPreconditionError("coop-recompute-order runs after scheduling; this module has no schedule");
  }
  if (!execution_threads.empty() && !execution_threads.contains(module->entry_computation()->execution_thread())) {
    return false;
  }
  const PlanBytesResult planned = PlanBytes(module->ToProto().SerializeAsString(), options_);
  if (!planned.error.empty()) return absl::InternalError(planned.error);
  if (planned.bytes.empty()) return false;
  absl::StatusOr<std::unique_ptr<xla::HloModule>> changed = ModuleFromBytes(planned.bytes, module->config());
  if (!changed.ok()) return changed.status();
  if (absl::Status status = ReplaceComputations(module, *std::move(changed)); !status.ok()) return status;
  return true;
}

}  // namespace coopjax
