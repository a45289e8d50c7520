// Where the instructions of a computation stand once a Schedule is carried into it, and which production each of them
// reads: the rules of bridge/transform.h, without a byte written. A search that judges thousands of orders needs no
// more.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hlo/module.h"
#include "program/step_program.h"

namespace coopjax {

// The productions of a computation's instructions in the order that they run. The first one of an instruction is the
// original, others are clones.
struct Placement {
  std::vector<int32_t> instructions;   // [production] an index into HloModule::instructions: itself, or its original
  std::vector<uint8_t> is_clone;       // [production]
  Csr operands;                        // [production] productions, each before it
  int32_t root = -1;                   // a production
  int32_t num_clones = 0;              // of ops; cloned glue is not counted
};

// Empty, or why the schedule can't be carried out, in one sentence. `computation` is an index into
// HloModule::computations, not kEntryComputation; `op_instruction_ids` as in ApplySchedule.
std::string PlaceSchedule(const hlo::Module& module, int32_t computation,
                          const std::vector<int64_t>& op_instruction_ids, const Schedule& schedule,
                          Placement* placement);

}  // namespace coopjax
