"""How a traced function is carried out: decided once per program and request, on the module that XLA schedules for it."""

import collections
import dataclasses
import hashlib
import logging
import math
import os
import re
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from coopjax import __version__, cache, compat, host_offload
from coopjax.budget import Budget, format_bytes
from coopjax.errors import (
  BudgetExceededWarning, CompileMemoryError, InvalidProgramError, NotDifferentiableError, RematNoEffectWarning,
  ShardingUnknownWarning,
)
from coopjax.jaxpr import cost, rewrite
from coopjax.jaxpr import policy as jaxpr_policy
from coopjax.jaxpr.profile import Profile
from coopjax.jaxpr.tags import tag_jaxpr, tagged_fn
from coopjax.jaxpr.trace import TracedFn, differentiable, fn_and_gradient
from coopjax.memory_profile import MemoryProfile
from coopjax.request import Request, Trials
from coopjax.unplanned import Unplanned
from coopjax.xla import hook
from coopjax.xla.compile import compile_abstract, measure, module_of
from coopjax.xla.infeasible import infeasible
from coopjax.xla.profiling import profile_of, profile_of_module
from coopjax.xla.program import HeapResult, predict_memory

_KEPT_CHOICES = 256
_COMPILED_ROUNDS = 4  # each compiles for an accelerator
_TRIAL_TIME = 0.15  # of the time limit, for the HLO engine under one of several trials
_DEAR = 0.5  # of the forward pass repeated by the HLO engine alone: the policy engine is asked, too
one_by_one = jax.make_user_context(False)  # whether what is being traced will run operation by operation
_log = logging.getLogger("coopjax.choice")
_LIBRARIES = tuple(os.path.dirname(file) + os.sep for file in (__file__, jax.__file__))  # a warning's line is not theirs
_ADDRESS = re.compile(r"\b0x[0-9a-f]+\b")
_FOLDED = re.compile(r"(random_fold_in \w+) \d+:")  # a module's path as a number, in Flax


@dataclasses.dataclass(frozen=True)
class Choice:
  """How a traced function is carried out: under a mark for the HLO engine, rewritten, both, or as it is."""

  mark: str | None = None
  decisions: rewrite.PolicyDecisions | None = None

  @property
  def engine(self) -> str:
    """The engines at work: "hlo", "policy", "policy+hlo" or "none"."""
    return "+".join(name for name, used in (("policy", self.decisions), ("hlo", self.mark)) if used) or "none"

  @classmethod
  def from_json(cls, fields: dict[str, Any]) -> "Choice":
    """The inverse of `dataclasses.asdict`, whether or not it went through JSON."""
    mark, decisions = fields["mark"], fields["decisions"]
    if not isinstance(mark, str | None):
      raise TypeError(f"a mark is text, not {mark!r}")
    return cls(mark, None if decisions is None else rewrite.PolicyDecisions.from_json(decisions))

  def flat_fn(self, traced: TracedFn) -> Callable[..., list[Any]]:
    """The function carried out this way, in place of ``traced.evaluate``."""
    if self.decisions is not None:
      return rewrite.rewrite(traced, self.decisions, self.mark)
    return tagged_fn(traced, self.mark) if self.mark else traced.evaluate

  def here(self, name: str) -> "Choice":
    """The choice for a call that is made now: where operations run one by one, no mark asks anything of them.

    Warns where forward and backward pass are not one program, so that the HLO engine can't recompute across them.
    """
    if self.mark is None:
      return self
    if compat.has_backward_outside():
      what = f"the remat of {name}" if self.decisions is None else f"the HLO engine's part in the remat of {name}"
      warnings.warn(
        f"{what} has no effect: the gradient is taken outside of jax.jit, so the backward pass is not compiled together "
        "with what it needs of the forward pass. Put jax.jit around the function that takes the gradient",
        RematNoEffectWarning, skip_file_prefixes=_LIBRARIES)
    return dataclasses.replace(self, mark=None) if one_by_one.value or compat.is_eager() else self


@dataclasses.dataclass(frozen=True)
class Decided:
  """A choice together with what the planning module showed."""

  choice: Choice
  outcome: hook.Outcome | None = None
  policy_plan: jaxpr_policy.PolicyPlan | None = None
  is_certain: bool = True
  baseline: MemoryProfile | None = None
  measured: MemoryProfile | None = None

  @property
  def temp_bytes(self) -> int:
    """Of what was compiled last, at an accelerator."""
    return (self.measured or self.baseline).temp_bytes

  @property
  def holds_budget(self) -> bool:
    """The planning module fits; False where only a warning let a larger one pass, or nothing needed to be done."""
    if not self.is_certain:
      return False
    if self.policy_plan is not None:
      return self.policy_plan.is_feasible
    return self.outcome is not None and self.outcome.fits and self.outcome.module_bytes is not None


class KeptChoices:
  """Choices by fingerprint and request: in memory the latest so many of this process, on disk those that hold their
  budget; safe under threads and processes."""

  def __init__(self):
    self._choices: collections.OrderedDict[tuple[str, Request], Choice] = collections.OrderedDict()
    self._lock = threading.Lock()

  def get(self, key: tuple[str, Request]) -> Choice | None:
    with self._lock:
      found = self._choices.get(key)
    if found is None and (found := cache.load(_cache_key(key), Choice.from_json)):
      self._remember(key, found)
    return found

  def put(self, key: tuple[str, Request], choice: Choice, holds_budget: bool) -> None:
    self._remember(key, choice)
    if holds_budget:
      cache.store(_cache_key(key), dataclasses.asdict(choice))

  def _remember(self, key: tuple[str, Request], choice: Choice) -> None:
    with self._lock:
      self._choices[key] = choice
      while len(self._choices) > _KEPT_CHOICES:
        self._choices.popitem(last=False)


def _cache_key(key: tuple[str, Request]) -> cache.Key:
  return cache.Key(key[0], repr(key[1]), cache.environment())


_choices = KeptChoices()


def choose(traced: TracedFn, request: Request) -> Choice:
  """The choice for this program and request, made once per process, and kept on disk for the next one.

  A program that can't be planned because it has no gradient is left as it is, with a warning. One whose sizes are
  symbols (`jax.export`) can't be compiled yet: what it is compiled to when they are known, the hook plans.
  """
  fingerprint, key = fingerprint_of(traced), key_of(traced, request)
  if traced.has_symbolic_sizes:
    return _choose_for_any_size(traced, request, fingerprint)
  if choice := _choices.get(key):
    if choice.mark is not None:
      hook.install(compat.hook_platform(request.platform))
    return choice
  if request.engine == "auto" and request.target and not request.device.is_running:
    request = dataclasses.replace(request, engine="policy")  # no hook of the running backend plans for another
  try:
    traced = differentiable(traced)
    unplanned = Unplanned.of(traced, request.device)
    decided = decide(traced, unplanned, request, fingerprint, planners=("peak", request.planner))
  except NotDifferentiableError as error:
    warnings.warn(f"coopjax.remat has no effect: {error}", RematNoEffectWarning, stacklevel=3)
    return Choice()
  outcome = decided.outcome
  if outcome and outcome.baseline.temp_bytes <= outcome.budget_bytes and request.budget.share is None:
    warn_no_effect(traced, outcome.baseline, outcome.budget_bytes, outcome)
  elif decided.baseline and decided.choice == Choice() and request.budget.share is None:
    baseline = decided.baseline
    warn_no_effect(traced, baseline, request.budget.resolve(baseline.temp_bytes, baseline.resident_bytes), None)
  _choices.put(key, decided.choice, decided.holds_budget)
  return decided.choice


def _choose_for_any_size(traced: TracedFn, request: Request, fingerprint: str) -> Choice:
  platform = compat.hook_platform(request.platform)
  if request.engine == "policy" or platform is None:
    warnings.warn(f"coopjax.remat has no effect: {traced.name} is traced for symbolic sizes, for which nothing can be "
                  "compiled, and so nothing is known of its memory", RematNoEffectWarning, stacklevel=4)
    return Choice()
  hook.install(platform)
  return Choice(mark_of(fingerprint, request.budget, request.planner, request.time_limit_s, request.speeds.name))


def decide(
  traced: TracedFn, unplanned: Unplanned, request: Request, fingerprint: str, planners: Sequence[str],
) -> Decided:
  """Plans fn with its gradient on the module that XLA schedules for it, without generating code.

  Args:
    traced: the function.
    unplanned: it with its gradient, compiled.
    request: what is asked.
    fingerprint: of the function.
    planners: tried in turn until one reaches the budget. Where only that matters, because the hook will plan the
      user's own program, a fast one comes first.

  Raises:
    BudgetInfeasibleError: no plan reaches the budget and the request says "error".
  """
  request = dataclasses.replace(request, engine=host_offload.engine_for(traced, request.engine, request.platform))
  platform = compat.hook_platform(request.platform)
  if request.engine == "hlo" and platform is None:
    raise ValueError(f"engine='hlo': JAX {jax.__version__} has no HLO hook on {request.platform}; use 'policy'")
  # What XLA:TPU moves to vector memory after the hook, no mark of a budget can foresee for the user's own program.
  if request.engine == "policy" or platform is None or (request.engine == "auto" and platform == "tpu"):
    return _decide_policy(traced, unplanned, request, None, fingerprint)
  if platform != "cpu":
    return _decide_compiled(traced, unplanned, request, platform, fingerprint, planners)
  hook.install(platform)
  mark = mark_of(fingerprint, request.budget, request.planner, request.time_limit_s)
  outcome = _planned_module(traced, request, unplanned.module, request.budget, planners)
  if request.engine == "auto" and (not outcome.fits or _is_dear(traced, outcome)):
    rival = Decided(Choice(mark), outcome) if outcome.fits else None
    profile = profile_of_module(traced, unplanned.module)
    return _decide_policy(traced, unplanned, request, outcome, fingerprint, profile=profile, rival=rival)
  if not outcome.fits and traced.placement.is_known:  # else the hook, which sees one device's program, decides
    _report_missed(traced, request, outcome, unplanned.module)
  return Decided(Choice(mark), outcome)


def _decide_compiled(
  traced: TracedFn, unplanned: Unplanned, request: Request, platform: str, fingerprint: str, planners: Sequence[str],
) -> Decided:
  """Plans as `decide` for an accelerator, where the compiled program need not take what the model predicts.

  XLA:TPU moves values into vector memory after the hook. So a share is of what is compiled, and a plan of the HLO
  engine counts if it holds the budget when compiled: the model's limit follows from what that took, in a few rounds.
  """
  try:
    if request.device is not None:
      request.device.load()
    hook.install(platform)
    module, baseline = unplanned.observed
  except RuntimeError:  # the hook did not run
    if request.engine == "hlo":
      raise
    return _decide_policy(traced, unplanned, request, None, fingerprint)
  budget = Budget(request.budget.resolve(baseline.temp_bytes, baseline.resident_bytes))
  if baseline.temp_bytes <= budget.limit_bytes:
    return Decided(Choice(), baseline=baseline)
  try:
    limit_bytes = budget.limit_bytes + max(predict_memory(module).temp_bytes - baseline.temp_bytes, 0)
  except InvalidProgramError as error:
    if request.engine == "hlo":
      raise InvalidProgramError(f"engine='hlo' can't read the modules of XLA:{platform.upper()}: {error}") from error
    return _decide_policy(traced, unplanned, request, None, fingerprint, baseline)
  best = None
  for _ in range(_COMPILED_ROUNDS):
    limit = Budget(limit_bytes)
    outcome = _planned_module(traced, request, module, limit, planners)
    mark = mark_of(fingerprint, limit, request.planner, request.time_limit_s, request.speeds.name)
    measured = None
    if outcome.fits or request.engine == "hlo":
      measured = _measure_marked(traced, request, mark)
    if best is None or (measured and measured.temp_bytes < best.temp_bytes):
      best = Decided(Choice(mark), outcome, baseline=baseline, measured=measured)
    if measured and measured.temp_bytes <= budget.limit_bytes:
      if request.engine == "auto" and _is_dear(traced, outcome):
        profile = profile_of_module(traced, module, baseline.temp_bytes)
        return _decide_policy(traced, unplanned, request, outcome, fingerprint, baseline, profile, rival=best)
      return best
    if not (measured and outcome.fits):
      break
    excess_bytes = measured.temp_bytes - budget.limit_bytes
    in_proportion = int(limit_bytes * budget.limit_bytes / measured.temp_bytes)
    limit_bytes = max(min(limit_bytes - excess_bytes, in_proportion), 1)
  if request.engine == "auto":
    profile = profile_of_module(traced, module, baseline.temp_bytes)
    return _decide_policy(traced, unplanned, request, best.outcome, fingerprint, baseline, profile)
  _report_infeasible(traced, request, budget.limit_bytes, best.temp_bytes, module)
  return best


def _planned_module(
  traced: TracedFn, request: Request, module: bytes, budget: Budget, planners: Sequence[str],
) -> hook.Outcome:
  """What the HLO engine makes of the module: by the first planner whose plan fits and is not dear, or by the last."""
  for planner in dict.fromkeys(planners):
    asked = hook.Request(budget, planner, request.time_limit_s, target=request.speeds.name)
    outcome = hook.plan_module(module, [asked])
    if outcome.fits and not _is_dear(traced, outcome):
      break
  return outcome


def _is_dear(traced: TracedFn, outcome: hook.Outcome) -> bool:
  """Whether the HLO engine repeats so much that the policy engine, whose compiles tell what they take, may do better."""
  return traced.placement.is_known and outcome.recompute_flops > _DEAR * cost.jaxpr_flops(traced.inlined)


def _measure_marked(traced: TracedFn, request: Request, mark: str) -> MemoryProfile | None:
  """The program that the HLO engine makes, compiled; None where XLA does not take it."""
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", BudgetExceededWarning)  # what does not hold the budget is not taken
    try:
      return measure(
        compile_abstract(*fn_and_gradient(traced, tagged_fn(traced, mark)), request.device), request.device)
    except (jax.errors.JaxRuntimeError, CompileMemoryError) as error:
      _log.info("the HLO engine's program for %s does not compile: %s", traced.name, error)
      return None


def _decide_policy(
  traced: TracedFn, unplanned: Unplanned, request: Request, outcome: hook.Outcome | None, fingerprint: str,
  baseline: MemoryProfile | None = None, profile: Profile | None = None, rival: Decided | None = None,
) -> Decided:
  """Plans checkpoint segments; every round is a compile. With an outcome, the HLO engine works under them.

  A rival holds the budget by the HLO engine alone, and is what is decided if no segments take fewer FLOPs. A share is
  settled here, in bytes: the hook will not see the un-rematerialized program again.
  """
  if outcome is None and baseline is None:
    baseline, profile = measure(unplanned.tagged, request.device), profile_of(traced, unplanned.tagged)
  known, baseline = baseline, baseline or outcome.baseline
  budget_bytes = request.budget.resolve(baseline.temp_bytes, baseline.resident_bytes)
  if baseline.temp_bytes <= budget_bytes:
    return Decided(Choice(), outcome, baseline=known)
  is_known, is_spread = traced.placement.is_known, traced.placement.is_spread
  mark, trial_mark = (outcome and mark_of(
    fingerprint, Budget(budget_bytes), request.planner, share * request.time_limit_s, request.speeds.name)
    for share in (1.0, _TRIAL_TIME if known is None else 1.0))  # elsewhere a trial's compile is the plan's
  trials, found = Trials(request, trial_mark), list[jaxpr_policy.PolicyPlan]()
  below_flops = rival.outcome.recompute_flops if rival else math.inf
  link = host_offload.link(request.budget, request.device)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", BudgetExceededWarning)  # trials may miss the budget
    # Straight-line code of a program that will be partitioned is left to the hook. One that will be batched is larger
    # than this: what the HLO engine can't do for one example, it can't for many.
    for only_scans in (False,) if not mark else (True, False) if is_known or not is_spread else (True,):
      if not found or not found[-1].is_feasible:
        found.append(jaxpr_policy.plan_policy(
          traced, budget_bytes, trials.compile, baseline.temp_bytes, mark=trial_mark, only_scans=only_scans,
          profile=profile, link=link, planner=request.planner, aid_of=trials.aid,
          below_flops=below_flops))
    best = found[-1] if found[-1].is_feasible else min(found, key=lambda plan: plan.smallest_bytes)
    if rival and not (best.is_feasible and best.recompute_flops < below_flops):
      return rival
    if trials.smallest is None and not best.is_feasible:
      trials.compile(*fn_and_gradient(traced, tagged_fn(traced, trial_mark)))
  if not is_known and (mark or traced.placement.is_spread):
    return _carry_over(traced, request, outcome, fingerprint, best if best.is_feasible else found[0])
  if not best.is_feasible:
    if known is None and outcome.predicted.temp_bytes < best.smallest_bytes:  # the HLO engine alone comes nearer
      _report_missed(traced, request, outcome, unplanned.module)
      return Decided(Choice(mark), outcome)
    _report_infeasible(traced, request, budget_bytes, best.smallest_bytes, module_of(trials.smallest))
  measured = trials.measured(best.temp_bytes) if mark == trial_mark else None
  return Decided(Choice(mark, best.decisions), outcome, best, baseline=known, measured=measured)


def _carry_over(
  traced: TracedFn, request: Request, outcome: hook.Outcome | None, fingerprint: str, found: jaxpr_policy.PolicyPlan,
) -> Decided:
  """The choice for a program whose partitioning the trace does not show, from a plan for all devices together.

  One device's program is no larger, so bytes that all hold together each one holds, and what can't be reached here
  may be reached there. A share is carried over in proportion, as it is from one example to all of a `vmap`. The hook,
  if it is at work, has the last word.
  """
  decisions, budget = found.decisions if found.decisions.regions else None, request.budget
  if outcome and decisions and budget.share is not None:
    alone = measure(request.compile(*fn_and_gradient(traced, rewrite.rewrite(traced, decisions))))
    budget = Budget(share=min(1.0, budget.share * outcome.baseline.temp_bytes / max(alone.temp_bytes, 1)))
  mark = outcome and mark_of(fingerprint, budget, request.planner, request.time_limit_s, request.speeds.name)
  is_certain = budget.share is not None or not decisions or not traced.placement.is_spread
  if not is_certain:
    warnings.warn(
      f"the sharding of {traced.name}'s arguments is not known while it is traced, so the policy engine planned for all "
      f"devices together: {budget} cost more recompute than one device needs. Plan the function or the whole step for "
      "shapes with shardings (coopjax.plan(step, *shapes, budget=...).apply(step)), or use Explicit axes",
      ShardingUnknownWarning, stacklevel=5)
  return Decided(Choice(mark, decisions), outcome, found, is_certain)


def mark_of(fingerprint: str, budget: Budget, planner: str, time_limit_s: float, target: str = "cpu") -> str:
  """The mark of a traced program: the same for the same program, request and coopjax, in every process.

  Compilation caches key on it, so an executable that another version of coopjax planned is not taken for this one's.
  """
  key = _hash(f"{__version__} {fingerprint} {budget} {planner} {time_limit_s} {target}")
  return hook.Request(budget, planner, time_limit_s, key, target).to_mark()


def _report_missed(traced: TracedFn, request: Request, outcome: hook.Outcome, module_bytes: bytes) -> None:
  """As `_report_infeasible`, of what the HLO engine alone made of a module."""
  schedule = None if outcome.result is None else outcome.result.schedule
  _report_infeasible(traced, request, outcome.budget_bytes, outcome.predicted.temp_bytes, module_bytes, schedule)


def _report_infeasible(
  traced: TracedFn, request: Request, budget_bytes: int, smallest_bytes: int, module_bytes: bytes,
  schedule: np.ndarray | None = None,
) -> None:
  """Raises, or warns for a best effort, with the smallest reachable bytes and what forces them."""
  error = infeasible(
    module_bytes,
    f"no plan brings {traced.name} and its gradient within the budget of {request.budget.allows(budget_bytes)}; the "
    f"smallest reached is {format_bytes(smallest_bytes)} (planner {request.planner}, engine {request.engine})",
    schedule=schedule, budget_bytes=budget_bytes, smallest_bytes=smallest_bytes)
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


def key_of(traced: TracedFn, request: Request) -> tuple[str, Request]:
  """What a choice is kept under: program, placement of its inputs on devices, and request."""
  return f"{fingerprint_of(traced)} {traced.placement.key()}", request


def fingerprint_of(traced: TracedFn) -> str:
  """A hash of the traced program that is the same in every process: its text, without object addresses.

  Constants folded into random keys don't count: a plan for one layer's dropout is a plan for another's. Shardings count
  as far as types state them (Explicit axes): of others a trace knows nothing, and a plan must fit the trace.
  """
  text = _FOLDED.sub(r"\1 _:", _ADDRESS.sub("", str(traced.jaxpr)))
  if traced.policy is not None:
    text += str([info.id for info in tag_jaxpr(traced.jaxpr, policy=traced.policy)[1] if info.is_kept])
  return _hash(text)


def _hash(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()[:16]
