// Anti-dependences: does a module's schedule overwrite a buffer that is still to be read?
//
// Copy insertion has run before a scheduled module is seen, so nothing repairs a schedule in which a
// reader comes after an in-place writer: the program silently computes with garbage. This check finds
// such readers. It works from the aliasing rules of HLO alone (see hlo_dataflow_analysis and
// alias_info in XLA):
//
//  * Some instructions forward buffers (bitcast, tuple, get-tuple-element, the done half of an
//    asynchronous pair, a while loop's elements that its body hands on unchanged).
//  * Some values must share one buffer: an in-place operand and its output, a loop's initial value,
//    state and result, a call's operands and parameters, an aliased parameter and output.
//  * Where two values share a buffer, every reader of the earlier one must run no later than the
//    instruction that writes the later one. Outputs are read at the end of the program.
//  * The same holds inside whatever a loop, a branch or a call runs, where parameters are there from the
//    start and the root is read at the end: a loop's body reads its state before it writes the next
//    iteration's into the same buffers.
//
// Where the rules leave doubt (an opcode without a known rule, a computation with two callers), the
// check errs towards a fault. Linear in the module's size times the depth of its loops, but for tuples
// (elements x uses).
#pragma once

#include <string>

#include "hlo/module.h"

namespace coopjax::verify {

// Empty when no buffer of the entry, nor of what it runs, is overwritten too early; otherwise one sentence.
std::string CheckBufferOrder(const hlo::Module& module);

}  // namespace coopjax::verify
