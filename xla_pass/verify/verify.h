// Proves, from the outgoing bytes alone, that a transformed module computes what it came as.
//
// The proof shares nothing with what it judges but hlo/, the parser of the bytes, and asks for:
//
//  * Form: ids unique, everything referred to exists and stands before its user, each sequence lists
//    each instruction of its computation once with operands and control predecessors first (the
//    parser's checks); names of clones unique; one caller for every cloned computation.
//  * The same program: nothing differs but added computations and those that the entry runs, by way of
//    loops, conditionals and calls, itself included. Each of these holds every original instruction,
//    equal to the byte but for operands. What follows is asked of each that differs.
//  * Clones: an instruction with a new id is named "<original>.coop_remat<n>" and equals that original
//    but for id, name, operands, control predecessors and called computations. Called computations
//    equal the original's up to ids and names, their sequences included.
//  * Data: every operand is the original's operand or a clone of it, and so is the root.
//  * Nothing is cloned that may not run twice: only pure array operations and fusions of them that
//    write no operand in place; nor after a control successor of the original has run.
//  * Order of effects: collectives, stateful random numbers and whatever else touches the world keep
//    their order among each other (verify/effects.h, a table that no planner reads).
//  * Asynchronous pairs: what ran between a start and its done still does (hlo/async_distance.h).
//  * Anti-dependences: no buffer is overwritten before its last reader, clones included, the state of a
//    loop by the next iteration's included (verify/buffer_order.h).
#pragma once

#include <string>

#include "hlo/module.h"

namespace coopjax::verify {

// Empty when the proof goes through; otherwise one sentence on the first step that fails. `after` is
// parsed from the very bytes that would be handed to XLA.
std::string VerifyTransform(const hlo::Module& before, const hlo::Module& after);

}  // namespace coopjax::verify
