"""Several planners on several orders; the cheapest plan that the validator accepts."""

import dataclasses
import time
from collections.abc import Iterator

import numpy as np

from coopjax import _core
from coopjax.errors import InvalidPlanError
from coopjax.planners.base import PlannerResult
from coopjax.planners.coop import CoopPlanner
from coopjax.planners.peak import PeakPlanner
from coopjax.program.step_program import StepProgram
from coopjax.program.validate import validate


@dataclasses.dataclass(frozen=True)
class AutoPlanner:
  """Never worse than any planner it runs: feasible before cheap, cheap before small.

  First the peak planner as it comes, which is usually the best already; then the other orders, quickly, and the winner
  among them thoroughly; then Coop, its plan polished by the peak planner, and the other potential.

  Attributes:
    screening_trials: moves tried per order to find out which is worth more.
  """

  screening_trials: int = 30_000

  def plan(
    self, program: StepProgram, budget_bytes: int, *, time_limit_s: float = 10.0, order: np.ndarray | None = None,
  ) -> PlannerResult:
    """See :class:`coopjax.planners.base.Planner`. The first planner runs whatever the limit."""
    start = time.perf_counter()
    results = []
    for result in self._results(program, budget_bytes, order, start + time_limit_s):
      results.append(result)
      if result.is_feasible and result.num_recomputed == 0 or time.perf_counter() - start > time_limit_s:
        break
    for result in sorted(results, key=_rank):
      report = validate(program, result.schedule, claimed_peak_bytes=result.peak_live_bytes,
                        claimed_cost_s=result.recompute_cost_s)
      if report.is_valid:
        return dataclasses.replace(result, seconds=time.perf_counter() - start)
    raise InvalidPlanError(f"no planner made a valid plan; the last one: {report}")

  def _results(
    self, program: StepProgram, budget_bytes: int, order: np.ndarray | None, deadline: float,
  ) -> Iterator[PlannerResult]:
    def run(planner, start_order: np.ndarray) -> PlannerResult:
      time_left_s = max(deadline - time.perf_counter(), 0.0)
      return planner.plan(program, budget_bytes, time_limit_s=time_left_s, order=start_order)

    default = _core.schedule_for_memory(program.core) if order is None else order
    first = run(PeakPlanner(), default)
    yield first
    winner = first
    for other in _other_orders(program, default) if order is None else ():
      screened = run(PeakPlanner(num_price_rounds=6, swap=False, max_trials=self.screening_trials), other)
      winner = min(winner, screened, key=_rank)
      yield screened
    if budget_bytes < _core.lower_bound(program.core)[0]:
      return  # no plan gets there: the smallest peak of all orders will do
    if winner is not first:
      yield run(PeakPlanner(), winner.order)
    coop = run(CoopPlanner(), default)
    yield coop
    if coop.is_feasible:
      yield dataclasses.replace(run(PeakPlanner(), coop.schedule), order=default)
    yield run(PeakPlanner(exponent=1.0), winner.order)


def _other_orders(program: StepProgram, default: np.ndarray) -> list[np.ndarray]:
  orders = {default.tobytes(): default}
  for rule in range(_core.NUM_ORDER_RULES):
    order = _core.schedule_by_rule(program.core, rule)
    orders.setdefault(order.tobytes(), order)
  return list(orders.values())[1:]


def _rank(result: PlannerResult) -> tuple[int, float, int]:
  excess_bytes = max(0, result.peak_live_bytes - result.budget_bytes)
  return excess_bytes, result.recompute_cost_s, result.peak_live_bytes
