"""Several orders and planners; the cheapest plan that the validator accepts."""

import dataclasses
import time

from coopjax import _core
from coopjax.planners.base import PlannerResult
from coopjax.planners.peak import PeakPlanner
from coopjax.program.step_program import StepProgram


@dataclasses.dataclass(frozen=True)
class AutoPlanner:
  """Never worse than any planner it runs: feasible before cheap, cheap before small."""

  def plan(self, program: StepProgram, budget_bytes: int, *, time_limit_s: float = 10.0) -> PlannerResult:
    """See :class:`coopjax.planners.base.Planner`."""
    start = time.perf_counter()
    best = None
    for order in (program.schedule, _core.schedule_for_memory(program.core)):
      for exponent in (2.0, 1.0):
        if best is not None and time.perf_counter() - start > time_limit_s:
          break
        found = PeakPlanner(exponent=exponent).plan(program, budget_bytes, time_limit_s=time_limit_s, order=order)
        if best is None or _rank(found) < _rank(best):
          best = found
    return dataclasses.replace(best, seconds=time.perf_counter() - start)


def _rank(result: PlannerResult) -> tuple:
  excess = max(0, result.peak_live_bytes - result.budget_bytes)
  return excess, result.recompute_cost_s, result.peak_live_bytes
