"""One scheduled module: what is asked of it, the plan that answers, and the rewritten bytes.

The module is the very one that is about to be allocated (optimizer, donation and sharding included). It is read,
planned and rewritten, and the outcome is verified; on any doubt the module stays as it came, with the reason.
"""

import dataclasses
import re
import time
from collections.abc import Collection

import numpy as np

from coopjax import _core
from coopjax.budget import Budget, format_bytes
from coopjax.jaxpr.tags import KEPT_SCOPE
from coopjax.planners import base
from coopjax.program.step_program import StepProgram
from coopjax.xla import targets
from coopjax.xla.program import HeapResult, parse_module, predict_memory, read_step_program
from coopjax.xla.recompute_order import Changes, recompute_order

_KEPT = re.compile(rf"\b{KEPT_SCOPE}\b")
_MAX_ROUNDS = 6
_ROOM_TO_LOOSEN = 0.03  # of the budget
_ORDERING_PLANNERS = ("fastsa", "model")  # search orders themselves; for others the order is searched as for all
_WORTH_REORDERING = 1 << 16  # bytes of temporaries; most programs of a process are single ops with less


@dataclasses.dataclass(frozen=True)
class Request:
  """What a mark, or `coopjax.enable`, asks of the hook.

  Attributes:
    budget: limit on the module's temporary memory; a share is of the module's own un-rematerialized temporaries. None
      asks for a better order alone: nothing is recomputed.
    planner: name of a planner.
    time_limit_s: seconds that planning one module may take.
    key: identifies program and request, so that compilation caches tell them apart.
    target: whose speeds give ops their modelled seconds (`coopjax.xla.targets`); a CPU's by default.
  """

  budget: Budget | None
  planner: str = "auto"
  time_limit_s: float = 10.0
  key: str = ""
  target: str = "cpu"

  def to_mark(self) -> str:
    """The request as the value of a frontend attribute; a function of the request alone, so caches may key on it."""
    limit = f"share={self.budget.share!r}" if self.budget.share is not None else f"bytes={self.budget.limit_bytes}"
    total = ";total" if self.budget.is_total else ""
    target = "" if self.target == "cpu" else f";target={self.target}"
    return f"coopjax-mark({limit}{total};planner={self.planner};limit={self.time_limit_s!r};key={self.key}{target})"

  @classmethod
  def from_mark(cls, text: str) -> "Request":
    """Reads what :meth:`to_mark` wrote."""
    fields = dict(field.partition("=")[::2] for field in text[len("coopjax-mark(") : -1].split(";"))
    share, limit_bytes = fields.get("share"), fields.get("bytes")
    budget = Budget(int(limit_bytes) if limit_bytes else None, float(share) if share else None, "total" in fields)
    return cls(budget, fields["planner"], float(fields["limit"]), fields["key"], fields.get("target", "cpu"))


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
  """What the hook did to one module.

  Attributes:
    name: of the module.
    request: what was asked.
    program: the module as it came.
    baseline: predicted memory of the module as it came.
    budget_bytes: temporary bytes allowed, None where only the order was asked for.
    result: the plan, or None when none was needed or possible.
    predicted: predicted memory of what was handed to XLA.
    module_bytes: the rewritten module, None if it was left as it came.
    reason: why it was left as it came, or "".
    rounds: one line per plan tried.
    seconds: time spent on the module, planning included.
    planning_s: time spent in the planner.
  """

  name: str
  request: Request
  program: StepProgram
  baseline: HeapResult
  budget_bytes: int | None
  result: base.PlannerResult | None
  predicted: HeapResult
  module_bytes: bytes | None = None
  reason: str = ""
  rounds: tuple[str, ...] = ()
  seconds: float = 0.0
  planning_s: float = 0.0

  @property
  def fits(self) -> bool:
    """Whether the predicted temporaries hold the budget, if there is one."""
    return self.budget_bytes is None or self.predicted.temp_bytes <= self.budget_bytes

  def __str__(self) -> str:
    """One line: the module, its temporaries before and after, what was done or why nothing was."""
    budget = "" if self.budget_bytes is None else f", budget {format_bytes(self.budget_bytes)}"
    what = f"{self.name}: temporaries {format_bytes(self.baseline.temp_bytes)}{budget}"
    if self.module_bytes is None:
      return f"{what}, left as it came in {self.seconds:.3f} s: {self.reason}"
    done = f"now {format_bytes(self.predicted.temp_bytes)} in another order"
    if num_recomputed := self.result.num_recomputed:
      done += f" with {num_recomputed} recomputed, cost {self.result.overhead(self.program):+.2%}"
    return f"{what}, {done} ({self.result.planner}, {self.seconds:.3f} s)"


def plan_module(module_bytes: bytes, requests: Collection[Request], *, reorders: bool = False) -> Outcome:
  """Plans one scheduled module and carries the plan out.

  Args:
    module_bytes: a serialized ``HloModuleProto`` at POST_SCHEDULER.
    requests: of the marks in the module, or of the process; the strictest is obeyed.
    reorders: whether the order is improved where the budget is held, too, and before anything is recomputed. Always
      so without a budget.

  Returns:
    The outcome; ``module_bytes`` is None with a reason where nothing is gained or anything is in doubt.

  Raises:
    coopjax.errors.InvalidProgramError: the bytes can't be read as a scheduled module.
  """
  start = time.perf_counter()
  module = parse_module(module_bytes)
  baseline = predict_memory(module)
  roofline = targets.resolve(min(request.target for request in requests)).roofline
  program, op_instruction_ids = read_step_program(module, roofline)
  is_kept = np.array([bool(_KEPT.search(scope)) for scope in program.op_scopes], bool)
  program = dataclasses.replace(program, op_can_recompute=program.op_can_recompute & ~is_kept)
  request, budget_bytes = _strictest(requests, baseline)
  outcome = Outcome(module.name, request, program, baseline, budget_bytes, None, baseline)
  reorders = reorders or budget_bytes is None
  if reorders and baseline.temp_bytes >= _WORTH_REORDERING:
    outcome = _reorder(outcome, module, op_instruction_ids, start + request.time_limit_s)
  elif outcome.fits:
    reason = ("there is little to gain" if reorders else
              f"{format_bytes(baseline.temp_bytes)} of temporaries already fit {format_bytes(outcome.budget_bytes)}")
    outcome = dataclasses.replace(outcome, reason=reason)
  if not outcome.fits:
    outcome = _search(outcome, module, op_instruction_ids, start + request.time_limit_s)
  return dataclasses.replace(outcome, seconds=time.perf_counter() - start)


def _strictest(requests: Collection[Request], baseline: HeapResult) -> tuple[Request, int | None]:
  """The request that leaves the module least, and the bytes of temporaries that it leaves."""
  resolved = {request: request.budget.resolve(baseline.temp_bytes, baseline.resident_bytes)
              for request in requests if request.budget}
  if not resolved:
    return min(requests, key=repr), None
  request = min(resolved, key=lambda request: (resolved[request], repr(request)))
  return request, resolved[request]


def _reorder(
  outcome: Outcome, module: _core.HloModule, op_instruction_ids: np.ndarray, deadline: float,
) -> Outcome:
  """A better order, in which every op runs once; half of the time at most, where recomputing may have to follow."""
  program, start = outcome.program, time.perf_counter()
  time_limit_s = max(deadline - start, 0.0)
  if outcome.fits and outcome.request.planner in _ORDERING_PLANNERS:
    fixed = dataclasses.replace(program, op_can_recompute=np.zeros_like(program.op_can_recompute))
    bound_bytes = int(_core.lower_bound(program.core)[0])
    result = base.get_planner(outcome.request.planner).plan(fixed, bound_bytes, time_limit_s=time_limit_s)
    return _Candidate.of(module, op_instruction_ids, result).into(outcome, module)
  found = recompute_order(module, changes=Changes.ORDER, time_limit_s=time_limit_s)
  rounds = tuple(f"order {name}: live {format_bytes(live_bytes)}, heap {format_bytes(temp_bytes)}"
                 for name, temp_bytes, live_bytes in found.orders)
  outcome = dataclasses.replace(outcome, rounds=rounds)
  if found.module_bytes is None:
    return dataclasses.replace(outcome, reason=found.reason)
  seconds = time.perf_counter() - start
  result = base.PlannerResult.of(program, found.schedule, "order", found.after.temp_bytes, seconds, found.order)
  return dataclasses.replace(
    outcome, result=result, predicted=found.after, module_bytes=found.module_bytes, planning_s=seconds)


def _search(
  outcome: Outcome, module: _core.HloModule, op_instruction_ids: np.ndarray, deadline: float,
) -> Outcome:
  """The best plan of a few rounds: within the budget, then cheap, then small.

  Planners bound live bytes, XLA packs buffers: after each round the planner's limit moves by what the predicted heap
  is off the budget, down for fragmentation, up where XLA puts temporaries into output buffers that are still free.
  The first round's planner and order are kept. A better order that was found before is the one to start from.
  """
  program, budget_bytes = outcome.program, outcome.budget_bytes
  limit_bytes, rounds, best = budget_bytes, [], None
  planner, order, planning_s = base.get_planner(outcome.request.planner), {}, outcome.planning_s
  if outcome.result is not None and outcome.request.planner not in _ORDERING_PLANNERS:
    order = {"order": outcome.result.order}
  while len(rounds) < _MAX_ROUNDS and (not rounds or time.perf_counter() < deadline):
    time_limit_s = max(deadline - time.perf_counter(), 0.0)
    result = planner.plan(program, max(limit_bytes, 0), time_limit_s=time_limit_s, **order)
    planner, order, planning_s = base.get_planner(result.planner), {"order": result.order}, planning_s + result.seconds
    candidate = _Candidate.of(module, op_instruction_ids, result)
    predicted = candidate.predicted
    rounds.append(
      f"round {len(rounds) + 1}: live limit {format_bytes(limit_bytes)}, live {format_bytes(result.peak_live_bytes)}, "
      f"heap {format_bytes(predicted.temp_bytes)}, cost {result.overhead(program):+.2%} ({result.planner})"
    )
    rank = max(predicted.temp_bytes - budget_bytes, 0), result.recompute_cost_s, predicted.temp_bytes
    if predicted.temp_bytes < outcome.predicted.temp_bytes and (best is None or rank < best[0]):
      best = rank, candidate
    room_bytes = budget_bytes - predicted.temp_bytes
    if room_bytes < 0 and result.is_feasible:
      limit_bytes = min(limit_bytes, result.peak_live_bytes) + min(room_bytes, -budget_bytes // 200)
    elif room_bytes > _ROOM_TO_LOOSEN * budget_bytes and result.recompute_cost_s > 0:
      limit_bytes += room_bytes
    else:
      break
  outcome = dataclasses.replace(outcome, rounds=(*outcome.rounds, *rounds), planning_s=planning_s)
  if best is None:
    reason = "no plan takes less memory than the module as it came" if outcome.module_bytes is None else ""
    return dataclasses.replace(outcome, reason=reason)
  return best[1].into(outcome, module)


@dataclasses.dataclass(frozen=True, eq=False)
class _Candidate:
  """A plan carried out, and the memory that it takes."""

  result: base.PlannerResult
  module: _core.HloModule
  module_bytes: bytes
  predicted: HeapResult

  @classmethod
  def of(cls, module: _core.HloModule, op_instruction_ids: np.ndarray, result: base.PlannerResult) -> "_Candidate":
    module_bytes = _core.apply_schedule(module, op_instruction_ids, result.schedule)
    candidate = parse_module(module_bytes)
    return cls(result, candidate, module_bytes, predict_memory(candidate))

  def into(self, outcome: Outcome, module: _core.HloModule) -> Outcome:
    """The outcome with this plan in it, or the reason why the plan can't be used."""
    if self.predicted.temp_bytes >= outcome.predicted.temp_bytes:
      return dataclasses.replace(outcome, reason="no plan takes less memory than the module as it came")
    if fault := _core.verify_transform(module, self.module):
      return dataclasses.replace(outcome, reason=f"the rewritten module was not proved equivalent: {fault}")
    return dataclasses.replace(
      outcome, result=self.result, predicted=self.predicted, module_bytes=self.module_bytes, reason="")
