"""How a traced function is carried out: decided once per program and request, on the module that XLA schedules for it."""

import collections
import dataclasses
import hashlib
import re
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from coopjax import __version__, compat
from coopjax.budget import Budget, format_bytes
from coopjax.errors import BudgetExceededWarning, BudgetInfeasibleError, NotDifferentiableError, RematNoEffectWarning
from coopjax.jaxpr import policy as jaxpr_policy
from coopjax.jaxpr import rewrite
from coopjax.jaxpr.tags import tag_jaxpr, tagged_fn
from coopjax.jaxpr.trace import TracedFn, differentiable, fn_and_gradient
from coopjax.planners import base
from coopjax.program import explain
from coopjax.program.step_program import StepProgram
from coopjax.remat_plan import MemoryProfile
from coopjax.xla import hook
from coopjax.xla.compile import compile_abstract, measure, module_of
from coopjax.xla.program import HeapResult, read_step_program

ENGINES = ("auto", "hlo", "policy")
ON_INFEASIBLE = ("error", "best_effort")
_KEPT_CHOICES = 256
_ADDRESS = re.compile(r"\b0x[0-9a-f]+\b")
_FOLDED = re.compile(r"(random_fold_in \w+) \d+:")  # a module's path as a number, in Flax


@dataclasses.dataclass(frozen=True)
class Request:
  """A validated request; hashable, so that choices are kept under it."""

  budget: Budget
  planner: str
  engine: str
  time_limit_s: float
  on_infeasible: str

  @classmethod
  def checked(cls, budget, planner, engine, target, time_limit_s, on_infeasible) -> "Request":
    """The arguments of ``remat`` as a request; ``InvalidBudgetError`` or ``ValueError`` names what is wrong."""
    base.get_planner(planner)
    if engine not in ENGINES:
      raise ValueError(f"engine={engine!r}: one of {', '.join(ENGINES)}")
    if on_infeasible not in ON_INFEASIBLE:
      raise ValueError(f"on_infeasible={on_infeasible!r}: one of {', '.join(ON_INFEASIBLE)}")
    if target is not None and target != jax.default_backend():
      raise ValueError(f"target={target!r}: only the default backend ({jax.default_backend()!r}) can be planned for")
    if not time_limit_s > 0:
      raise ValueError(f"time_limit_s={time_limit_s!r}: a positive number of seconds")
    return cls(Budget.parse(budget), planner, engine, float(time_limit_s), on_infeasible)


@dataclasses.dataclass(frozen=True)
class Choice:
  """How a traced function is carried out: under a mark for the HLO engine, rewritten, both, or as it is."""

  mark: str | None = None
  decisions: rewrite.PolicyDecisions | None = None

  @property
  def engine(self) -> str:
    """The engines at work: "hlo", "policy", "policy+hlo" or "none"."""
    return "+".join(name for name, used in (("policy", self.decisions), ("hlo", self.mark)) if used) or "none"

  def flat_fn(self, traced: TracedFn) -> Callable[..., list[Any]]:
    """The function carried out this way, in place of ``traced.evaluate``."""
    if self.decisions is not None:
      return rewrite.rewrite(traced, self.decisions, self.mark)
    return tagged_fn(traced, self.mark) if self.mark else traced.evaluate


@dataclasses.dataclass(frozen=True)
class Decided:
  """A choice together with what the planning module showed."""

  choice: Choice
  outcome: hook.Outcome | None = None
  policy_plan: jaxpr_policy.PolicyPlan | None = None


class KeptChoices:
  """Choices by fingerprint and request, the latest so many of this process; safe under threads."""

  def __init__(self):
    self._choices: collections.OrderedDict[tuple[str, Request], Choice] = collections.OrderedDict()
    self._lock = threading.Lock()

  def get(self, key: tuple[str, Request]) -> Choice | None:
    with self._lock:
      return self._choices.get(key)

  def put(self, key: tuple[str, Request], choice: Choice) -> None:
    with self._lock:
      self._choices[key] = choice
      while len(self._choices) > _KEPT_CHOICES:
        self._choices.popitem(last=False)


_choices = KeptChoices()


def choose(traced: TracedFn, request: Request) -> Choice:
  """The choice for this program and request, made once per process.

  A program that can't be planned because it has no gradient is left as it is, with a warning.
  """
  key = (fingerprint_of(traced), request)
  if choice := _choices.get(key):
    return choice
  try:
    decided = decide(differentiable(traced), request, key[0], planners=("peak", request.planner))
  except NotDifferentiableError as error:
    warnings.warn(f"coopjax.remat has no effect: {error}", RematNoEffectWarning, stacklevel=3)
    return Choice()
  except BudgetInfeasibleError:
    if jax.device_count() == 1:
      raise
    # A trace does not say how its inputs are sharded: the hook, which sees one device's program, decides.
    decided = Decided(Choice(mark_of(key[0], request.budget, request.planner, request.time_limit_s)))
  outcome = decided.outcome
  if outcome and outcome.baseline.temp_bytes <= outcome.budget_bytes and request.budget.share is None:
    warn_no_effect(traced, outcome.baseline, outcome.budget_bytes, outcome)
  _choices.put(key, decided.choice)
  return decided.choice


def decide(traced: TracedFn, request: Request, fingerprint: str, planners: Sequence[str]) -> Decided:
  """Plans fn with its gradient on the module that XLA schedules for it, without generating code.

  Args:
    traced: the function.
    request: what is asked.
    fingerprint: of the function.
    planners: tried in turn until one reaches the budget. Where only that matters, because the hook will plan the
      user's own program, a fast one comes first.

  Raises:
    BudgetInfeasibleError: no plan reaches the budget and the request says "error".
  """
  platform = compat.hook_platform(jax.default_backend())
  if request.engine == "hlo" and platform is None:
    raise ValueError(f"engine='hlo': JAX {jax.__version__} has no HLO hook on {jax.default_backend()}; use 'policy'")
  if request.engine == "policy" or platform is None:
    return _decide_policy(traced, request, None, fingerprint)
  hook.install(platform)
  module = hook.capture(lambda mark: compile_abstract(*fn_and_gradient(traced, tagged_fn(traced, mark))))
  mark = mark_of(fingerprint, request.budget, request.planner, request.time_limit_s)
  for planner in dict.fromkeys(planners):
    outcome = hook.plan_module(module, [hook.Request(request.budget, planner, request.time_limit_s)])
    if outcome.fits:
      break
  if not outcome.fits and request.engine == "auto":
    return _decide_policy(traced, request, outcome, fingerprint)
  if not outcome.fits:
    schedule = outcome.program.schedule if outcome.result is None else outcome.result.schedule
    _report_infeasible(
      traced, request, outcome.budget_bytes, outcome.predicted.temp_bytes, outcome.program, schedule)
  return Decided(Choice(mark), outcome)


def _decide_policy(
  traced: TracedFn, request: Request, outcome: hook.Outcome | None, fingerprint: str,
) -> Decided:
  """Plans checkpoint segments; every round is a compile. With an outcome, the HLO engine works under them.

  A share is settled here, in bytes: the hook will not see the un-rematerialized program again.
  """
  baseline = outcome.baseline if outcome else measure(compile_abstract(*fn_and_gradient(traced)))
  budget_bytes = request.budget.resolve(baseline.temp_bytes, baseline.resident_bytes)
  if baseline.temp_bytes <= budget_bytes:
    return Decided(Choice(), outcome)
  mark = mark_of(fingerprint, Budget(budget_bytes), request.planner, request.time_limit_s) if outcome else None
  found = None
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", BudgetExceededWarning)  # trials may miss the budget
    for only_scans in (True, False) if mark else (False,):
      if found is None or not found.is_feasible:
        found = jaxpr_policy.plan_policy(
          traced, budget_bytes, compile_abstract, baseline.temp_bytes, mark=mark, only_scans=only_scans)
  if not found.is_feasible:
    smallest = compile_abstract(*fn_and_gradient(traced, rewrite.rewrite(traced, found.decisions, mark)))
    program, _ = read_step_program(module_of(smallest))
    _report_infeasible(traced, request, budget_bytes, found.smallest_bytes, program, program.schedule)
  return Decided(Choice(mark, found.decisions), outcome, found)


def mark_of(fingerprint: str, budget: Budget, planner: str, time_limit_s: float) -> str:
  """The mark of a traced program: the same for the same program, request and coopjax, in every process.

  Compilation caches key on it, so an executable that another version of coopjax planned is not taken for this one's.
  """
  key = _hash(f"{__version__} {fingerprint} {budget} {planner} {time_limit_s}")
  return hook.Request(budget, planner, time_limit_s, key).to_mark()


def _report_infeasible(
  traced: TracedFn, request: Request, budget_bytes: int, smallest_bytes: int, program: StepProgram, schedule: np.ndarray,
) -> None:
  """Raises, or warns for a best effort, with the smallest reachable bytes and what forces them."""
  error = explain.infeasible(
    program, schedule,
    f"no plan brings {traced.name} and its gradient within the budget of {format_bytes(budget_bytes)} of temporaries; the "
    f"smallest reached is {format_bytes(smallest_bytes)} (planner {request.planner}, engine {request.engine})",
    budget_bytes=budget_bytes, smallest_bytes=smallest_bytes)
  error.add_note("try a larger budget, a smaller batch, or on_infeasible='best_effort'")
  if request.on_infeasible == "error":
    raise error
  warnings.warn(str(error), BudgetExceededWarning, stacklevel=5)


def warn_no_effect(
  traced: TracedFn, baseline: MemoryProfile | HeapResult, budget_bytes: int, outcome: hook.Outcome | None,
) -> None:
  """Warns that nothing was changed in the compiled program, and why."""
  if baseline.temp_bytes <= budget_bytes:
    cause = (
      f"{traced.name} and its gradient take {format_bytes(baseline.temp_bytes)} of temporaries, within the budget of "
      f"{format_bytes(budget_bytes)} as they are"
    )
  else:
    cause = outcome.reason if outcome and outcome.reason else "the compiled program takes no less than without it"
  warnings.warn(f"the remat of {traced.name} has no effect: {cause}", RematNoEffectWarning, stacklevel=4)


def fingerprint_of(traced: TracedFn) -> str:
  """A hash of the traced program that is the same in every process: its text, without object addresses.

  Constants folded into random keys don't count: a plan for one layer's dropout is a plan for another's.
  """
  text = _FOLDED.sub(r"\1 _:", _ADDRESS.sub("", str(traced.jaxpr)))
  if traced.policy is not None:
    text += str([info.id for info in tag_jaxpr(traced.jaxpr, policy=traced.policy)[1] if info.is_kept])
  return _hash(text)


def _hash(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()[:16]
