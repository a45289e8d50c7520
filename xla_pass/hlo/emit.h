// The writing half of hlo/module.h: a module with some instructions and computations rewritten or added.
//
// Fields that are edited are written anew at the place where their number belongs, all others are copied as they came.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hlo/module.h"

namespace coopjax::hlo {

// What a clone or a rewritten instruction changes; every other field is copied from `original.raw`.
struct InstructionEdit {
  int64_t id = 0;
  std::string name;
  std::vector<int64_t> operand_ids;
  std::vector<int64_t> control_predecessor_ids;
  std::vector<int64_t> called_computation_ids;
};
// That changes nothing.
InstructionEdit AsItIs(const Module& module, const Instruction& instruction);
std::string EmitInstruction(const Instruction& original, const InstructionEdit& edit);

// The module with some computations' instruction lists replaced or added (each the serialized
// instructions, in order) and with new schedules. What is not named is emitted byte for byte.
struct ComputationEdit {
  int32_t computation = -1;                 // index of the computation rewritten, or cloned from
  bool is_clone = false;                    // a new computation, inserted just before `insert_before`
  int64_t new_id = 0;                       // clones only
  std::string new_name;                     // clones only
  int64_t new_root_id = -1;                 // -1: unchanged
  std::vector<std::string> instructions;    // serialized HloInstructionProtos; string copies
  std::vector<int64_t> sequence;            // empty: this computation has no entry in the schedule
  int32_t insert_before = -1;               // clones only: index of an original computation
};
std::string EmitModule(const Module& module, const std::vector<ComputationEdit>& edits);

}  // namespace coopjax::hlo
