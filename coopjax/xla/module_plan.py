"""One scheduled module: what is asked of it, the plan that answers, and the rewritten bytes.

The module is the very one that is about to be allocated (optimizer, donation and sharding included). It is read, planned
and rewritten, and the outcome is verified; on any doubt the module stays as it came, with the reason.
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

_KEPT = re.compile(rf"\b{KEPT_SCOPE}\b")
_MAX_ROUNDS = 6
_ROOM_TO_LOOSEN = 0.03  # of the budget


@dataclasses.dataclass(frozen=True)
class Request:
  """What a mark asks of the hook.

  Attributes:
    budget: limit on the module's temporary memory; a share is of the module's own un-rematerialized temporaries.
    planner: name of a planner.
    time_limit_s: seconds that planning one module may take.
    key: identifies program and request, so that compilation caches tell them apart.
    target: whose speeds give ops their modelled seconds (`coopjax.xla.targets`); a CPU's by default.
  """

  budget: Budget
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
    request: what was asked.
    program: the module as it came.
    baseline: predicted memory of the module as it came.
    budget_bytes: temporary bytes allowed.
    result: the plan, or None when none was needed or possible.
    predicted: predicted memory of what was handed to XLA.
    module_bytes: the rewritten module, None if it was left as it came.
    reason: why it was left as it came, or "".
    rounds: one line per plan tried.
    seconds: time spent on the module, planning included.
    planning_s: time spent in the planner.
  """

  request: Request
  program: StepProgram
  baseline: HeapResult
  budget_bytes: int
  result: base.PlannerResult | None
  predicted: HeapResult
  module_bytes: bytes | None
  reason: str
  rounds: tuple[str, ...]
  seconds: float
  planning_s: float

  @property
  def fits(self) -> bool:
    """Whether the predicted temporaries hold the budget."""
    return self.predicted.temp_bytes <= self.budget_bytes


def plan_module(module_bytes: bytes, requests: Collection[Request]) -> Outcome:
  """Plans one scheduled module and carries the plan out.

  Args:
    module_bytes: a serialized ``HloModuleProto`` at POST_SCHEDULER.
    requests: of the marks in the module; the strictest is obeyed.

  Returns:
    The outcome; ``module_bytes`` is None with a reason where nothing is gained or anything is in doubt.
  """
  start = time.perf_counter()
  module = parse_module(module_bytes)
  baseline = predict_memory(module)
  roofline = targets.resolve(min(request.target for request in requests)).roofline
  program, op_instruction_ids = read_step_program(module, roofline)
  is_kept = np.array([bool(_KEPT.search(scope)) for scope in program.op_scopes], bool)
  program = dataclasses.replace(program, op_can_recompute=program.op_can_recompute & ~is_kept)
  resolved = {request: request.budget.resolve(baseline.temp_bytes, baseline.resident_bytes) for request in requests}
  request = min(resolved, key=resolved.get)
  outcome = Outcome(request, program, baseline, resolved[request], None, baseline, None, "", (), 0.0, 0.0)
  if outcome.fits:
    reason = f"{format_bytes(baseline.temp_bytes)} of temporaries already fit {format_bytes(outcome.budget_bytes)}"
    outcome = dataclasses.replace(outcome, reason=reason)
  else:
    outcome = _search(outcome, module, op_instruction_ids, start + request.time_limit_s)
  return dataclasses.replace(outcome, seconds=time.perf_counter() - start)


def _search(
  outcome: Outcome, module: _core.HloModule, op_instruction_ids: np.ndarray, deadline: float,
) -> Outcome:
  """The best plan of a few rounds: within the budget, then cheap, then small.

  Planners bound live bytes, XLA packs buffers: after each round the planner's limit moves by what the predicted heap
  is off the budget, down for fragmentation, up where XLA puts temporaries into output buffers that are still free.
  The first round's planner and order are kept.
  """
  program, budget_bytes = outcome.program, outcome.budget_bytes
  limit_bytes, rounds, best = budget_bytes, [], None
  planner, order, planning_s = base.get_planner(outcome.request.planner), {}, 0.0
  while len(rounds) < _MAX_ROUNDS and (not rounds or time.perf_counter() < deadline):
    time_limit_s = max(deadline - time.perf_counter(), 0.0)
    result = planner.plan(program, max(limit_bytes, 0), time_limit_s=time_limit_s, **order)
    planner, order, planning_s = base.get_planner(result.planner), {"order": result.order}, planning_s + result.seconds
    candidate_bytes = _core.apply_schedule(module, op_instruction_ids, result.schedule)
    candidate = parse_module(candidate_bytes)
    predicted = predict_memory(candidate)
    rounds.append(
      f"round {len(rounds) + 1}: live limit {format_bytes(limit_bytes)}, live {format_bytes(result.peak_live_bytes)}, "
      f"heap {format_bytes(predicted.temp_bytes)}, cost {result.overhead(program):+.2%} ({result.planner})"
    )
    rank = max(predicted.temp_bytes - budget_bytes, 0), result.recompute_cost_s, predicted.temp_bytes
    if predicted.temp_bytes < outcome.baseline.temp_bytes and (best is None or rank < best[0]):
      best = rank, result, predicted, candidate_bytes, candidate
    room_bytes = budget_bytes - predicted.temp_bytes
    if room_bytes < 0 and result.is_feasible:
      limit_bytes = min(limit_bytes, result.peak_live_bytes) + min(room_bytes, -budget_bytes // 200)
    elif room_bytes > _ROOM_TO_LOOSEN * budget_bytes and result.recompute_cost_s > 0:
      limit_bytes += room_bytes
    else:
      break
  outcome = dataclasses.replace(outcome, rounds=tuple(rounds), planning_s=planning_s)
  if best is None:
    return dataclasses.replace(outcome, reason="no plan takes less memory than the module as it came")
  _, result, predicted, candidate_bytes, candidate = best
  if fault := _core.verify_transform(module, candidate):
    return dataclasses.replace(outcome, reason=f"the rewritten module was not proved equivalent: {fault}")
  return dataclasses.replace(outcome, result=result, predicted=predicted, module_bytes=candidate_bytes)
