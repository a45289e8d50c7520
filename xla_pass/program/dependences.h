// What a StepProgram implies between its ops, indexed for planners.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/step_program.h"

namespace coopjax {

// True when a schedule may repeat `op`: it says so itself, makes no output (an output has one
// allocation, which exists until the end) and overwrites nothing that can't be made anew.
bool MayRunTwice(const StepProgram& program, OpId op);

// The ops that read each value, by id.
Csr ValueReaders(const StepProgram& program);

// Per op, the values that must be there when it runs: its inputs, and what it overwrites without reading
// it (the buffer of a donated parameter).
Csr OpTouches(const StepProgram& program);
// The same but for what is there anyway and nobody overwrites, such as a weight that every step reads.
Csr OpTouchesOfMade(const StepProgram& program);

// The ops that must run before each op when none is repeated: producers of what it touches, control
// predecessors and, for an in-place writer, the other readers of what it overwrites.
Csr OpPredecessors(const StepProgram& program);

// The ops whose first run must precede each op's whatever is repeated: a reader of an overwritten value
// may come later where the value can be made anew.
Csr FirstRunPredecessors(const StepProgram& program);

// The reverse of lists of ids below `num_rows`: row i holds the rows of `lists` that contain i.
Csr Transpose(const Csr& lists, int32_t num_rows);

// `program.may_share` by op, without pairs that can never act (in-place inputs and outputs already
// have their storage, non-temporary inputs take no budget).
class ShareIndex {
 public:
  explicit ShareIndex(const StepProgram& program);
  std::span<const MayShare> operator[](OpId op) const {
    return {shares_.data() + offsets_[op], static_cast<size_t>(offsets_[op + 1] - offsets_[op])};
  }

 private:
  std::vector<int32_t> offsets_;
  std::vector<MayShare> shares_;
};

}  // namespace coopjax
