"""Plans for what loops, conditionals and calls run, made before their caller is planned.

What lives only inside such an op is its workspace in the caller's program: a smaller inner peak is room for the caller.
An inner computation is planned like the entry (order and recomputes of its own), its limit being what the caller's
buffers leave. How much those take depends in turn on what the caller recomputes; ``share`` says who gives way:

 * 0: the caller does nothing, and the inside must do with what the caller's best order leaves;
 * 1: the inside is reordered, which costs nothing, and the caller does all the rest;
 * in between, the inside's limit lies that far between the two.

Nested loops are planned from the innermost on. Costs are those of all runs: see ``xla_pass/hlo_program.h``.
"""

import dataclasses
import functools
import time
from collections.abc import Callable

import numpy as np

from coopjax import _core
from coopjax.planners import base
from coopjax.program.step_program import StepProgram
from coopjax.xla.program import parse_module

_NEAR_SMALLEST = 1.01  # peaks that count as the smallest where the limit can't be reached
_TIME_SHARE = 0.25  # of the time that is left, for one inner computation

Reader = Callable[[_core.HloModule, int | None], tuple[StepProgram, np.ndarray]]


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
  result: base.PlannerResult


@dataclasses.dataclass(frozen=True, eq=False)
class _Read:
  """A computation as it came."""

  program: StepProgram
  op_instruction_ids: np.ndarray

  @functools.cached_property
  def order(self) -> np.ndarray:
    """The one of least peak."""
    return _core.schedule_for_memory(self.program.core)

  @property
  def peak_bytes(self) -> int:
    return _peak_bytes(self.program, self.program.schedule)


class InnerPlanner:
  """Makes room in the ops of a module's entry that run other computations.

  Args:
    module: as it came.
    read: `coopjax.xla.program.read_step_program`, or a wrapper of it.
    planner: name of the planner.
  """

  def __init__(self, module: _core.HloModule, read: Reader, planner: str):
    self._module, self._read, self._planner = module, read, planner
    self._as_it_came: dict[int | None, _Read] = {}
    self._first: dict[tuple[int, float], base.PlannerResult] = {}
    self._hurries = False
    self.depends_on_share = False  # of the last plan

  def plan(
    self, limit_bytes: int, share: float, deadline: float,
  ) -> tuple[_core.HloModule, tuple[InnerPlan, ...]]:
    """The module with smaller insides, as far as they keep the entry from the limit.

    Args:
      limit_bytes: live bytes that the entry may have.
      share: who gives way; see above.
      deadline: on the clock of ``time.perf_counter``; planning hurries as it comes near.

    Returns:
      The rewritten module, or the one that came, and what was planned, the innermost first.
    """
    self._share, self._deadline = share, deadline
    self._current, self._plans, self.depends_on_share = self._module, [], False
    self._shrink(None, limit_bytes)
    return self._current, tuple(self._plans)

  def hurry(self) -> None:
    """From now on a quick planner will do: the limit is out of reach."""
    self._planner, self._hurries = "peak", True

  def least_workspaces(self, computation_id: int | None = None, *, looks: bool = False) -> np.ndarray:
    """A lower bound on each op's workspace, whatever is planned inside, int64 ``[num_ops]``.

    0 for what no plan has looked at, unless that is to be looked at now.
    """
    read = self._came(computation_id)
    least = np.zeros(read.program.num_ops, np.int64)
    for op in np.flatnonzero(read.program.op_workspace_bytes):
      for callee in _core.inner_computations(self._module, int(read.op_instruction_ids[op])):
        if looks or callee in self._as_it_came:
          workspaces = self.least_workspaces(callee, looks=looks)
          inner = dataclasses.replace(self._came(callee).program, op_workspace_bytes=workspaces)
          least[op] = max(least[op], _core.lower_bound(inner.core)[0])
    return least

  def _came(self, computation_id: int | None) -> _Read:
    if computation_id not in self._as_it_came:
      self._as_it_came[computation_id] = _Read(*self._read(self._module, computation_id))
    return self._as_it_came[computation_id]

  def _shrink(self, computation_id: int | None, limit_bytes: int) -> None:
    """Plans what a computation's ops run, where it stands in the way of the limit."""
    read = self._came(computation_id)
    if not read.program.op_workspace_bytes.any():
      return
    live_bytes = _core.live_bytes(read.program.core, read.order)
    for step in np.flatnonzero(live_bytes > limit_bytes):
      op = read.order[step]
      workspace_bytes = read.program.op_workspace_bytes[op]
      if workspace_bytes == 0:
        continue
      around_bytes = int(live_bytes[step] - workspace_bytes)
      for callee in _core.inner_computations(self._module, int(read.op_instruction_ids[op])):
        self._fit(callee, read.program.op_names[op], max(limit_bytes - around_bytes, 0))

  def _fit(self, computation_id: int, name: str, least_bytes: int) -> None:
    """Plans a computation, and before it what it runs."""
    came = self._came(computation_id)
    if came.peak_bytes <= least_bytes:
      return
    num_plans = len(self._plans)
    self._shrink(computation_id, least_bytes)
    program, op_instruction_ids = came.program, came.op_instruction_ids
    if len(self._plans) > num_plans:
      program, op_instruction_ids = self._read(self._current, computation_id)
    ordered_bytes = _peak_bytes(program, _core.schedule_for_memory(program.core))
    limit_bytes = least_bytes
    if ordered_bytes > least_bytes:
      self.depends_on_share = True
      limit_bytes += int(self._share * (ordered_bytes - least_bytes))
    result = self._planned(computation_id, program, limit_bytes)
    if result.peak_live_bytes >= _peak_bytes(program, program.schedule):
      return
    rewritten = _core.apply_schedule(self._current, op_instruction_ids, result.schedule, computation_id)
    self._current = parse_module(rewritten)
    self._plans.append(InnerPlan(name, program, result))

  def _planned(self, computation_id: int, program: StepProgram, limit_bytes: int) -> base.PlannerResult:
    """The first planner and its order are kept for nearby limits."""
    time_limit_s = max(_TIME_SHARE * (self._deadline - time.perf_counter()), 0.0)
    key = computation_id, self._share
    if key in self._first:
      planner, order = self._first[key].planner, self._first[key].order
      return base.get_planner(planner).plan(program, limit_bytes, time_limit_s=time_limit_s, order=order)
    planner = base.get_planner(self._planner)
    result = planner.plan(program, limit_bytes, time_limit_s=time_limit_s)
    if self._hurries and not result.is_feasible:  # the last percent often costs the most
      near_bytes = int(_NEAR_SMALLEST * result.peak_live_bytes)
      near = planner.plan(program, near_bytes, time_limit_s=time_limit_s, order=result.order)
      result = near if near.is_feasible else result
    self._first[key] = result
    return result


def _peak_bytes(program: StepProgram, schedule: np.ndarray) -> int:
  return int(_core.live_bytes(program.core, schedule).max(initial=0))
