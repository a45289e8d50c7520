"""The HLO engine: plans are made and carried out inside XLA's pipeline.

``remat`` marks its equations; the mark travels as a frontend attribute to the POST_SCHEDULER stage of
every program that contains them. There the hook has the module planned (`coopjax.hlo_engine.module_plan`) and hands
the rewritten bytes back. While `coopjax.enable` is in force, so are modules without a mark
(`coopjax.xla.standing`); else they are left alone after one search for the mark's bytes.

The hook never fails a user's compile: on any doubt it returns None, and says why in the log. A program that stays
over a budget that it has to hold is refused after its compile (`coopjax.hlo_engine.compiles`).
"""

import contextlib
import dataclasses
import functools
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import xla as jax_xla

from coopjax import compat, progress
from coopjax.budget import Budget
from coopjax.errors import InvalidProgramError, RematNoEffectWarning, log
from coopjax.hlo_engine import compiles, over_budget
from coopjax.hlo_engine.infeasible import why_infeasible
from coopjax.hlo_engine.mark import Mark, is_marked, marks_in
from coopjax.hlo_engine.module_plan import Outcome, plan_module
from coopjax.xla import standing, targets
from coopjax.xla.compile import module_of
from coopjax.xla.device_budget import allowed

compat.log_as_jax_does("coopjax")
_log = logging.getLogger("coopjax.hook")
# XLA:GPU tunes single instructions in modules of their own; the second field of a serialized module names its entry.
_EXTRACTED, _HEAD_BYTES = b"\x12\x11entry_computation", 4096
_BACKWARD = b"transpose("
_CHECKPOINTED = b"rematted_computation"
# Whose speeds price recomputation: a module does not tell its device, and only how ops compare matters.
_SPEEDS = {"cpu": "cpu", "cuda": "gpu:h100", "tpu": "tpu:v5e:2x2"}


@dataclasses.dataclass(eq=False)
class _Watch:
  """Somebody waits for the module of a compile.

  Attributes:
    key: of the mark that the module carries.
    goes_on: whether the compile goes on once the module is there.
    module: the module, once it is there.
  """

  key: str
  goes_on: bool
  module: bytes | None = None

  @property
  def mark(self) -> str:
    return Mark(Budget(share=1.0), key=self.key).to_text()


class _Hook:
  """The callback that is registered with XLA, and who waits for a module or for what is done to it."""

  def __init__(self):
    self._lock = threading.Lock()
    self._platforms: set[str] = set()
    self._watches: list[_Watch] = []
    self._recorders: list[tuple[str | None, list[Outcome]]] = []
    self.watcher = compiles.Watcher(self.install)
    self._scheduling = threading.local()  # .module: None while a module is waited for

  def install(self, platform: str) -> None:
    """Registers the callback for one platform, once per process."""
    with self._lock:
      if platform not in self._platforms:
        stage, callback = jax_xla.PipelineStage.POST_SCHEDULER, functools.partial(self._callback, platform)
        jax_xla.register_hlo_module_transformation(callback, name="coopjax", stage=stage, platforms=platform)
        self._platforms.add(platform)
        self.watcher.begin()

  def capture(self, program: str, compile_marked: Callable[[str], Any]) -> bytes:
    """The module that a compile reaches POST_SCHEDULER with; code generation is skipped.

    Args:
      program: identifies the program of interest, in every process.
      compile_marked: compiles it with the given mark on its equations.

    Returns:
      The serialized module.

    Raises:
      NothingToPlanError: nothing that is marked is left of the program when it is compiled.
    """
    with self._watching(f"capture {program}", goes_on=False) as watch:
      compiled = None
      try:
        compiled = compile_marked(watch.mark)
      except jax.errors.JaxRuntimeError:
        if watch.module is None:
          raise
      if watch.module is None:
        if compiled is not None and not is_marked(module_of(compiled)):
          raise NothingToPlanError("XLA leaves nothing of the program")
        raise RuntimeError("the HLO hook did not run: the program was not compiled, or its mark was lost on the way")
      return watch.module

  def observe(self, program: str, compile_marked: Callable[[str], Any]) -> tuple[bytes, Any]:
    """As :meth:`capture`, but lets the compile go on, and returns what it returns after the module."""
    with self._watching(f"observe {program}", goes_on=True) as watch:
      compiled = compile_marked(watch.mark)
    if watch.module is None:  # it came from JAX's compilation cache, which a captured one never enters
      return self.capture(program, compile_marked), compiled
    return watch.module, compiled

  def schedule[Compiled](self, compile_program: Callable[[], Compiled], *, is_sketch: bool = True) -> bytes | Compiled:
    """The module that a compile would assign buffers to, planned as its marks ask; code generation is skipped.

    Args:
      compile_program: compiles the program in this thread, for a platform whose hook is installed.
      is_sketch: it is one of many trials (`plan_module`).

    Returns:
      The serialized module; what `compile_program` returns where no hook runs. None comes from JAX's compilation cache.
    """
    compat.add_to_cache_key("schedule", _schedule_key)
    self._scheduling.module, self._scheduling.is_sketch = None, is_sketch
    try:
      return compile_program()
    except jax.errors.JaxRuntimeError:
      if self._scheduling.module is None:
        raise
      return self._scheduling.module
    finally:
      del self._scheduling.module

  @property
  def is_scheduling(self) -> bool:
    """A schedule is waited for in this thread."""
    return hasattr(self._scheduling, "module")

  @contextlib.contextmanager
  def outcomes(self, mark: str | None) -> Iterator[list[Outcome]]:
    """Collects, inside the block, what is done to modules that carry a mark; nothing without one."""
    recorder = (None if mark is None else Mark.from_text(mark).key, list[Outcome]())
    with self._lock:
      self._recorders.append(recorder)
    try:
      yield recorder[1]
    finally:
      with self._lock:
        self._recorders = [each for each in self._recorders if each is not recorder]

  @contextlib.contextmanager
  def _watching(self, what: str, *, goes_on: bool) -> Iterator[_Watch]:
    watch = _Watch(hashlib.sha256(what.encode()).hexdigest()[:16], goes_on)
    with self._lock:
      self._watches.append(watch)
    try:
      yield watch
    finally:
      with self._lock:
        self._watches = [each for each in self._watches if each is not watch]

  def _callback(self, platform: str, module_bytes: bytes) -> bytes | None:
    compiling: compiles.Compile | None = None
    try:
      if module_bytes.find(_EXTRACTED, 0, _HEAD_BYTES) >= 0:
        return None
      marks = marks_in(module_bytes)
      keys = {mark.key for mark in marks}
      watches = [watch for watch in self._watches if watch.key in keys]
      for watch in watches:
        watch.module = bytes(module_bytes)
      if watches:
        if all(watch.goes_on for watch in watches):
          return None
        raise compiles.EndedError
      asked_of_all, planned = standing_mark(platform), None
      if marks or asked_of_all is not None:
        compiling = self.watcher.of(marks)
        planned = self._planned(module_bytes, marks, asked_of_all, compiling)
      elif (entered := self.watcher.of(())) is not None:
        entered.scheduled(bytes(module_bytes))
      if self.is_scheduling:
        self._scheduling.module = planned or bytes(module_bytes)
        raise compiles.EndedError
      return planned
    except compiles.EndedError:
      raise
    except (KeyboardInterrupt, SystemExit) as error:
      if compiling is not None:
        compiling.interrupt = error
      raise
    except InvalidProgramError as error:
      log(_log, logging.INFO, "a program on %s is left as it came: %s", platform, error)
      if marks_in(module_bytes) and not standing.is_suspended():
        over_budget.warn(f"the remat of a program has no effect: {error}", RematNoEffectWarning)
      if compiling is not None:
        compiling.fail(error, is_lasting=True)
    except Exception as error:  # the compile must stand whatever happens in here
      log(_log, logging.ERROR, "planning failed; a program on %s is compiled as it came", platform, exc_info=True)
      if compiling is not None:
        compiling.fail(error)
    return None

  def _planned(
    self, module_bytes: bytes, marks: set[Mark], asked_of_all: Mark | None, compiling: compiles.Compile | None
  ) -> bytes | None:
    """What to compile in place of a module, None for the module itself; by another process of the job, maybe."""
    says_nothing_changed = asked_of_all is None and not standing.is_suspended()

    def plan() -> tuple[bytes | None, over_budget.Excess | None]:
      outcome = _plan(
        module_bytes,
        marks,
        asked_of_all,
        is_sketch=self.is_scheduling and self._scheduling.is_sketch,
        may_give_up=compiling is not None and compiling.has_other_ways,
      )
      for key, made in self._recorders:
        if any(key == mark.key for mark in marks):
          made.append(outcome)
      if says_nothing_changed and (unchanged := _without_effect(module_bytes, outcome)):
        over_budget.warn(unchanged, RematNoEffectWarning)
      if compiling is not None and outcome.is_cut_short:
        compiling.may_keep = False  # another process may find more
      if compiling is not None and outcome.fits and outcome.budget_bytes is not None:
        compiling.told(over_budget.Repeated(outcome.budget_bytes, outcome.baseline.temp_bytes, outcome.recompute_flops))
      return outcome.module_bytes, _excess(outcome, module_bytes)

    if compiling is not None:
      return compiling.planned(module_bytes, plan)
    planned, excess = plan()
    if excess is not None:
      over_budget.warn(excess.message)
    return planned


def standing_mark(platform: str) -> Mark | None:
  """What is asked of a program for a platform that the hook serves: "cpu", "cuda" or "tpu"."""
  asked = standing.current()
  if asked is None:
    return None
  device = _device(platform)
  budget = asked.budget
  if budget == standing.DEVICE:
    budget = None if device is None else Budget.total(device.memory_bytes)
  elif budget is not None and budget.fits:
    budget = None if device is None else allowed(budget, device)
  return Mark(budget, asked.planner, asked.effort, asked.time_limit_s, target=_SPEEDS[platform])


def _device(platform: str) -> targets.Target | None:
  """The device of that platform, if it is there."""
  if platform == "cpu":
    return targets.resolve("cpu")
  return targets.running() if compat.hook_platform(jax.default_backend()) == platform else None


def _plan(
  module_bytes: bytes, marks: set[Mark], asked_of_all: Mark | None, *, is_sketch: bool, may_give_up: bool
) -> Outcome:
  """The planned module; what a mark asks goes before what is asked of every program. A sketch is for a trial."""
  if not marks:
    assert asked_of_all is not None  # else there is nothing to plan
    marks = {asked_of_all}
  with progress.shown("planning a program in its compile"):
    outcome = plan_module(
      module_bytes, marks, reorders=asked_of_all is not None, is_sketch=is_sketch, may_give_up=may_give_up
    )
  for line in outcome.rounds:
    log(_log, logging.DEBUG, "%s: %s", outcome.name, line)
  log(_log, logging.INFO, "%s", outcome)
  return outcome


def _without_effect(module_bytes: bytes, outcome: Outcome) -> str:
  """What to say of a program with a gradient, and no checkpoints, that holds its budget, in bytes, as it is."""
  if outcome.budget_bytes is None or _is_share(outcome) or not outcome.fits or outcome.module_bytes is not None:
    return ""
  if _BACKWARD not in module_bytes or _CHECKPOINTED in module_bytes:
    return ""
  return compiles.without_effect(outcome.name, outcome.baseline.temp_bytes, outcome.budget_bytes)


def _is_share(outcome: Outcome) -> bool:
  return outcome.mark.budget is not None and outcome.mark.budget.share is not None


def _excess(outcome: Outcome, module_bytes: bytes) -> over_budget.Excess | None:
  """What there is to say of a program over its budget, with what forces it where that is an error; None if there is
  nothing: a share is of a gradient, and without one nothing is promised.
  """
  if outcome.fits or (_is_share(outcome) and _BACKWARD not in module_bytes):
    return None
  assert outcome.mark.budget is not None and outcome.budget_bytes is not None  # without a budget, everything fits
  budget, budget_bytes, smallest_bytes = outcome.mark.budget, outcome.budget_bytes, outcome.predicted.temp_bytes
  message = (
    f"the program {outcome.name} needs {budget.taken(smallest_bytes, budget_bytes)}, over its budget of "
    f"{budget.in_words(budget_bytes)}. {outcome.reason}"
  ).rstrip()
  # A budget is of a function with its gradient: an evaluation, or a backward pass that is compiled by itself, is only
  # told of a share of what it takes alone.
  excess = over_budget.Excess(
    message,
    budget_bytes,
    smallest_bytes,
    budget.counted_bytes(budget_bytes),
    unaided_bytes=outcome.baseline.temp_bytes,
  )
  if not (outcome.mark.refuses and over_budget.has_both_passes(module_bytes)):
    return excess
  schedule = None if outcome.result is None else outcome.result.schedule
  error = why_infeasible(
    module_bytes, message, schedule=schedule, budget_bytes=budget_bytes, smallest_bytes=smallest_bytes
  )
  return excess._replace(message=str(error), op=error.op, largest=error.largest, is_refused=True)


def _schedule_key() -> str:
  """Tells what is compiled to its schedule, which no cache ever holds, from the whole program, which one may."""
  return "coopjax schedule" if _hook.is_scheduling else ""


class NothingToPlanError(RuntimeError):
  """A program of which XLA leaves nothing that was marked: no operations, or none on anything but constants."""


_hook = _Hook()
watch, expect, plan_steps = _hook.watcher.begin, _hook.watcher.expect, _hook.watcher.plan_steps
install, capture, observe, schedule, outcomes = (
  _hook.install,
  _hook.capture,
  _hook.observe,
  _hook.schedule,
  _hook.outcomes,
)
