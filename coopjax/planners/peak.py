"""Greedy rematerialization on an exact model of live bytes; the algorithm is in ``xla_pass/peak_planner.h``."""

import dataclasses
import time

import numpy as np

from coopjax import _core
from coopjax.planners.base import PlannerResult
from coopjax.program.step_program import StepProgram


@dataclasses.dataclass(frozen=True)
class PeakPlanner:
  """Lowers live bytes above the budget by the moves that save most per modelled second.

  Attributes:
    exponent: of the excess bytes in the potential: 1 counts every byte alike, 2 goes for the peak first.
    merge_repeats: whether one recompute may serve reads that had recomputes of their own.
    clean_up: whether repeats that the budget does not need are taken out at the end.
  """

  exponent: float = 2.0
  merge_repeats: bool = True
  clean_up: bool = True

  def plan(
    self, program: StepProgram, budget_bytes: int, *, time_limit_s: float = 10.0, order: np.ndarray | None = None,
  ) -> PlannerResult:
    """See :class:`coopjax.planners.base.Planner`; ``order`` is the order to start from, the least peak by default."""
    start = time.perf_counter()
    order = _core.schedule_for_memory(program.core) if order is None else order
    found = _core.plan_peak(
      program.core, order, budget_bytes, exponent=self.exponent, merge_repeats=self.merge_repeats,
      clean_up=self.clean_up, time_limit_s=time_limit_s,
    )
    return PlannerResult.of(
      program, found["schedule"], "peak", budget_bytes, time.perf_counter() - start, trials=found["trials"],
      moves=found["moves"], removals=found["removals"], timed_out=found["timed_out"],
    )
