// FastSA: simulated annealing of a sequence in which ops may repeat (Imanishi, Xu, Takagi, Wang, Castillo, "A
// fast heuristic to optimize time-space tradeoff for large models", NeurIPS 2023).
//
// The sequence lies in a row of mostly empty slots. A mutation adds a node to an empty slot, removes one, or
// rotates one to an empty slot; one that keeps the sequence valid is accepted by Metropolis' rule on
//   f = max(budget, peak) * cost.
// Stage 1 anneals grouped nodes (planners/fastsa/node_groups.h) and stops as soon as the budget is met; stage 2 takes
// the groups apart and removes what they compute for nothing, from the temperature that stage 1 would end at (App.
// D.4), 1e-7 of the initial objective. Hotter, or from the temperature at which stage 1 was stopped, half of the budget
// is reached at less cost, but under tight budgets f falls as the budget is left, which is for good: what is best then
// is what stage 2 started from. Two switches of ours go together against that, `stage2_temperature` and `stays_within`.
//
// What the paper leaves open and is chosen here: the three kinds of mutation are equally likely; the outcome
// is the best sequence seen (feasible before cheap before small), not the last. What differs:
//  * live bytes are those of program/step_program.h, with in-place pairs, sharing and control edges; ops that may
//    not run twice only rotate;
//  * a budget below what no schedule avoids (ComputeLowerBound) is raised to that;
//  * where groups miss the budget (their bytes are an upper bound; in small programs they are coarse, and
//    stage 2 does not find back), both stages run again on ops, hotter;
//  * a mutation that its bytes at the present peak alone get rejected is not applied, which changes no outcome.
// The paper's log-add-exp tree and its offloading are left out.
//
// Known weaknesses: uniform proposals rarely hit what pays in a long sequence, so a plan that is good already
// is hardly improved; the objective may prefer a cheap sequence to a feasible one; addresses are not seen.
#pragma once

#include <cstdint>
#include <span>

#include "base/allowance.h"
#include "program/step_program.h"

namespace coopjax {

struct AnnealOptions {
  bool group = true;  // stage 1 on grouped nodes rather than on ops
  bool retry_ungrouped = true;  // both stages again on ops if groups miss the budget
  bool order_only = false;  // rotate only: an order without repeats of small peak
  uint64_t seed = 0;
  int64_t num_slots = int64_t{1} << 20;  // rounded up to a power of two of at least 4 per step
  int64_t stage1_iterations = 20'000'000;  // at most; 0: stage 2 alone
  int64_t stage2_iterations = 2'000'000;
  double start_temperature = 1e-3;  // of the first stage, over its initial objective
  double stage2_temperature = 0;  // of the second stage, over its initial objective; 0: where the first would end
  bool stays_within = false;  // stage 2 accepts nothing above the budget once it is under it
  double cooling = 1e-4;  // a stage's last temperature over its first
  int64_t max_steps = kDefaultSteps;
};

struct AnnealCounters {
  int64_t tried = 0;  // mutations proposed
  int64_t legal = 0;  // that would have kept the sequence valid
  int64_t accepted = 0;
  int32_t num_groups = 0;  // nodes of stage 1 (0: it did not run)
};

struct AnnealResult {
  Schedule schedule;
  bool is_feasible = false;
  bool is_cut_short = false;
  AnnealCounters counters;
};

// `start` is a valid schedule. If it has repeats, it is polished by stage 2 alone, from `start_temperature`
// on. The result is the start itself if nothing better was found, and where the budget is not reached, the
// smallest peak seen.
AnnealResult Anneal(const StepProgram& program, std::span<const OpId> start, int64_t budget_bytes,
                    const AnnealOptions& options);

}  // namespace coopjax
