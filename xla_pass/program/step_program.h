// A StepProgram: one training step as ops, values and an order, free of JAX and of XLA.
//
// Every planner takes a StepProgram and a budget and returns a Schedule. The rules that give a
// Schedule its meaning stand here and nowhere else:
//
//  * A Schedule is a sequence of op ids; an op may occur more than once (a recompute), and every op
//    of the program occurs at least once. A use reads the most recent production of its value.
//  * Glue (bitcast, tuple, get-tuple-element) is folded away: a value is a buffer, an op does work.
//  * Live ranges are half-open, [def_step, last_use_step + 1). A value that is never read is live for
//    the one step that makes it. A recomputed value has one live range per production.
//  * Only `kTemporary` values take bytes from the budget. Parameters and constants exist before step
//    0; outputs have allocations of their own and exist until the end.
//  * In place (`in_place_of[w] == v`): the producer of `w` overwrites `v`'s storage. `v`'s live range
//    ends where the producer of `w` runs (that step counts the bytes once, as `w`'s), and nobody may
//    read `v` afterwards, recomputes included, unless `v` was itself produced anew. The producer of `w`
//    reads a temporary `v`; a parameter or output it may overwrite unread (a donated buffer), but only
//    once that has been made.
//  * May share (`may_share`): if the input's production is read for the last time at that very step, its
//    range ends one step earlier, because XLA puts the output into the input's buffer. An input and an
//    output share at most once, in the order of `may_share`; what overwrites or is overwritten does not.
//  * `workspace_bytes` (the inner peak of a loop, say) count only at the op's own step.
//  * A control predecessor's first occurrence precedes the op's first occurrence.
//  * Only ops with `can_recompute` may occur twice, and of those none that makes an output (it has one
//    allocation, which is never given up) or overwrites what can't be made anew (anything but a temporary).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/csr.h"

namespace coopjax {

using OpId = int32_t;
using ValueId = int32_t;
using Step = int32_t;
using Schedule = std::vector<OpId>;

inline constexpr OpId kNoOp = -1;
inline constexpr ValueId kNoValue = -1;

enum class ValueKind : uint8_t { kTemporary = 0, kParameter = 1, kConstant = 2, kOutput = 3 };

// `output` may take over `input`'s buffer when `input` dies at `op`.
struct MayShare {
  OpId op;
  ValueId input;
  ValueId output;
};

struct StepProgram {
  // Per op, indexed by OpId.
  Csr op_inputs;                         // ValueIds, each at most once per op
  Csr op_outputs;                        // ValueIds
  Csr op_control;                        // OpIds of control predecessors
  std::vector<double> op_cost_s;         // modelled seconds
  std::vector<double> op_flops;          // a transcendental counts for eight
  std::vector<int64_t> op_workspace_bytes;
  std::vector<uint8_t> op_can_recompute;

  // Per value, indexed by ValueId.
  std::vector<int64_t> value_bytes;
  std::vector<OpId> value_producer;      // kNoOp for parameters and constants
  std::vector<ValueKind> value_kind;
  std::vector<ValueId> value_in_place_of;  // kNoValue: storage of its own

  std::vector<MayShare> may_share;
  Schedule schedule;                     // the order the program came with; each op once

  int32_t num_ops() const { return op_inputs.num_rows(); }
  int32_t num_values() const { return static_cast<int32_t>(value_bytes.size()); }
  bool takes_budget(ValueId v) const { return value_kind[v] == ValueKind::kTemporary; }
};

// Empty when `program` is well formed: ids in range, sizes and costs not negative and finite,
// producers consistent with op_outputs, the given schedule complete, every read after its production.
// Otherwise one sentence that names the first fault (a cycle, a negative size, an unknown value id).
std::string CheckProgram(const StepProgram& program);

}  // namespace coopjax
