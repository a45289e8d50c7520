// Live bytes of a Schedule, step by step, by the rules of program/step_program.h. All in O(ops + uses).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "program/step_program.h"

namespace coopjax {

// The live range of one production of one value, half-open. Parameters and constants have none;
// those of outputs are listed but take no budget.
struct LiveRange {
  ValueId value;
  Step begin;
  Step end;
  int32_t heir = -1;                 // index of the range of the output that takes the buffer over at `end`, or -1
};

struct Liveness {
  std::vector<LiveRange> ranges;     // by begin
  std::vector<int64_t> live_bytes;   // per step, workspace included
  int64_t peak_bytes = 0;
  Step peak_step = -1;               // the first step that reaches the peak; -1 for an empty schedule
};

// Of a valid schedule (CheckSchedule).
Liveness ComputeLiveness(const StepProgram& program, std::span<const OpId> schedule);

// Empty when `schedule` follows the rules of program/step_program.h; otherwise one sentence naming the first
// step that breaks one (a missing op, a read before production or after an overwrite, a repeat that
// is not allowed, a control predecessor that comes too late).
std::string CheckSchedule(const StepProgram& program, std::span<const OpId> schedule);

// Modelled seconds and FLOPs of the repeats in `schedule`: what it costs above the program itself.
struct RecomputeTotals {
  double cost_s = 0;
  double flops = 0;
  int32_t num_ops = 0;
};
RecomputeTotals CountRecompute(const StepProgram& program, std::span<const OpId> schedule);

// Bytes that no schedule avoids. The largest working set of a single op: its temporary inputs, outputs and
// workspace, less what in-place pairs and may_share can pass on at best, and the values that must be held across
// its first run because they can't be made again. Or what getting there takes: of the inputs that must be live at
// once, one was made last, next to the others; the least over which that was, a few steps back. A fixed amount of work:
// in large programs the ops of most bytes and the largest of such values alone.
struct LowerBound {
  int64_t bytes = 0;
  OpId op = kNoOp;                   // the op that forces it; kNoOp for an empty program
};
LowerBound ComputeLowerBound(const StepProgram& program);

}  // namespace coopjax
