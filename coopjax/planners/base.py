"""What every planner takes and gives."""

import dataclasses
import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np

from coopjax.budget import format_bytes
from coopjax.planners.effort import DEFAULT_STEPS
from coopjax.program import explain
from coopjax.program.step_program import StepProgram

_HOMES = {
  "auto": ("coopjax.planners.auto", "AutoPlanner"),
  "coop": ("coopjax.planners.coop", "CoopPlanner"),
  "exact": ("coopjax.planners.exact.planner", "ExactPlanner"),
  "fastsa": ("coopjax.planners.fastsa", "FastSAPlanner"),
  "model": ("coopjax.planners.model.planner", "ModelPlanner"),
  "peak": ("coopjax.planners.peak", "PeakPlanner"),
  "segments": ("coopjax.planners.segments", "SegmentPlanner"),
}
PLANNERS = tuple(_HOMES)


@dataclasses.dataclass(frozen=True, eq=False)
class PlannerResult:
  """A schedule under a budget, or the nearest to it that a planner found.

  Attributes:
    schedule: op ids, repeats are recomputes, int32 ``[steps]``.
    planner: name of the planner that made it.
    budget_bytes: the live bytes allowed.
    is_feasible: whether ``peak_live_bytes <= budget_bytes``.
    peak_live_bytes: largest live bytes of the schedule.
    peak_step: the first step that reaches it, -1 for an empty program.
    recompute_cost_s: modelled seconds of the repeats.
    recompute_flops: floating-point operations of the repeats.
    num_recomputed: how many repeats there are.
    order: the order without repeats that the planner started from, int32 ``[num_ops]``; handed to the next call for a
      nearby budget it saves the search for one.
    seconds: how long planning took.
    counters: what the planner counted, by name.
    placements: rows (value, step of production, offset) of temporaries in an arena of the budget's size, int64
      ``[n, 3]``; None from planners that do not place.
  """

  schedule: np.ndarray
  planner: str
  budget_bytes: int
  is_feasible: bool
  peak_live_bytes: int
  peak_step: int
  recompute_cost_s: float
  recompute_flops: float
  num_recomputed: int
  order: np.ndarray
  seconds: float = 0.0
  counters: Mapping[str, float] = MappingProxyType({})
  placements: np.ndarray | None = None

  @classmethod
  def of(
    cls,
    program: StepProgram,
    schedule: np.ndarray,
    planner: str,
    budget_bytes: int,
    seconds: float,
    order: np.ndarray,
    **counters: float,
  ) -> "PlannerResult":
    """The result that a valid ``schedule`` stands for: bytes and cost are counted here, not taken on trust."""
    from coopjax import _core

    live = _core.live_bytes(program.core, schedule)
    peak_step = int(np.argmax(live)) if len(live) else -1
    peak_bytes = int(live[peak_step]) if len(live) else 0
    cost_s, flops, num_recomputed = _core.recompute_totals(program.core, schedule)
    return cls(
      schedule,
      planner,
      budget_bytes,
      peak_bytes <= budget_bytes,
      peak_bytes,
      peak_step,
      cost_s,
      flops,
      num_recomputed,
      order,
      seconds,
      MappingProxyType(counters),
    )

  def overhead(self, program: StepProgram) -> float:
    """Recompute cost over the program's own cost."""
    total_s = float(program.op_cost_s.sum())
    return self.recompute_cost_s / total_s if total_s > 0 else 0.0

  def least_overhead(self, program: StepProgram) -> float:
    """A lower bound on the overhead of every plan, in any order, with the bytes that this one may or does take.

    See ``xla_pass/planners/bounds/cost_bound.h``. About as long as a quick plan: 0.1 s for 5,000 ops.
    """
    from coopjax import _core

    total_s = float(program.op_cost_s.sum())
    allowed_bytes = max(self.budget_bytes, self.peak_live_bytes)
    return _core.cost_bound(program.core, allowed_bytes) / total_s if total_s > 0 else 0.0

  def gap(self, program: StepProgram) -> float:
    """Proven distance to the best plan: the overhead less what no plan avoids; 0 for a plan that is optimal."""
    return max(self.overhead(program) - self.least_overhead(program), 0.0)

  def require_feasible(self, program: StepProgram) -> "PlannerResult":
    """This result; ``BudgetInfeasibleError``, with what forces the peak, if it misses the budget."""
    if self.is_feasible:
      return self
    raise explain.infeasible(
      program,
      self.schedule,
      f"no plan was found within {format_bytes(self.budget_bytes)} of live bytes; the smallest reached is "
      f"{format_bytes(self.peak_live_bytes)} (planner {self.planner})",
      budget_bytes=self.budget_bytes,
      smallest_bytes=self.peak_live_bytes,
    )


def first_runs(schedule: np.ndarray) -> np.ndarray:
  """The order in which a schedule runs its ops for the first time, int32 ``[num_ops]``."""
  return schedule[np.sort(np.unique(schedule, return_index=True)[1])]


def counters_of(found: Mapping[str, object]) -> dict[str, float]:
  """What a planner of the core counted: the numbers and flags of its result."""
  return {name: value for name, value in found.items() if isinstance(value, (int, float))}


class Planner(Protocol):
  """Chooses what to recompute. Options are fields of the planner; the same input gives the same plan."""

  def plan(
    self,
    program: StepProgram,
    budget_bytes: int,
    *,
    max_steps: int = DEFAULT_STEPS,
    order: np.ndarray | None = None,
  ) -> PlannerResult:
    """Plans ``program`` for ``budget_bytes`` of live bytes.

    Args:
      program: what to plan.
      budget_bytes: limit on live temporary bytes.
      max_steps: planning stops improving after about so many steps (`coopjax.planners.effort`).
      order: a valid order to start from, int32 ``[num_ops]``; by default the planner chooses.

    Returns:
      A valid schedule; if it is not feasible, the one with the smallest peak that was found.

    Raises:
      InvalidProgramError: the program is malformed.
    """
    ...


def get_planner(name: str) -> Planner:
  """The planner of that name with its default options."""
  if name not in _HOMES:
    raise ValueError(f"unknown planner {name!r}; there are {', '.join(PLANNERS)}")
  module, attribute = _HOMES[name]
  return getattr(importlib.import_module(module), attribute)()
