"""The HLO pass as one function: a scheduled module in, the same program in less memory out.

The algorithm is in ``xla_pass/recompute_order_pass.h``: orders are searched and judged by XLA's own heap; where that is
not enough for the budget, a planner chooses what to recompute, by recompute cost.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping

import numpy as np

from coopjax import _core
from coopjax.errors import InvalidProgramError
from coopjax.jaxpr.tags import KEPT_SCOPE
from coopjax.planners.base import Planner
from coopjax.program.cost import CPU, Roofline
from coopjax.program.step_program import StepProgram
from coopjax.xla.program import HeapResult, parse_module, read_step_program


class Changes(enum.IntEnum):
  """What the pass may do to a module."""

  ORDER = 0  # nothing runs twice
  CLONES = 1  # the instructions that were there keep their order
  BOTH = 2


@dataclasses.dataclass(frozen=True, eq=False)
class RecomputeOrderResult:
  """What the pass made of a module.

  Attributes:
    module_bytes: the new module, None where it is best left as it came.
    reason: why it is, or "".
    order: the order without repeats that the plan was made from, int32 ``[num_ops]``.
    schedule: op ids as they run, repeats are recomputes, int32 ``[steps]``.
    recompute_cost_s: modelled seconds of the repeats.
    before: predicted memory of the module as it came.
    after: predicted memory of what is to be compiled.
    remake_s: seconds to bring each value back where it is read last, ancestors that must come back first included, inf
      where it can't be, float64 ``[num_values]``.
    cost_rank: of each value by ``remake_s`` per byte, 0 for the cheapest, -1 where it can't be, int32 ``[num_values]``.
    orders: rows (name, temporary bytes, peak of live bytes) of the orders that were judged, the best first.
    rounds: rows (limit on live bytes, live bytes, temporary bytes, recompute seconds) of the plans that were made.
    timing_s: seconds by stage.
  """

  module_bytes: bytes | None
  reason: str
  order: np.ndarray
  schedule: np.ndarray
  recompute_cost_s: float
  before: HeapResult
  after: HeapResult
  remake_s: np.ndarray
  cost_rank: np.ndarray
  orders: tuple[tuple[str, int, int], ...]
  rounds: tuple[tuple[int, int, int, float], ...]
  timing_s: Mapping[str, float]


def recompute_order(
  module: bytes | _core.HloModule, budget_bytes: int | None = None, *, changes: Changes = Changes.BOTH,
  planner: Planner | None = None, roofline: Roofline = CPU, time_limit_s: float = 10.0,
) -> RecomputeOrderResult:
  """A scheduled module in less temporary memory, its results the same to the bit.

  Args:
    module: a serialized ``HloModuleProto`` with a schedule, or a parsed one.
    budget_bytes: temporary bytes allowed, fragmentation included; None for as few as an order without recomputes takes.
    changes: what may be done: the order alone, recomputes alone, or both.
    planner: what chooses the recomputes; by default the core's own (the peak planner and Coop, in segments for large
      programs).
    roofline: the target that gives ops their modelled seconds.
    time_limit_s: planning stops improving after about so many seconds.

  Raises:
    coopjax.errors.InvalidProgramError: the bytes are not such a module.
  """
  module = parse_module(module) if isinstance(module, bytes) else module
  callback = planner and _callback(planner, _planned_program(module, roofline, changes))
  try:
    found = _core.recompute_order(
      module, changes=int(changes), budget_bytes=budget_bytes, roofline=dataclasses.astuple(roofline),
      kept_scope=KEPT_SCOPE, planner=callback, time_limit_s=time_limit_s)
  except ValueError as error:
    raise InvalidProgramError(str(error)) from None
  for name in ("before", "after"):
    found[name] = HeapResult(**found[name])
  return RecomputeOrderResult(**{**found, "module_bytes": found["module_bytes"] or None})


def _planned_program(module: _core.HloModule, roofline: Roofline, changes: Changes) -> StepProgram:
  """What a planner may do, as the core has it: ops that are kept are not repeated, a fixed order is one of control."""
  program, _ = read_step_program(module, roofline)
  is_kept = np.array([KEPT_SCOPE in scope for scope in program.op_scopes], bool)
  program = dataclasses.replace(program, op_can_recompute=program.op_can_recompute & ~is_kept)
  if changes != Changes.CLONES or not program.num_ops:
    return program
  before, offsets = np.empty(program.num_ops, np.int32), np.zeros(program.num_ops + 1, np.int32)
  before[program.schedule[1:]] = program.schedule[:-1]
  offsets[1:] = np.cumsum(np.arange(program.num_ops) != program.schedule[0])
  return dataclasses.replace(program, op_control=(offsets, np.delete(before, program.schedule[0])))


def _callback(planner: Planner, program: StepProgram) -> Callable[..., np.ndarray]:
  def plan(op_workspace_bytes: np.ndarray, order: np.ndarray, limit_bytes: int, time_limit_s: float) -> np.ndarray:
    inside = dataclasses.replace(program, op_workspace_bytes=op_workspace_bytes)  # loops may have been reordered
    return planner.plan(inside, limit_bytes, time_limit_s=time_limit_s, order=order).schedule

  return plan
