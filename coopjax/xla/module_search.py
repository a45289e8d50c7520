"""A module's plan within a budget: planned, carried out and judged by the heap that XLA will make of it, in rounds.

Where what loops, conditionals and calls run stands in the way, it is planned first (`inner_plans`), and the budget is
split between the entry and it in a few ways.
"""

import dataclasses
import time
from collections.abc import Collection

import numpy as np

from coopjax import _core
from coopjax.budget import format_bytes
from coopjax.planners import base
from coopjax.program.step_program import StepProgram
from coopjax.xla.inner_plans import InnerPlan, InnerPlanner, Reader
from coopjax.xla.program import HeapResult, parse_module, predict_memory

_MAX_ROUNDS = 6
_SHARE_OF_TIME = 0.5  # of what is left: for a round, so that one that misses the budget is not the last
_MAX_SPLITS = 5  # of the budget between a module's entry and its loops
_NEAR_SMALLEST = 1.01  # temporaries that count as the smallest where the budget can't be reached
_ROOM_TO_LOOSEN = 0.03  # of the budget


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
  """A plan carried out, and the memory that it takes.

  Attributes:
    result: the entry's plan.
    inner: the plans inside, the innermost first.
    program: the entry, with the workspaces that those leave.
    module: the rewritten module.
    module_bytes: the same, serialized.
    predicted: its memory.
  """

  result: base.PlannerResult
  inner: tuple[InnerPlan, ...]
  program: StepProgram
  module: _core.HloModule
  module_bytes: bytes
  predicted: HeapResult

  @classmethod
  def of(
    cls, module: _core.HloModule, program: StepProgram, op_instruction_ids: np.ndarray, result: base.PlannerResult,
    inner: tuple[InnerPlan, ...] = (),
  ) -> "Candidate":
    """The entry's plan carried out in a module in which the inner plans have been."""
    module_bytes = _core.apply_schedule(module, op_instruction_ids, result.schedule)
    rewritten = parse_module(module_bytes)
    return cls(result, inner, program, rewritten, module_bytes, predict_memory(rewritten))

  @property
  def cost_s(self) -> float:
    """Modelled seconds of all recomputes."""
    return self.result.recompute_cost_s + sum(plan.result.recompute_cost_s for plan in self.inner)


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
  """What a search found.

  Attributes:
    best: within the budget, then cheap, then small; if none holds it, the cheapest of those near the smallest.
    rounds: one line per plan tried.
    planning_s: time spent in planners.
    least_workspaces: a lower bound on the workspace of each of the entry's ops, int64 ``[num_ops]``.
  """

  best: Candidate
  rounds: tuple[str, ...]
  planning_s: float
  least_workspaces: np.ndarray


def search(
  module: _core.HloModule, read: Reader, budget_bytes: int, planner: str, deadline: float, *,
  order: np.ndarray | None = None,
) -> Found:
  """Searches for a module's plan.

  Args:
    module: as it came.
    read: `coopjax.xla.program.read_step_program`, or a wrapper of it.
    budget_bytes: limit on the module's temporary memory.
    planner: name of a planner.
    deadline: on the clock of ``time.perf_counter``; the first round runs whatever it is.
    order: a valid order of the entry to start from; by default the planner chooses.
  """
  return _Search(module, read, budget_bytes, planner, deadline, order=order).run()


class _Search:
  def __init__(
    self, module: _core.HloModule, read: Reader, budget_bytes: int, planner: str, deadline: float, *,
    order: np.ndarray | None,
  ):
    self._order = {} if order is None else {"order": order}
    self._read, self._budget_bytes, self._planner, self._deadline = read, budget_bytes, planner, deadline
    self._inner = InnerPlanner(module, read, planner)
    self._total_s = float(read(module, None)[0].op_cost_s.sum())
    self._rounds: list[str] = []
    self._planning_s = 0.0

  def run(self) -> Found:
    tried = {1.0: self._plan(1.0)}
    least_workspaces = self._inner.least_workspaces()
    if self._inner.depends_on_share and self._rank(tried[1.0])[:2] != (0, 0.0):
      self._split(tried, least_workspaces)
    return Found(self._best(tried.values()), tuple(self._rounds), self._planning_s, least_workspaces)

  def _split(self, tried: dict[float, Candidate], least_workspaces: np.ndarray) -> None:
    """Lets the loops give way, then both sides, as long as that may gain."""
    alone = tried[1.0]
    bound_bytes = _core.lower_bound(dataclasses.replace(alone.program, op_workspace_bytes=least_workspaces).core)[0]
    unseen_bytes = max(alone.result.peak_live_bytes - alone.predicted.temp_bytes, 0)  # lie in output buffers
    if bound_bytes - unseen_bytes > self._budget_bytes:
      self._inner.hurry()
    tried[0.0] = self._plan(0.0)
    entry_can_help = self._excess_bytes(alone) == 0 or alone.result.num_recomputed > 0
    while self._excess_bytes(tried[0.0]) == 0 and entry_can_help and len(tried) < _MAX_SPLITS:
      if time.perf_counter() > self._deadline:
        return
      share = self._next_share(tried)
      tried[share] = self._plan(share)

  def _next_share(self, tried: dict[float, Candidate]) -> float:
    """How to split next (see `inner_plans`): between the best split and the better of its neighbours."""
    best = min(tried, key=lambda share: self._rank(tried[share]))
    shares = sorted(tried)
    at = shares.index(best)
    neighbours = shares[max(at - 1, 0) : at] + shares[at + 1 : at + 2]
    return (best + min(neighbours, key=lambda share: self._rank(tried[share]))) / 2

  def _plan(self, share: float) -> Candidate:
    """The best of a few rounds with one split.

    Planners bound live bytes, XLA packs buffers: after each round the planner's limit moves by what the predicted heap
    is off the budget, down for fragmentation, up where XLA puts temporaries into output buffers that are still free.
    The first round's planner and order are kept.
    """
    limit_bytes = self._budget_bytes
    planner, order, candidates, limits = base.get_planner(self._planner), self._order, [], set()
    while len(candidates) < _MAX_ROUNDS and (not candidates or time.perf_counter() < self._deadline):
      start = time.perf_counter()
      limits.add(limit_bytes)
      module, inner = self._inner.plan(max(limit_bytes, 0), share, self._deadline)
      program, op_instruction_ids = self._read(module, None)
      time_limit_s = _SHARE_OF_TIME * max(self._deadline - time.perf_counter(), 0.0)
      result = planner.plan(program, max(limit_bytes, 0), time_limit_s=time_limit_s, **order)
      planner, order = base.get_planner(result.planner), {"order": result.order}
      self._planning_s += time.perf_counter() - start
      candidate = Candidate.of(module, program, op_instruction_ids, result, inner)
      candidates.append(candidate)
      self._log(share, limit_bytes, candidate)
      room_bytes = self._budget_bytes - candidate.predicted.temp_bytes
      if room_bytes < 0 and result.is_feasible:
        limit_bytes = min(limit_bytes, result.peak_live_bytes) + min(room_bytes, -self._budget_bytes // 200)
      elif room_bytes > _ROOM_TO_LOOSEN * self._budget_bytes and candidate.cost_s > 0:
        limit_bytes += room_bytes
      else:
        break
      if limit_bytes in limits:
        break
    return self._best(candidates)

  def _log(self, share: float, limit_bytes: int, candidate: Candidate) -> None:
    result, total_s = candidate.result, max(self._total_s, 1e-30)
    inside = "".join(
      f", {plan.name} {format_bytes(plan.result.peak_live_bytes)} ({plan.result.planner})" for plan in candidate.inner)
    self._rounds.append(
      f"round {len(self._rounds) + 1}: live limit {format_bytes(limit_bytes)}, live "
      f"{format_bytes(result.peak_live_bytes)}, heap {format_bytes(candidate.predicted.temp_bytes)}, cost "
      f"{candidate.cost_s / total_s:+.2%} ({result.planner})" + (f", share {share}{inside}" if inside else ""))

  def _excess_bytes(self, candidate: Candidate) -> int:
    return max(candidate.predicted.temp_bytes - self._budget_bytes, 0)

  def _rank(self, candidate: Candidate) -> tuple[int, float, int]:
    return self._excess_bytes(candidate), candidate.cost_s, candidate.predicted.temp_bytes

  def _best(self, candidates: Collection[Candidate]) -> Candidate:
    """See `Found`; the last percent often costs the most."""
    if any(self._excess_bytes(candidate) == 0 for candidate in candidates):
      return min(candidates, key=self._rank)
    most_bytes = _NEAR_SMALLEST * min(candidate.predicted.temp_bytes for candidate in candidates)
    near = [candidate for candidate in candidates if candidate.predicted.temp_bytes <= most_bytes]
    return min(near, key=lambda candidate: (candidate.cost_s, candidate.predicted.temp_bytes))
