"""Several planners on several orders, then improvement until a lower bound, the steps or lack of progress ends it."""

import contextlib
import dataclasses
import gc
import logging
from collections.abc import Callable, Iterator

import numpy as np

from coopjax import _core, progress
from coopjax.errors import InvalidPlanError, log
from coopjax.planners.base import Planner, PlannerResult, counters_of, first_runs
from coopjax.planners.coop import CoopPlanner
from coopjax.planners.effort import DEFAULT_STEPS, Allowance
from coopjax.planners.fastsa import FastSAPlanner
from coopjax.planners.peak import PeakPlanner
from coopjax.planners.segments import SegmentPlanner
from coopjax.program.step_program import StepProgram
from coopjax.program.stopwatch import Stopwatch
from coopjax.program.validate import validate

_log = logging.getLogger("coopjax.planners")
_POLISHING = 1e-3  # FastSA's first temperature, over the objective: one op of a thousand
_FLIPS_PER_OP = 800
_FAR_BEHIND = 1.25  # a screened plan that costs so much more than the best won't win
_WORST_START = 1.2  # over the smallest peak of all orders: what is not worth starting from
_TO_THE_BUDGET = 5  # of the first planner's steps, one: to hold the budget that it missed
_NEAR_SMALLEST = 1.01  # peaks that count as the smallest where the budget can't be reached


@dataclasses.dataclass(frozen=True)
class Incumbent:
  """The best plan so far, as the log of this module tells it at level DEBUG.

  Attributes:
    overhead: its recompute cost over the program's own cost.
    least_overhead: what no plan goes below.
  """

  overhead: float
  least_overhead: float

  def __str__(self) -> str:
    return (
      f"incumbent {self.overhead:+.2%}, bound {self.least_overhead:+.2%}, "
      f"gap {max(self.overhead - self.least_overhead, 0.0):.2%}"
    )


@dataclasses.dataclass(frozen=True)
class AutoPlanner:
  """Never worse than any planner it runs, and done as soon as nothing is left to gain.

  First the segment planner, for a plan at once, and the peak planner as it comes, which is often optimal already: a
  lower bound on the recompute cost (``xla_pass/planners/bounds/cost_bound.h``) tells. Else the other orders, quickly,
  each plan improved by exchanging many moves at once (``xla_pass/planners/improve/exchange_search.h``), and the best
  two thoroughly; Coop, its plan polished by the peak planner; FastSA from scratch, of small programs in their own
  order, too, polished likewise; at last the best plan is improved by annealing, by large-neighbourhood search
  (``xla_pass/planners/improve/neighbourhood_search.h``), the longer the wider the gap to the bound, and by exchanges
  again. Large programs get the segment planner and, where it misses the budget, what the peak planner makes of its
  plan.

  Where the budget can't be reached, the plan is the cheapest of those within 1% of the smallest peak that was seen: the
  last percent often costs as much as the whole program, and nobody asked for that.

  Attributes:
    screening_trials: moves tried per order to find out which is worth more.
    search_work: steps and moves that the large-neighbourhood search may look at per percent of gap.
    exchange_work: flips and moves that each search for exchanges may try, at most.
    anneal_iterations: mutations that each stage of annealing tries.
    peak_work: moves that one run of the peak planner may try, times the program's ops.
    least_gap: of the program's own cost: what is not worth improving for.
    num_seeds: how often a small program is annealed from scratch until the budget is reached.
    small_ops: programs with at most so many ops are small.
    large_ops: programs with more are planned in segments alone.
  """

  screening_trials: int = 100_000
  search_work: int = 1_000_000
  exchange_work: int = 3_000_000
  anneal_iterations: int = 1_000_000
  peak_work: int = 2_000_000_000
  least_gap: float = 5e-4
  num_seeds: int = 3
  small_ops: int = 300
  large_ops: int = 20_000

  def plan(
    self,
    program: StepProgram,
    budget_bytes: int,
    *,
    max_steps: int = DEFAULT_STEPS,
    order: np.ndarray | None = None,
  ) -> PlannerResult:
    """See :class:`coopjax.planners.base.Planner`. The first planner runs whatever the allowance."""
    stopwatch = Stopwatch()
    default = _core.schedule_for_memory(program.core) if order is None else order
    search = _Search(program, budget_bytes, Allowance(max_steps), self.least_gap)
    self._start(search, default)
    if not search.is_done and search.bound_s < np.inf:
      self._improve(search, default, fixes_order=order is not None)
    is_small = program.num_ops <= self.large_ops
    if is_small and not search.best.is_feasible and not search.allowance.is_over:
      self._settle(search, default, fixes_order=order is not None)
    return dataclasses.replace(search.validated(), seconds=stopwatch.seconds)

  def _start(self, search: "_Search", default: np.ndarray) -> None:
    max_steps = search.allowance.left  # the bound's are not the first plan's
    is_over = _core.live_bytes(search.program.core, default).max(initial=0) > search.budget_bytes
    good_enough_s = search.bound_s + self.least_gap * search.total_s if is_over else 0.0
    segments = search.run(SegmentPlanner(stop_at_cost_s=good_enough_s), default, max_steps=max_steps)
    if search.program.num_ops > self.large_ops:
      if not segments.is_feasible:  # for what is left of the excess, in any case: of a plan that was cut short, little
        steps = max(search.allowance.left, max_steps // _TO_THE_BUDGET)
        search.run(PeakPlanner(swap=False), segments.schedule, order=default, max_steps=steps)
    elif not search.is_done:
      hasty = PeakPlanner(swap=False, max_trials=self.screening_trials)
      search.run(hasty if search.is_hopeless else self._thorough(search), default)

  def _flips(self, search: "_Search") -> int:
    return min(self.exchange_work, _FLIPS_PER_OP * search.program.num_ops)

  def _thorough(self, search: "_Search", **options) -> PeakPlanner:
    return PeakPlanner(
      max_trials=min(PeakPlanner.max_trials, self.peak_work // max(search.program.num_ops, 1)), **options
    )

  def _improve(self, search: "_Search", default: np.ndarray, *, fixes_order: bool) -> None:
    """Runs stage after stage until one of them ends the search."""
    if search.program.num_ops > self.large_ops:
      return
    for _ in self._stages(search, default, fixes_order):
      if search.is_done:
        return

  def _stages(self, search: "_Search", default: np.ndarray, fixes_order: bool) -> Iterator[None]:
    screened = [search.best]
    for other in [] if fixes_order else _other_orders(search.program, default):
      screened.append(search.run(PeakPlanner(num_price_rounds=6, swap=False, max_trials=self.screening_trials), other))
      yield
    for result in _worth_exchanging(screened, search):
      search.improve(_core.search_exchanges, result, self._flips(search))
      yield
    for result in _promising(screened, search):
      if result is not screened[0]:
        search.run(self._thorough(search), result.order)
        yield
      search.run(self._thorough(search, exponent=1.0), result.order)
      yield
    coop = search.run(CoopPlanner(), default)
    yield
    if coop.is_feasible:
      search.run(self._thorough(search), coop.schedule, order=default)
      yield
    scratch = FastSAPlanner.improved(stage1_iterations=self.anneal_iterations, stage2_iterations=self.anneal_iterations)
    is_small = search.program.num_ops <= self.small_ops
    if is_small and not fixes_order:
      search.run(scratch, search.program.schedule)
      yield
    for seed in range(self.num_seeds) if is_small else (0,):
      scratch = dataclasses.replace(scratch, seed=seed)
      annealed = search.run(scratch, default if fixes_order else first_runs(search.best.schedule))
      yield
      if annealed.is_feasible:
        search.run(self._thorough(search), annealed.schedule, order=annealed.order)
        yield
        break
    if search.best.is_feasible:
      anneal = FastSAPlanner(num_slots=0, start_temperature=_POLISHING, stage2_iterations=self.anneal_iterations)
      search.run(anneal, search.best.schedule, order=search.best.order)
      yield
      search_work = int(self.search_work * min(100 * search.gap, 5.0))
      search.improve(_core.search_neighbourhood, search.best, search_work)
      yield
      search.improve(_core.search_exchanges, search.best, self._flips(search))

  def _settle(self, search: "_Search", default: np.ndarray, *, fixes_order: bool) -> None:
    """The budget is out of reach: plans for the smallest peak that is not, and a little above it."""
    nested = _Search(search.program, int(_NEAR_SMALLEST * search.smallest_bytes), search.allowance, self.least_gap)
    self._start(nested, default)
    if not nested.is_done:
      dataclasses.replace(self, small_ops=0)._improve(nested, default, fixes_order=fixes_order)
    search.results += [search.rebudgeted(result) for result in nested.results]


class _Search:
  """What was found so far for one program and budget."""

  def __init__(self, program: StepProgram, budget_bytes: int, allowance: Allowance, least_gap: float):
    self.program, self.budget_bytes, self.allowance, self.least_gap = program, budget_bytes, allowance, least_gap
    self.total_s = float(program.op_cost_s.sum())
    self.is_hopeless = budget_bytes < _core.lower_bound(program.core)[0]
    self.results: list[PlannerResult] = []
    self._bound_s: float | None = None

  @property
  def best(self) -> PlannerResult:
    return min(self.results, key=self.rank)

  @property
  def smallest_bytes(self) -> int:
    return min(result.peak_live_bytes for result in self.results)

  @property
  def bound_s(self) -> float:
    """Seconds of recompute that no schedule avoids; inf where none holds the budget."""
    if self._bound_s is None:
      self._bound_s = np.inf if self.is_hopeless else _core.cost_bound(self.program.core, self.budget_bytes)
    return self._bound_s

  @property
  def gap(self) -> float:
    """What is left to gain at best, over the program's own cost."""
    return (self.best.recompute_cost_s - self.bound_s) / self.total_s if self.total_s > 0 else 0.0

  @property
  def is_done(self) -> bool:
    best = self.best
    return (best.is_feasible and (best.num_recomputed == 0 or self.gap <= self.least_gap)) or self.allowance.is_over

  def run(
    self, planner: Planner, start: np.ndarray, *, order: np.ndarray | None = None, max_steps: int | None = None
  ) -> PlannerResult:
    """Runs a planner from ``start``; ``order`` is what ``start`` was made from, if it has repeats."""
    max_steps = self.allowance.left if max_steps is None else max_steps
    result = planner.plan(self.program, self.budget_bytes, max_steps=max_steps, order=start)
    if order is not None:
      result = dataclasses.replace(result, order=order)
    self._keep(result)
    return result

  def improve(self, improver: Callable[..., "_core.SearchResult"], result: PlannerResult, max_work: int) -> None:
    """Runs one of the core's searches from a plan on."""
    stopwatch = Stopwatch()
    found = improver(
      self.program.core,
      result.schedule,
      self.budget_bytes,
      max_work=max_work,
      stop_at_cost_s=self.bound_s,
      max_steps=self.allowance.left,
    )
    seconds = stopwatch.seconds
    self._keep(
      PlannerResult.of(
        self.program, found["schedule"], "auto", self.budget_bytes, seconds, result.order, **counters_of(found)
      )
    )

  def _keep(self, result: PlannerResult) -> None:
    """Notes a result, and tells whoever listens what the best is now."""
    self.results.append(result)
    if self.best is result and result.is_feasible:
      share = 1 / self.total_s if self.total_s > 0 else 0.0
      incumbent = Incumbent(result.recompute_cost_s * share, self.bound_s * share)
      log(_log, logging.DEBUG, "%s", incumbent)
      progress.note(str(incumbent))

  def rebudgeted(self, result: PlannerResult) -> PlannerResult:
    """``result`` judged by this search's budget whatever budget it was made for."""
    is_feasible = result.peak_live_bytes <= self.budget_bytes
    return dataclasses.replace(result, budget_bytes=self.budget_bytes, is_feasible=is_feasible)

  def validated(self) -> PlannerResult:
    """The best result that the validator accepts."""
    report = None
    for result in sorted(self.results, key=self.rank):
      with _uncollected():
        report = validate(
          self.program,
          result.schedule,
          claimed_peak_bytes=result.peak_live_bytes,
          claimed_cost_s=result.recompute_cost_s,
        )
      if report.is_valid:
        return result
    raise InvalidPlanError(f"no planner made a valid plan; the last one: {report}")

  def rank(self, result: PlannerResult) -> tuple[int, float, int]:
    """Feasible before cheap, cheap before small; the rest small before cheap, by the percent."""
    excess_bytes = 0
    if not result.is_feasible:
      excess_bytes = max(result.peak_live_bytes, int(_NEAR_SMALLEST * self.smallest_bytes)) - self.budget_bytes
    return excess_bytes, result.recompute_cost_s, result.peak_live_bytes


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
  """Without the collector of cycles: the validator makes objects by the million, none of them in a cycle."""
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if was_enabled:
      gc.enable()


def _promising(screened: list[PlannerResult], search: _Search) -> list[PlannerResult]:
  """The best two, or one if the second is far behind."""
  best, *others = sorted(screened, key=search.rank)[:2]
  excess_bytes, cost_s, _ = search.rank(best)
  return [best] + [other for other in others if search.rank(other)[:2] <= (excess_bytes, _FAR_BEHIND * cost_s)]


def _worth_exchanging(screened: list[PlannerResult], search: _Search) -> list[PlannerResult]:
  """Those that hold the budget and are not far behind, the best first: a hasty plan may become the best of all."""
  most_s = _FAR_BEHIND * search.best.recompute_cost_s
  near = [result for result in screened if result.is_feasible and result.recompute_cost_s <= most_s]
  return sorted(near, key=search.rank)


def _other_orders(program: StepProgram, default: np.ndarray) -> list[np.ndarray]:
  orders = {default.tobytes(): default}
  for rule in range(_core.NUM_ORDER_RULES):
    order = _core.schedule_by_rule(program.core, rule)
    orders.setdefault(order.tobytes(), order)
  peaks = {key: _core.live_bytes(program.core, order).max(initial=0) for key, order in orders.items()}
  most_bytes = _WORST_START * min(peaks.values())
  return [order for key, order in list(orders.items())[1:] if peaks[key] <= most_bytes]
