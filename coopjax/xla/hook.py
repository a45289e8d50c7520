"""The HLO engine: plans are made and carried out inside XLA's pipeline.

``remat`` marks its equations; the mark travels as a frontend attribute to the POST_SCHEDULER stage of
every program that contains them. There the hook reads the very module that is about to be allocated
(optimizer, donation and sharding included), plans, rewrites, has the outcome verified and hands the
bytes back. Modules without a mark are left alone after one search for the mark's bytes.

The hook never fails a user's compile: on any doubt it returns None, and says why in the log.
"""

import contextlib
import dataclasses
import logging
import re
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend import xla as jax_xla

from coopjax import _core
from coopjax.budget import Budget, format_bytes
from coopjax.errors import BudgetExceededWarning
from coopjax.jaxpr.tags import KEPT_SCOPE
from coopjax.planners import base
from coopjax.program.step_program import StepProgram
from coopjax.xla import targets
from coopjax.xla.program import HeapResult, parse_module, predict_memory, read_step_program

_log = logging.getLogger("coopjax.hook")
_KEPT = re.compile(rf"\b{KEPT_SCOPE}\b")
_MARK = re.compile(rb"coopjax-mark\([^()]*\)")
# XLA:GPU tunes single instructions in modules of their own; the second field of a serialized module names its entry.
_EXTRACTED, _HEAD_BYTES = b"\x12\x11entry_computation", 4096
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


class _Hook:
  """The callback that is registered with XLA, and the captures that wait for a module."""

  def __init__(self):
    self._lock = threading.Lock()
    self._platforms: set[str] = set()
    self._captures: dict[str, bytes | None] = {}
    self._observed: set[str] = set()

  def install(self, platform: str) -> None:
    """Registers the callback for one platform, once per process."""
    with self._lock:
      if platform not in self._platforms:
        stage = jax_xla.PipelineStage.POST_SCHEDULER
        jax_xla.register_hlo_module_transformation(self._callback, name="coopjax", stage=stage, platforms=platform)
        self._platforms.add(platform)

  def capture(self, compile_marked: Callable[[str], object]) -> bytes:
    """The module that a compile reaches POST_SCHEDULER with; code generation is skipped.

    Args:
      compile_marked: compiles the program of interest with the given mark on its equations.

    Returns:
      The serialized module.
    """
    key = uuid.uuid4().hex
    with self._watching(key):
      try:
        compile_marked(_watching_mark(key))
      except jax.errors.JaxRuntimeError:
        if self._captures[key] is None:
          raise
      return self._captured(key)

  def observe(self, compile_marked: Callable[[str], Any]) -> tuple[bytes, Any]:
    """As :meth:`capture`, but lets the compile go on, and returns what it returns after the module."""
    key = uuid.uuid4().hex
    with self._watching(key):
      self._observed.add(key)
      compiled = compile_marked(_watching_mark(key))
      return self._captured(key), compiled

  @contextlib.contextmanager
  def _watching(self, key: str) -> Iterator[None]:
    with self._lock:
      self._captures[key] = None
    try:
      yield
    finally:
      with self._lock:
        self._observed.discard(key)
        del self._captures[key]

  def _captured(self, key: str) -> bytes:
    captured = self._captures[key]
    if captured is None:
      raise RuntimeError("the HLO hook did not run: the program was not compiled, or its mark was lost on the way")
    return captured

  def _callback(self, module_bytes: bytes) -> bytes | None:
    if module_bytes.find(_EXTRACTED, 0, _HEAD_BYTES) >= 0:
      return None
    requests = {Request.from_mark(match.decode()) for match in set(_MARK.findall(module_bytes))}
    for request in requests:
      if request.key in self._captures:
        self._captures[request.key] = bytes(module_bytes)
        if request.key in self._observed:
          return None
        raise _CapturedError
    if not requests:
      return None
    try:
      return self._plan(module_bytes, requests)
    except Exception:  # the compile must stand whatever happens in here
      _log.exception("planning failed; the program is compiled as it came")
      return None

  def _plan(self, module_bytes: bytes, requests: set[Request]) -> bytes | None:
    outcome = plan_module(module_bytes, requests)
    for line in outcome.rounds:
      _log.debug(line)
    _log.info(
      "temporaries %s, budget %s, planned %s in %.2f s%s", format_bytes(outcome.baseline.temp_bytes),
      format_bytes(outcome.budget_bytes), format_bytes(outcome.predicted.temp_bytes), outcome.seconds,
      f": {outcome.reason}" if outcome.reason else "",
    )
    if not outcome.fits:
      _warn_over_budget(outcome)
    return outcome.module_bytes


def _warn_over_budget(outcome: Outcome) -> None:
  message = (
    f"a program with a coopjax.remat in it needs {format_bytes(outcome.predicted.temp_bytes)} of temporaries, over its "
    f"budget of {format_bytes(outcome.budget_bytes)}. {outcome.reason}"
  ).rstrip()
  try:
    warnings.warn(message, BudgetExceededWarning, stacklevel=2)
  except BudgetExceededWarning:  # warnings are errors here, but an error in the callback would fail the compile
    _log.warning(message)


def _watching_mark(key: str) -> str:
  return Request(Budget(share=1.0), key=key).to_mark()


class _CapturedError(Exception):
  """Ends a compile whose module was all that was wanted."""


_hook = _Hook()
install, capture, observe = _hook.install, _hook.capture, _hook.observe
