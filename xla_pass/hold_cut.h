// Which values to hold across a step of an order, and which to make again: a minimum cut.
//
// Ops before the step may be run again after it. Whatever the later ops read must be held across the
// step or made again, and what is made again needs its own inputs held or made again. With a price
// per byte held, the cheapest choice is a minimum cut (value -> its producer: the price of holding it;
// producer -> sink: the cost of running it again), solved exactly. The prices of steps are Lagrange
// multipliers of "live bytes <= budget": they rise where a choice is over the budget and fall where it is
// under, so that successive choices close in on the budget at every step.
//
// What differs from min-cut partitioners: no list of recomputable ops, real costs, and prices per step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "step_program.h"

namespace coopjax {

class HoldCut {
 public:
  // `order` is valid and has no repeats; ops at steps >= `cut_step` come late. `program` must outlive this.
  HoldCut(const StepProgram& program, std::span<const OpId> order, Step cut_step);

  // The schedule that holds and remakes at least price, the price of step t being price[t] seconds
  // per byte. A recompute runs as late as its first reader allows and serves all later ones.
  Schedule Choose(std::span<const double> price) const;

 private:
  std::vector<uint8_t> OpsToRepeat(std::span<const double> price) const;

  const StepProgram& program_;
  std::vector<OpId> order_;
  Step cut_step_;
  std::vector<Step> hold_from_;     // per value: the last step before the cut that touches it
  std::vector<Step> needed_at_;     // per value: about when it is needed late; -1: never
  std::vector<uint8_t> is_early_;   // per op
  std::vector<ValueId> wanted_;     // early values that late ops read
  std::vector<uint8_t> may_hold_;   // per value: not overwritten before the cut
  std::vector<Step> step_of_;       // per op
  Csr readers_;                     // per value
};

}  // namespace coopjax
