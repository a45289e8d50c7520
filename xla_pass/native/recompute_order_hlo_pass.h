// CoopRecomputeOrder: orders a scheduled module, and recomputes what a budget asks for, so that it takes less memory.
//
// What it does: the schedules of the entry computation, and of what loops, conditionals and calls run, are replaced by
// ones that XLA's buffer assignment packs smaller. Where that is not within `budget_bytes`, instructions are cloned
// right before later uses, inside loops too: the clone of x is named "x.coop_remat1", the next "x.coop_remat2". The
// module's configuration, aliasing and entry layout stay.
// How it does it: the module goes as bytes through the project's core (pass/recompute_order.h), the same code that JAX
// programs meet in the hook, and comes back with new computations. The outcome is proved equivalent from its bytes
// (verify/verify.h) before anything is replaced; pointers into the module's computations do not survive a change.
// What it measures: temporary bytes as XLA:CPU's BufferAssigner gives them, alignment and fragmentation included.
// Returns whether the module was changed. Where nothing is gained, or anything is in doubt, it is not; a budget out of
// reach is no error: the result is the smallest found, and never larger than what came.
// Where it runs: after scheduling and copy insertion, right before buffer assignment. Nothing that adds, removes or
// reorders instructions may run after it. A module without a schedule is a FailedPrecondition error.
//
// Built against an XLA that drops the fields it does not know (module_bytes.h): this form of the pass is for pipelines
// inside that very XLA, and a module it has seen must not be serialized for another.
#pragma once

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "native/plan_bytes.h"
#include "xla/hlo/ir/hlo_module.h"
#include "xla/hlo/pass/hlo_pass_interface.h"

namespace coopjax {

class CoopRecomputeOrder : public xla::HloModulePass {
 public:
  explicit CoopRecomputeOrder(const PlanBytesOptions& options) : options_(options) {}

  absl::string_view name() const override { return "coop-recompute-order"; }

 protected:
  absl::StatusOr<bool> RunImpl(xla::HloModule* module,
                               const absl::flat_hash_set<absl::string_view>& execution_threads) override;

 private:
  PlanBytesOptions options_;
};

}  // namespace coopjax
