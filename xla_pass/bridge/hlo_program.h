// A computation of a scheduled module as a StepProgram: the entry, or what runs inside a loop, a
// conditional or a call.
//
// Ops are the computation's instructions that are not glue (parameter, constant, bitcast, tuple,
// get-tuple-element, optimization barrier, add-dependency, after-all) nor removed with the barriers
// (hlo::Graph::is_dropped), numbered by their position in the given sequence. Values are buffers: one
// per array that an op makes, however many tuples and bitcasts show it.
//
//  * A value whose buffer an output or a donated parameter owns is an OUTPUT: it takes nothing from
//    the temporary budget. Inside a loop, a branch or a call so is a value in the caller's buffers: what
//    comes in by the parameters (a loop's state) or leaves by the root.
//  * `in_place_of` names the value that had the buffer before: the operand of an in-place op, a loop's
//    initial value, a donated parameter.
//  * An element that a loop hands through unchanged is no new value.
//  * A parameter that the root's element overwrites (the state of a loop) is read before that, as a
//    donated one is.
//  * An op's cost is that of all its runs: inside a loop, times the trip counts of the loops around it.
//    A loop whose count XLA does not know counts once, here and in the loop's own cost; so does every
//    branch of a conditional.
//  * The workspace of a loop, call or conditional is the peak of the values that live only inside.
//  * Who reads an element of an optimization barrier depends by control on what makes all of them, who reads
//    what an op hands on (an asynchronous done, a loop) on that op.
//  * Ops with effects (collectives, stateful random numbers) keep their order by control.
//  * What runs between an asynchronous start and its done follows the one and precedes the other
//    (hlo/async_distance.h).
//  * Values outside the device's main memory take no bytes. What makes them has effects, unless that is
//    the host's.
//  * The 8-byte-per-element tables of tuples are left out; XLA allocates them once, for good.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bridge/cost.h"
#include "buffers/analysis.h"
#include "hlo/module.h"
#include "program/step_program.h"

namespace coopjax {

struct HloProgram {
  StepProgram program;
  std::vector<int64_t> op_instruction_ids;
  std::vector<std::string> op_names;      // instruction names
  std::vector<std::string> op_kinds;      // opcodes; see OpKind
  std::vector<std::string> op_scopes;     // metadata.op_name: the name-scope path
  std::vector<std::string> op_sources;    // "file:line", or empty
  std::vector<std::string> value_types;   // "f32[4,128]"
};

// What is wrong with the program that was built (see CheckProgram), in one sentence, or an empty string.
// `computation` is an index into HloModule::computations.
std::string BuildHloProgram(const HloAnalysis& analysis, const Roofline& roofline, HloProgram* result,
                            int32_t computation = hlo::kEntryComputation);

}  // namespace coopjax
