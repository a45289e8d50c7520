"""The HLO pass as one function: a scheduled module in, the same program in less memory out.

The algorithm is in ``xla_pass/pass/recompute_order.h``: orders are searched and judged by XLA's own heap; where that is
not enough for the budget, a planner chooses what to recompute, by recompute cost, inside loops, branches and calls too.
"""

import dataclasses
import enum
from typing import NamedTuple

import numpy as np

from coopjax import _core
from coopjax.errors import InvalidProgramError
from coopjax.planners.base import Planner, PlannerResult, get_planner
from coopjax.planners.effort import DEFAULT_STEPS
from coopjax.program.cost import CPU, Roofline
from coopjax.program.scopes import KEPT_SCOPE
from coopjax.program.step_program import StepProgram
from coopjax.xla.module import HeapResult, parse_module, program_of

ORDERING_PLANNERS = ("fastsa", "model")  # search orders themselves; others start from the one that was found


class Changes(enum.IntEnum):
  """What the pass may do to a module."""

  ORDER = 0  # nothing runs twice
  CLONES = 1  # the instructions that were there keep their order
  BOTH = 2


@dataclasses.dataclass(frozen=True, eq=False)
class InnerPlan:
  """What was planned inside an op.

  Attributes:
    name: of the loop, conditional or call.
    program: the inner computation, as it was planned; costs are those of all runs.
    result: its plan.
  """

  name: str
  program: StepProgram
  result: PlannerResult

  @classmethod
  def of(
    cls,
    name: str,
    fields: "_core.ProgramFields",
    schedule: np.ndarray,
    planner: str,
    limit_bytes: int,
    order: np.ndarray,
  ) -> "InnerPlan":
    """As the core tells of it."""
    program = program_of(fields)
    return cls(name, program, PlannerResult.of(program, schedule, planner, limit_bytes, 0.0, order))


class Round(NamedTuple):
  """A plan that was made for the module, and what came of it.

  Attributes:
    limit_bytes: of live bytes, that the entry's planner was given.
    peak_live_bytes: of the entry's plan.
    temp_bytes: of the module, predicted.
    recompute_cost_s: modelled seconds of all repeats.
    planner: that made the entry's plan.
    share: how the budget was split between the entry and what it runs; see ``xla_pass/pass/inner_planner.h``.
    inside: rows (name, peak of live bytes, planner) of the plans inside.
  """

  limit_bytes: int
  peak_live_bytes: int
  temp_bytes: int
  recompute_cost_s: float
  planner: str
  share: float
  inside: tuple[tuple[str, int, str], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class RecomputeOrderResult:
  """What the pass made of a module.

  Attributes:
    module_bytes: the new module, None where it is best left as it came.
    reason: why it is, or "".
    order: of the entry, without repeats, that the plan was made from, int32 ``[num_ops]``.
    schedule: of the entry, op ids as they run, repeats are recomputes, int32 ``[steps]``; where the module is left as
      it came, the one it has.
    planner: name of what made the schedule, "order" for an order alone.
    limit_bytes: of the entry's live bytes, that the schedule was made for.
    inner: the plans of what the entry's loops, conditionals and calls run, the innermost first.
    program: the entry as it came, with the workspaces that the plan was made for.
    least_workspaces: a lower bound on those, whatever is planned inside, int64 ``[num_ops]``; 0 where
      nothing was to be recomputed.
    recompute_cost_s: modelled seconds of all repeats.
    before: predicted memory of the module as it came.
    after: predicted memory of what is to be compiled.
    remake_s: seconds to bring each value back where it is read last, ancestors that must come back first included, inf
      where it can't be, float64 ``[num_values]``.
    cost_rank: of each value by ``remake_s`` per byte, 0 for the cheapest, -1 where it can't be, int32 ``[num_values]``.
    orders: rows (name, temporary bytes, peak of live bytes) of the orders that were judged, the best first.
    rounds: the plans that were made.
    timing_s: seconds by stage.
  """

  module_bytes: bytes | None
  reason: str
  order: np.ndarray
  schedule: np.ndarray
  planner: str
  limit_bytes: int
  inner: tuple[InnerPlan, ...]
  program: StepProgram
  least_workspaces: np.ndarray
  recompute_cost_s: float
  before: HeapResult
  after: HeapResult
  remake_s: np.ndarray
  cost_rank: np.ndarray
  orders: tuple[tuple[str, int, int], ...]
  rounds: tuple[Round, ...]
  timing_s: "_core.StageSeconds"


def recompute_order(
  module: bytes | _core.HloModule,
  budget_bytes: int | None = None,
  *,
  changes: Changes = Changes.BOTH,
  planner: Planner | str | None = None,
  searches_order: bool = True,
  near_smallest: float = 1.0,
  roofline: Roofline = CPU,
  max_steps: int = DEFAULT_STEPS,
) -> RecomputeOrderResult:
  """A scheduled module in less temporary memory, its results the same to the bit.

  Args:
    module: a serialized ``HloModuleProto`` with a schedule, or a parsed one.
    budget_bytes: temporary bytes allowed, fragmentation included; None for as few as an order without recomputes takes.
    changes: what may be done: the order alone, recomputes alone, or both.
    planner: what chooses the recomputes, or the order where only that may change; by default the core's own (the peak
      planner and Coop, in segments for large programs). A name may stand for several planners ("auto"): the one whose
      plan is taken first then plans for nearby limits, too.
    searches_order: whether a better order is searched before anything is recomputed; else planners choose theirs.
    near_smallest: where the budget is out of reach, the cheapest plan is taken of those with so many times the smallest
      temporaries.
    roofline: the target that gives ops their modelled seconds.
    max_steps: planning stops improving after about so many steps (`coopjax.planners.effort`).

  Raises:
    coopjax.errors.InvalidProgramError: the bytes are not such a module.
  """
  module = parse_module(module) if isinstance(module, bytes) else module
  try:
    found = _core.recompute_order(
      module,
      changes=int(changes),
      budget_bytes=budget_bytes,
      roofline=roofline.of_one_device,
      kept_scope=KEPT_SCOPE,
      planner=None if planner is None else _callback(planner),
      searches_order=searches_order,
      near_smallest=near_smallest,
      max_steps=max_steps,
    )
  except ValueError as error:
    raise InvalidProgramError(str(error)) from None
  return RecomputeOrderResult(
    module_bytes=found["module_bytes"] or None,
    reason=found["reason"],
    order=found["order"],
    schedule=found["schedule"],
    planner=found["planner"],
    limit_bytes=found["limit_bytes"],
    inner=tuple(InnerPlan.of(*row) for row in found["inner"]),
    program=program_of(found["program"]),
    least_workspaces=found["least_workspaces"],
    recompute_cost_s=found["recompute_cost_s"],
    before=HeapResult(**found["before"]),
    after=HeapResult(**found["after"]),
    remake_s=found["remake_s"],
    cost_rank=found["cost_rank"],
    orders=found["orders"],
    rounds=tuple(Round(*row) for row in found["rounds"]),
    timing_s=found["timing_s"],
  )


def _callback(planner: Planner | str) -> "_core.PlanCallback":
  def plan(
    fields: "_core.ProgramFields",
    order: np.ndarray | None,
    name: str,
    limit_bytes: int,
    max_steps: int,
  ) -> tuple[np.ndarray, np.ndarray, str]:
    chosen = get_planner(name or planner) if isinstance(planner, str) else planner
    if not name and planner in ORDERING_PLANNERS:
      order = None
    result = chosen.plan(program_of(fields), limit_bytes, max_steps=max_steps, order=order)
    return result.schedule, result.order, result.planner

  return plan
