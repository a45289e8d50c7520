"""Rematerialization on an exact model of live bytes; the algorithm is in ``xla_pass/planners/peak/planner.h``."""

import dataclasses

import numpy as np

from coopjax import _core
from coopjax.planners.base import PlannerResult, counters_of
from coopjax.planners.effort import DEFAULT_STEPS
from coopjax.program.step_program import StepProgram
from coopjax.program.stopwatch import Stopwatch


@dataclasses.dataclass(frozen=True)
class PeakPlanner:
  """Proposes by minimum cut what to hold and what to remake, then lowers live bytes to the budget by exact moves.

  Attributes:
    exponent: of the excess bytes in the potential: 1 counts every byte alike, 2 goes for the peak first.
    num_price_rounds: proposals by minimum cut; 0 lowers the bare order alone.
    merge_repeats: whether one recompute may serve reads that had recomputes of their own.
    clean_up: whether repeats that the budget does not need are taken out at the end.
    swap: whether needed repeats are tried to be replaced by cheaper ones.
    max_trials: moves tried, which bounds the effort the same on every machine; half as many again where the budget
      can't be reached, to find the smallest peak that can.
  """

  exponent: float = 2.0
  num_price_rounds: int = 24
  merge_repeats: bool = True
  clean_up: bool = True
  swap: bool = True
  max_trials: int = 1_000_000

  @classmethod
  def greedy(cls) -> "PeakPlanner":
    """The plain greedy: while live bytes stand above the budget, the drop that lowers most of them per second."""
    return cls(exponent=1.0, num_price_rounds=0, merge_repeats=False, clean_up=False, swap=False)

  def plan(
    self,
    program: StepProgram,
    budget_bytes: int,
    *,
    max_steps: int = DEFAULT_STEPS,
    order: np.ndarray | None = None,
  ) -> PlannerResult:
    """See :class:`coopjax.planners.base.Planner`; ``order`` is the one of least peak by default.

    It may have repeats: then it is a plan to lower further or to clean up, and no proposals are made.
    """
    stopwatch = Stopwatch()
    order = _core.schedule_for_memory(program.core) if order is None else order
    found = _core.plan_peak(program.core, order, budget_bytes, max_steps=max_steps, **dataclasses.asdict(self))
    return PlannerResult.of(
      program, found["schedule"], "peak", budget_bytes, stopwatch.seconds, order, **counters_of(found)
    )
