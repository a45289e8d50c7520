// Which values to hold across a step of an order, and which to make again: a minimum cut.
//
// Ops before the step may be run again after it. Whatever the later ops read must be held across the
// step or made again, and what is made again needs its own inputs held or made again. With a price
// per byte held, the cheapest choice is a minimum cut (value -> its producer: the price of holding it;
// producer -> sink: the cost of running it again), solved exactly. The prices of steps are Lagrange
// multipliers of "live bytes <= budget": they rise where a choice is over the budget and fall where it is
// under, so that successive choices close in on the budget at every step.
//
// One step is enough for a forward and a backward pass; unrolled training steps have one each, and are
// cut one by one. What differs from min-cut partitioners (PyTorch's): no list of recomputable ops, real
// costs, prices per step, and an order of the recomputes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/step_program.h"

namespace coopjax {

class HoldCut {
 public:
  // `order` is valid and has no repeats; each step of `cut_steps`, ascending, separates ops that come
  // early from those at or after it. `program` must outlive this.
  HoldCut(const StepProgram& program, std::span<const OpId> order, std::span<const Step> cut_steps);

  // The schedule that holds and remakes at least price, the price of step t being price[t] seconds
  // per byte. A recompute runs as late as its first reader allows and serves all later ones.
  Schedule Choose(std::span<const double> price) const;

 private:
  // What is known of one cut.
  struct Cut {
    Step step = 0;
    std::vector<ValueId> wanted;      // early values that late ops read
    std::vector<Step> hold_from;      // per value: the last early step that touches it
    std::vector<Step> needed_at;      // per value: about when it is needed late; -1: never
    std::vector<uint8_t> may_hold;    // per value: not overwritten early
  };
  Cut CutAt(Step step) const;
  std::vector<OpId> OpsToRepeat(const Cut& cut, std::span<const double> price_before) const;

  const StepProgram& program_;
  const std::vector<OpId> order_;
  const Csr readers_;                 // per value
  std::vector<uint8_t> may_repeat_;   // per op; in-place writers are left to other means
  std::vector<Step> step_of_;         // per op
  std::vector<Cut> cuts_;
};

}  // namespace coopjax
