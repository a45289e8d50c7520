"""Optimal rematerialization of one order, by a MILP that watches memory only where it must.

What is optimal: of all schedules whose first runs follow the order and whose repeats run right before a first run, each
op at most once there, in the order's order: Checkmate's class (Jain et al., MLSys 2020), with the accounting of
``xla_pass/program/step_program.h``. Checkmate's MILP has a variable per stage and op and more per edge, and ends at a
few hundred ops. Here memory is watched at a few steps only (``watched_model.py``), first at the peak. The solution of
that relaxation is turned into a schedule; where the schedule overflows, more steps are watched, and so on until it
fits: then it is optimal, because every relaxation's optimum is a lower bound. Two things end it sooner: the bound of
any schedule (``xla_pass/planners/bounds/cost_bound.h``) and, where all costs are multiples of one unit, the next
multiple above a bound; and every relaxed schedule is repaired by :class:`PeakPlanner`, often into an optimal plan while
few steps are watched. Relaxations look only for plans cheaper than the best known: when there are none, that one is
optimal.

Small values count as free until a schedule fits without them (again a relaxation). Repeats of in-place writers, and
inputs that leave their buffer to an output in a forced order, are judged too kindly by the MILP: such a program may end
with a gap although no more steps are left to watch.
"""

import dataclasses
import math

import numpy as np

from coopjax import _core
from coopjax.planners import base
from coopjax.planners.base import PlannerResult
from coopjax.planners.effort import DEFAULT_STEPS, Allowance
from coopjax.planners.exact.watched_model import OrderedProgram, Step, Stretch, WatchedModel
from coopjax.planners.milp_solvers import MilpSolver, default_solver
from coopjax.planners.peak import PeakPlanner
from coopjax.program.step_program import StepProgram
from coopjax.program.stopwatch import Stopwatch

STATUSES = ("optimal", "feasible", "infeasible", "unknown")


@dataclasses.dataclass(frozen=True)
class ExactPlanner:
  """The cheapest plan of an order, or the best heuristic plan and how far it may be from it.

  The result's counters say what was proved. ``status`` is an index into :data:`STATUSES`:

  - optimal: no schedule of the class is cheaper;
  - feasible: the plan is the best found, the warm start included; the gap is to ``order_bound_s``;
  - infeasible: no schedule of the class holds the budget; the plan is the heuristics' nearest;
  - unknown: no plan was found, nor that there is none; the plan is the heuristics' nearest.

  ``is_cut_short`` is 1 if the steps were up, ``is_too_large`` if there was none, ``order_bound_s`` bounds the
  cost of every plan of the class from below, ``heuristic_cost_s`` is what the warm start cost (``inf`` if it did not
  fit), and ``watched_steps``, ``rounds`` and ``solver_s`` tell what the search took.

  Attributes:
    solver: solves the relaxations; by default HiGHS.
    heuristic: name of the planner whose plan is the warm start and, unless an order is given, gives the order; it may
      take half of the steps.
    max_ops: programs with more get the heuristic plan and the bound of any schedule.
    steps_per_round: how many overflowing steps are watched in addition after each relaxation.
  """

  solver: MilpSolver | None = None
  heuristic: str = "auto"
  max_ops: int = 5000
  steps_per_round: int = 6

  def plan(
    self,
    program: StepProgram,
    budget_bytes: int,
    *,
    max_steps: int = DEFAULT_STEPS,
    order: np.ndarray | None = None,
  ) -> PlannerResult:
    """See :class:`coopjax.planners.base.Planner`.

    ``order`` may have repeats: then it is the warm start, and its first runs are the order.
    """
    stopwatch, allowance = Stopwatch(), Allowance(max_steps)
    if order is not None and len(order) > program.num_ops:
      warm = PlannerResult.of(program, order, "exact", budget_bytes, 0.0, order)
    else:
      warm = base.get_planner(self.heuristic).plan(program, budget_bytes, max_steps=max_steps // 2, order=order)
    if order is None:
      order = warm.schedule if warm.is_feasible else warm.order
    order = base.first_runs(order)
    search = _Search(self, program, budget_bytes, order, warm)
    is_too_large = program.num_ops > self.max_ops
    if not is_too_large:
      search.run(allowance)
    best = search.best if search.best is not None else warm
    return PlannerResult.of(
      program,
      best.schedule,
      "exact",
      budget_bytes,
      stopwatch.seconds,
      order,
      status=STATUSES.index(search.status),
      is_cut_short=int(search.is_cut_short),
      is_too_large=int(is_too_large),
      order_bound_s=search.bound_s,
      heuristic_cost_s=warm.recompute_cost_s if warm.is_feasible else math.inf,
      watched_steps=len(search.watched),
      rounds=search.rounds,
      solver_s=search.solver_s,
    )


class _Search:
  """Relaxations with more and more watched steps, until bound and best plan meet."""

  def __init__(
    self,
    planner: ExactPlanner,
    program: StepProgram,
    budget_bytes: int,
    order: np.ndarray,
    warm: PlannerResult,
  ):
    self._planner, self._program, self._budget_bytes = planner, program, budget_bytes
    self._order = order
    self._unit_s = _core.cost_unit(program.core)
    self.best = warm if warm.is_feasible else None
    self.bound_s = _core.cost_bound(program.core, budget_bytes)
    self.watched: list[Step] = []
    self.rounds, self.solver_s = 0, 0.0
    self.is_cut_short = self._is_stuck = False

  @property
  def status(self) -> str:
    """One of :data:`STATUSES`."""
    if self.best is not None:
      return "optimal" if self.best.recompute_cost_s <= self.bound_s * (1 + 1e-9) else "feasible"
    return "infeasible" if math.isinf(self.bound_s) else "unknown"

  def run(self, allowance: Allowance) -> None:
    """Refines until something is proved, nothing is left to watch, or the steps are up."""
    self._solver = self._planner.solver or default_solver()
    self._least_bytes = self._negligible_bytes()
    self._ordered = OrderedProgram(self._program, self._order, self._least_bytes)
    live = _core.live_bytes(self._program.core, self._order)
    if len(live):
      peak = int(np.argmax(live))
      self.watched = [(peak, peak)]
    while self.status in ("feasible", "unknown") and not self._is_stuck and not self.is_cut_short:
      self._refine(allowance)
      self.is_cut_short |= allowance.is_over

  def _negligible_bytes(self) -> int:
    """Values smaller than this are a thousandth of the budget together."""
    sizes = np.sort(self._program.value_bytes)
    num_small = int(np.searchsorted(np.cumsum(sizes), self._budget_bytes / 1000, side="right"))
    return int(sizes[num_small]) if num_small < len(sizes) else 0

  def _refine(self, allowance: Allowance) -> None:
    self.rounds += 1
    most_s = math.inf if self.best is None else self._below(self.best.recompute_cost_s)
    model = WatchedModel(self._ordered, self._budget_bytes, self.watched, least_cost_s=self.bound_s, most_cost_s=most_s)
    found = self._solver.solve(model.build(), max_steps=allowance.left)
    self.solver_s += found.seconds
    known_s = math.inf if self.best is None else self.best.recompute_cost_s
    self.bound_s = max(self.bound_s, min(self._above(found.bound), known_s))
    if found.x is None:
      self.is_cut_short = found.status == "cut_short"
      return
    schedule = schedule_of(model, found.x)
    if _core.check_schedule(self._program.core, schedule):
      self._watch_less_kindly()
      return
    self._improve(schedule, allowance)
    self._watch(schedule)

  def _above(self, bound_s: float) -> float:
    """The least cost that a plan above a bound can have."""
    if self._unit_s == 0 or not math.isfinite(bound_s):
      return bound_s
    return self._unit_s * math.ceil(bound_s / self._unit_s - 1e-6)

  def _below(self, cost_s: float) -> float:
    """The largest cost that a cheaper plan can have."""
    return cost_s - self._unit_s if self._unit_s else cost_s * (1 - 1e-6)

  def _improve(self, schedule: np.ndarray, allowance: Allowance) -> None:
    """Keeps the relaxed schedule, repaired, if it is the best so far."""
    repaired = PeakPlanner().plan(self._program, self._budget_bytes, max_steps=allowance.left, order=schedule)
    is_better = self.best is None or repaired.recompute_cost_s < self.best.recompute_cost_s
    if repaired.is_feasible and is_better:
      self.best = repaired

  def _watch(self, schedule: np.ndarray) -> None:
    """Adds the steps where a schedule overflows most, the largest of each run of such steps."""
    live = _core.live_bytes(self._program.core, schedule)
    steps = stages_of(schedule, self._order)
    over = np.flatnonzero(live > self._budget_bytes)
    runs = np.split(over, np.flatnonzero(np.diff(over) > 1) + 1) if len(over) else []
    tops = sorted((int(run[np.argmax(live[run])]) for run in runs), key=lambda top: (-live[top], top))
    new = [step for top in tops for step in self._unwatched(*steps[top])]
    if not new:
      new = [step for at in over.tolist() for step in self._unwatched(*steps[at])]
    if new:
      self.watched = sorted({*self.watched, *new[: self._planner.steps_per_round]})
    elif len(over):
      self._watch_less_kindly()

  def _unwatched(self, stage: int, slot: int) -> list[Step]:
    """What to watch to see memory at a step: a repeat only once the first runs around it are watched."""
    around = [(stage, stage)] if slot == stage else [(at, at) for at in (stage - 1, stage) if at >= 0]
    missing = [step for step in around if step not in self.watched]
    return missing or [step for step in [(stage, slot)] if step not in self.watched]

  def _watch_less_kindly(self) -> None:
    """No step is left to watch: count small values too, or give up."""
    self._is_stuck = self._least_bytes == 0
    self._least_bytes = 0
    self._ordered = OrderedProgram(self._program, self._order)


def stages_of(schedule: np.ndarray, order: np.ndarray) -> list[Step]:
  """Stage and slot of each step: the first run that it leads to, and its op's position in the order."""
  position = np.empty(len(order), int)
  position[order] = np.arange(len(order))
  slots = position[schedule]
  stage, stages = 0, []
  for slot in slots.tolist():
    stages.append((stage, slot))
    stage += slot == stage
  return stages


def schedule_of(model: WatchedModel, x: np.ndarray) -> np.ndarray:
  """The schedule that a solution stands for: each repeat as late as its stretch's first read of it."""
  ordered = model.ordered
  before: list[list[int]] = [[] for _ in range(ordered.num_ops + 1)]  # per stage: repeats, by position
  for index, stretch in enumerate(model.stretches):
    chosen = [at for at, column in model.repeats[index].items() if x[column] > 0.5]
    held = {value for value, column in model.held[index].items() if x[column] > 0.5}
    stage_of = _latest_stages(ordered, stretch, chosen, held)
    for at in sorted(chosen, key=lambda at: (stage_of[at], at)):
      before[stage_of[at]].append(at)
    stage, slot = stretch.end
    if slot < stage and x[model.runs[index]] > 0.5:
      before[stage].append(slot)
  steps = [at for stage in range(ordered.num_ops) for at in (*before[stage], stage)]
  return np.array(ordered.order, np.int32)[np.array(steps, int)] if steps else np.empty(0, np.int32)


def _latest_stages(
  ordered: OrderedProgram,
  stretch: Stretch,
  chosen: list[int],
  held: set[int],
) -> dict[int, int]:
  """Per repeat the stage that it runs in: before its first reader and before its inputs are overwritten."""
  stage, slot = stretch.end
  stage_of: dict[int, int] = {}
  for at in reversed(chosen):
    latest = stage if at < slot or stretch.first == stage else stage - 1
    for value in ordered.outputs[at]:
      for reader in ordered.readers[value]:
        if reader in stage_of:
          latest = min(latest, stage_of[reader])
        if value not in held and max(stretch.first, at + 1) <= reader < stage:
          latest = min(latest, reader)
    for value in ordered.inputs[at]:
      if ordered.overwritten_at[value] >= max(stretch.first, at + 1):
        latest = min(latest, ordered.overwritten_at[value])
    stage_of[at] = latest
  return stage_of
