"""Rematerialization of large programs in near-linear time: see ``xla_pass/planners/segments/planner.h``."""

import dataclasses

import numpy as np

from coopjax import _core
from coopjax.planners.base import PlannerResult, counters_of
from coopjax.planners.effort import DEFAULT_STEPS
from coopjax.program.step_program import StepProgram
from coopjax.program.stopwatch import Stopwatch


@dataclasses.dataclass(frozen=True)
class SegmentPlanner:
  """Holds or remakes segment by segment, by minimum cuts at a common price; equal segments are solved once.

  For programs of up to a million ops. Proposals for more than the budget, the bare order among them, are then lowered
  to it by exact single moves. Starts from the order of least peak unless one is given.

  Attributes:
    num_rounds: of bisection on the price of a byte, per hill of live bytes and level.
    max_levels: how often what is remade may be planned anew, as a program of its own.
    clean_up: whether repeats that the budget has room for are taken out at the end.
    max_polished_ops: longer programs are not polished.
    max_trials: single moves tried in polishing.
    stop_at_cost_s: a plan whose repeats cost no more is good enough.
  """

  num_rounds: int = 14
  max_levels: int = 6
  clean_up: bool = True
  max_polished_ops: int = 2_000_000
  max_trials: int = 100_000_000
  stop_at_cost_s: float = 0.0

  def plan(
    self,
    program: StepProgram,
    budget_bytes: int,
    *,
    max_steps: int = 6 * DEFAULT_STEPS,
    order: np.ndarray | None = None,
  ) -> PlannerResult:
    """See :class:`coopjax.planners.base.Planner`; ``order`` has no repeats."""
    stopwatch = Stopwatch()
    order = _core.schedule_for_memory(program.core) if order is None else order
    options = dataclasses.asdict(self)
    found = _core.plan_segments(program.core, order, budget_bytes, max_steps=max_steps, **options)
    return PlannerResult.of(
      program, found["schedule"], "segments", budget_bytes, stopwatch.seconds, order, **counters_of(found)
    )
