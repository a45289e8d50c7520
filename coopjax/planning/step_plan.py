"""Plans whole steps: decides for all regions together, on compiles of the whole step, and reports what was compiled."""

import copy
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax

from coopjax import compat
from coopjax.budget import Budget, format_bytes
from coopjax.errors import (
  BudgetExceededWarning,
  BudgetInfeasibleError,
  InvalidProgramError,
  NoRegionsError,
  RematNoEffectWarning,
  warn,
)
from coopjax.hlo_engine import hook
from coopjax.hlo_engine.mark import Mark
from coopjax.memory_profile import MemoryProfile
from coopjax.planning import host_offload, resident
from coopjax.planning.assemble import STEP_OVER_FORWARD, assemble
from coopjax.planning.baseline import Baseline
from coopjax.planning.choice import Choice
from coopjax.planning.missed import missed
from coopjax.planning.region_plans import region_plans
from coopjax.planning.remat_plan import RematPlan
from coopjax.planning.request import Request, no_hook
from coopjax.planning.steps import Step, why_no_regions
from coopjax.planning.trials import Trials, Tried
from coopjax.policy_engine import search
from coopjax.policy_engine.division import Division, Share
from coopjax.policy_engine.hand_tries import may_do_better
from coopjax.policy_engine.policy_plan import PolicyPlan
from coopjax.policy_engine.shards import Observed, Shards
from coopjax.program.stopwatch import Stopwatch
from coopjax.xla.compile import as_counted, compile_scheduled, compile_trial, module_of, num_devices
from coopjax.xla.targets import Target

_MODEL_IS_OFF = 1.25  # times the compiled temporaries: what is predicted for an accelerator, at most
_DIVIDES_ABOVE = 0.1  # of the forward pass repeated by the HLO engine alone: a division is looked for that repeats less
_LITTLE = 0.01  # of it: nobody does better; between the two, a division is looked for if people may
_ABOUT = 1.1  # of the budget: what is estimated to take so much may hold it


def baseline_of(
  step: Step, target: Target | None, compile_fn: Callable[..., Any] = compile_trial, *, is_scheduled: bool = False
) -> Baseline:
  """The step as it is, compiled; what `plan_step` needs, for any number of requests. `compile_fn` may be
  `compile_draft`, or end at the schedule where it `is_scheduled`.
  """
  return Baseline(
    step.fingerprint,
    lambda: compile_fn(step.program(marked(step, None)), (), target),
    lambda mark: compile_scheduled(step.program(marked(step, mark)), (), target),
    target,
    is_scheduled=is_scheduled,
  )


def marked(step: Step, mark: str | None) -> tuple[Choice, ...]:
  """All regions carry one mark, whose budget is the step's: the hook plans the very module that will run."""
  return step.each(Choice(mark))


def plan_step(
  step: Step, request: Request, baseline: Baseline, tried: Tried | None = None, below_flops: float | None = None
) -> RematPlan:
  """Plans a step for a budget: on all that it holds, or on its temporaries.

  Args:
    step: from `steps.find_step`.
    request: what is asked.
    baseline: from `baseline_of`.
    tried: for other requests of the same step and target; the plan does not depend on it.
    below_flops: that the HLO engine repeats alone, where that is known, infinite if it misses the budget: a plan is to
      repeat less.

  Raises:
    BudgetInfeasibleError: no plan reaches the budget, repeating less, and the request says "error".
    NoRegionsError: the step has none, and the HLO engine is not asked or is not there.
    ValueError: the policy engine is asked for Coop's windows, which are of one function.
  """
  if not step.has_regions:
    _check_can_be_planned(step, request)
  if request.engine == "policy" and request.planner == "coop":
    raise ValueError(
      "planner='coop' looks at one function's buffers, and engine='policy' divides a step between its "
      "regions: use planner='auto'"
    )
  stopwatch = Stopwatch()
  planning = _Planning(step, request, baseline, tried or Tried(), below_flops)
  if planning.holds:
    if any(member.policy for member in step.members):
      return planning.plan(stopwatch.seconds)  # without its checkpoints, which repeat what need not be
    warn(
      f"the plan of {step.name} has no effect: it takes {format_bytes(planning.best.total_bytes)}, "
      f"{format_bytes(planning.best.temp_bytes)} of them temporaries, within the budget of "
      f"{request.budget.in_words(planning.budget_bytes)} as it is",
      RematNoEffectWarning,
    )
    return planning.plan(stopwatch.seconds)
  planning.search()
  if not planning.holds:
    error = planning.infeasible()
    if request.on_infeasible == "error":
      raise error
    warn(str(error), BudgetExceededWarning)
  return planning.plan(stopwatch.seconds)


def repeated_alone(step: Step, request: Request, baseline: Baseline, tried: Tried) -> float:
  """FLOPs that the HLO engine alone repeats in a step without regions, 0 where they are few, infinite where it misses
  the budget or is not there. Arguments as for `plan_step`.
  """
  planning, platform = _Planning(step, request, baseline, tried), compat.hook_platform(request.platform)
  if planning.holds:
    return 0.0
  outcome = None if platform is None else planning.alone(platform)
  if outcome is None or not outcome.fits:
    return math.inf
  return 0.0 if planning.suffices(outcome) else outcome.recompute_flops


def _check_can_be_planned(step: Step, request: Request) -> None:
  """Refuses, before anything is compiled, what a step without regions is not planned by."""
  why = ""
  if request.engine == "policy":
    why = "names_only=True decides" if request.names_only else "engine='policy' decides"
  elif compat.hook_platform(request.platform) is None:
    why = f"JAX {jax.__version__} has no HLO hook on {request.platform}, and the policy engine decides"
  if why:
    raise NoRegionsError(f"{why} on remat regions, and {why_no_regions(step)}")


class _Planning:
  """A step being planned: what has been compiled of it, and the best of that.

  Attributes:
    budget_bytes: for the step's temporaries; negative where arguments and outputs alone exceed a total.
    before: memory of the step as it is.
    best: memory of the best plan so far.
  """

  def __init__(self, step: Step, request: Request, baseline: Baseline, tried: Tried, below_flops: float | None = None):
    self._step, self._request, self._baseline, self._tried = step, request, baseline, tried
    self._below_flops, self._link = below_flops, host_offload.link(request.budget, request.device)
    self._choices = marked(step, None)
    self._outcome: hook.Outcome | None = None
    self._found: PolicyPlan[tuple[Share, ...]] | None = None
    self._spread = step.spread(num_devices(baseline.plain))
    self.before = self.best = baseline.profile_for(request)
    self.budget_bytes = request.budget.resolve(self.before.temp_bytes, self.before.resident_bytes)
    self._marking = dataclasses.replace(request, on_infeasible="best_effort")  # as `following` marks it: one module
    self._mark = self._marking.mark(step.fingerprint, Budget(self.budget_bytes))
    as_it_is = as_counted(baseline.plain, request.device, as_allocated=request.as_allocated)
    self._trials = Trials(request, smallest=tried.smallest or as_it_is, resident_bytes=self.before.resident_bytes)

  def search(self) -> None:
    """Tries the HLO engine, then, where that misses the budget or repeats much, the policy engine with it under it."""
    request, platform = self._request, compat.hook_platform(self._request.platform)
    if request.engine == "hlo" and platform is None:
      raise no_hook(request.platform)
    known_flops, outcome = self._below_flops, None
    with warnings.catch_warnings():
      warnings.simplefilter("ignore", BudgetExceededWarning)  # trials may miss the budget
      if request.engine != "policy" and platform and known_flops is None:
        outcome = self.alone(platform)
        if outcome and (request.engine == "hlo" or outcome.fits or self._may_fit(outcome)):
          self._try_hlo(outcome, whole=request.engine == "hlo" or self.suffices(outcome))
      if self._step.has_regions and request.engine != "hlo" and not self._is_enough:
        may_help = platform not in (None, "tpu") and (outcome or known_flops is not None)
        self._try_policy(self._mark if may_help else None)
      if not self.holds and outcome and request.engine != "hlo":
        self._try_hlo(outcome)
      if self.best is not self.before and request.platform == "cpu":
        self.best = self._measured(self._choices, whole=True)

  @property
  def holds(self) -> bool:
    """Whether the best is within the budget."""
    return self.best.temp_bytes <= self.budget_bytes

  def _may_fit(self, outcome: hook.Outcome) -> bool:
    """Whether an accelerator's compiler, of which the model is off, may bring what it says within the budget."""
    spared_bytes = max(outcome.baseline.temp_bytes - self.before.temp_bytes, 0)  # XLA:TPU's, in vector memory
    limit = _MODEL_IS_OFF * self.budget_bytes + spared_bytes
    return self._request.platform != "cpu" and outcome.predicted.temp_bytes <= limit

  @property
  def _is_enough(self) -> bool:
    """Whether the policy engine need not be asked for what the HLO engine alone is known to do."""
    if self._below_flops is not None:
      return self._is_little(self._below_flops)
    return self.holds and self._outcome is not None and self.suffices(self._outcome)

  def suffices(self, outcome: hook.Outcome) -> bool:
    """Whether the HLO engine alone holds the budget, and repeats too little for the policy engine to be asked, too."""
    return outcome.fits and self._is_little(outcome.recompute_flops)

  def _is_little(self, repeated_flops: float) -> bool:
    if not self._step.has_regions:
      return repeated_flops <= _LITTLE * sum(self._flops(marked(self._step, None)).values()) / STEP_OVER_FORWARD
    forward_flops = self._step.forward_flops / self._spread.num_devices
    if repeated_flops <= _LITTLE * forward_flops:
      return True
    return repeated_flops <= _DIVIDES_ABOVE * forward_flops and not self._may_do_better_by_hand(repeated_flops)

  def _may_do_better_by_hand(self, repeated_flops: float, *, in_straight_code: bool = False) -> bool:
    """Whether something that people pick is estimated to fit, and repeats less."""
    if self._spread.num_devices > 1:
      return False
    space, reach_bytes = self._division(only_scans=False), _ABOUT * self.budget_bytes
    of_step = self.before.temp_bytes
    return may_do_better(space, reach_bytes, of_step, repeated_flops, in_straight_code=in_straight_code)

  def _measured(self, choices: tuple[Choice, ...], *, whole: bool = False) -> MemoryProfile:
    """Of the step compiled with these choices, as far as trials are or as the whole program that runs."""
    whole = whole and not self._request.drafts
    mark, key = next((choice.mark for choice in choices if choice.mark), None), (choices, whole)
    if key not in self._tried.programs:
      compiled = self._trials.compile(self._step.program(choices), (), mark, whole=whole)
      self._tried.programs[key] = self._request.measure(compiled), self._trials.outcome
      self._tried.smallest = self._trials.smallest
    measured, self._trials.outcome = self._tried.programs[key]
    return measured

  def alone(self, platform: str) -> hook.Outcome | None:
    """What the HLO engine makes of the step alone, with the effort of a trial; None where the hook does not run or
    can't read the module.
    """
    if self._mark not in self._tried.alone:
      self._tried.alone[self._mark] = self._planned_alone(platform)
    return self._tried.alone[self._mark]

  def _planned_alone(self, platform: str) -> hook.Outcome | None:
    hook.install(platform)
    try:
      return hook.plan_module(self._baseline.module, [Mark.from_text(self._mark)], is_sketch=True)
    except RuntimeError:
      if self._request.engine == "hlo" or platform == "cpu":
        raise
      return None
    except InvalidProgramError:
      if self._request.engine == "hlo":
        raise
      return None

  def _try_hlo(self, outcome: hook.Outcome, *, whole: bool = False) -> None:
    choices = marked(self._step, self._mark)
    measured = self._measured(choices, whole=whole and self._request.platform == "cpu")
    if measured.temp_bytes < self.best.temp_bytes:
      self._choices, self.best, self._found = choices, measured, None
      self._outcome = self._trials.outcome or outcome  # none of a program that JAX's compilation cache kept

  def _try_policy(self, mark: str | None) -> None:
    """Divides the budget between the regions; scans alone first where the HLO engine does the rest.

    If the HLO engine alone holds the budget, a division is taken that repeats less; else the first that holds it.
    """
    below_flops = math.inf if self._below_flops is None else self._below_flops
    if self.holds and self._outcome:
      below_flops = self._outcome.recompute_flops
    at_first = self._choices, self.best, self._outcome, self._found
    for within_bytes in search.limits(self.budget_bytes, lambda: self.best.temp_bytes):
      # The least is found, and told, the same whatever was asked.
      before = self._choices, self.best, self._outcome, self._found
      self._choices, self.best, self._outcome, self._found = at_first
      trial_mark = mark and self._marking.for_trials().mark(self._step.fingerprint, Budget(within_bytes))
      least_flops = below_flops
      for only_scans in (True, False) if mark else (False,):
        if self._divide(within_bytes, trial_mark, least_flops, only_scans=only_scans):
          assert self._found is not None  # as it was taken
          least_flops = self._found.recompute_flops
          less_flops = least_flops - _LITTLE * self._step.forward_flops  # of one device: more are not compared
          if not (only_scans and self._may_do_better_by_hand(less_flops, in_straight_code=True)):
            break
      self._spend_all_effort(mark)
      if self.holds:
        break
      if within_bytes not in (self.budget_bytes, search.OUT_OF_REACH) and self.best.temp_bytes >= before[1].temp_bytes:
        self._choices, self.best, self._outcome, self._found = before

  def _divide(self, within_bytes: int, trial_mark: str | None, below_flops: float, *, only_scans: bool) -> bool:
    """Takes what is found within so many bytes if it is better; whether that holds the budget."""
    tried: dict[Any, tuple[MemoryProfile, hook.Outcome | None]] = {}

    def temp_bytes_of(shares: tuple[Share, ...], *, whole: bool = False) -> int:
      measured = self._measured(_choices(shares, trial_mark), whole=whole)
      tried[shares] = measured, self._trials.outcome
      sizes = measured.temp_bytes, measured.host_bytes
      return self._link.counted_bytes(*sizes, self.before.temp_bytes) if self._link else measured.temp_bytes

    found = search.search(
      self._division(only_scans),
      within_bytes,
      temp_bytes_of,
      self.before.temp_bytes,
      self._trials.max_rounds,
      whole_bytes_of=functools.partial(temp_bytes_of, whole=True) if self._trials.are_drafts else None,
      hlo_share_of=lambda _: self._trials.hlo_share(),
      below_flops=below_flops,
      wanted_bytes=self.budget_bytes,
    )
    if not found.rounds:
      return False
    choices, (measured, outcome) = _choices(found.decisions, trial_mark), tried[found.decisions]
    # With what it repeats as it is traced: candidates are told apart by models of that.
    flops = sum(self._repeated(choices).values()) + (outcome.recompute_flops if outcome else 0.0)
    found = dataclasses.replace(found, recompute_flops=flops)
    is_feasible = found.temp_bytes <= self.budget_bytes
    is_better = found.temp_bytes < self.best.temp_bytes
    if self.holds:
      is_better = is_feasible and found.recompute_flops < below_flops
    if is_better:
      self._choices, self.best, self._outcome, self._found = choices, measured, outcome, found
    return is_better and is_feasible

  def _repeated(self, choices: tuple[Choice, ...]) -> dict[int | None, float]:
    """FLOPs that one device does beyond those of the step as it is, by region."""
    planned, plain = self._flops(choices), self._flops(marked(self._step, None))
    return {region: planned.get(region, 0.0) - plain.get(region, 0.0) for region in {**planned, **plain}}

  def _flops(self, choices: tuple[Choice, ...]) -> Mapping[int | None, float]:
    """As of `steps.Program`."""
    if choices not in self._tried.flops:
      self._tried.flops[choices] = self._step.program(choices).flops(self._tried.num_parts(self._spread.num_devices))
    return self._tried.flops[choices]

  def _division(self, only_scans: bool) -> Division:
    """All candidates, of which a search may find more (`Division.deepen`), for itself."""
    key = only_scans, self._link, self._request.names_only
    if key not in self._tried.spaces:
      if self._tried.shards is None:
        self._tried.shards = self._shards()
      self._tried.spaces[key] = Division(
        self._step.members, only_scans, self._link, self._tried.shards, names_only=self._request.names_only
      )
    return copy.copy(self._tried.spaces[key])

  def _shards(self) -> dict[str, dict[int | None, Shards]]:
    """How devices share the values of each region; empty on one device."""
    observed = {member.key: Observed() for member in self._step.members}
    if self._spread.num_devices > 1:
      self._trials.partition(self._step.program(tuple(observed.values())), ())
    return {key: each.shards for key, each in observed.items()}

  def _spend_all_effort(self, mark: str | None) -> None:
    """The trial that was taken with the mark that the step will have: of all of the effort, for the budget. One of less
    effort for the same is left where that repeats less.
    """
    found, under_way = self._found, self._outcome
    if found is None or under_way is None or (choices := _choices(found.decisions, mark)) == self._choices:
      return
    measured, outcome = self._measured(choices), self._trials.outcome
    more_flops = outcome.recompute_flops - under_way.recompute_flops if outcome else 0.0
    is_for_budget = under_way.budget_bytes == self.budget_bytes
    if is_for_budget and self.holds and (more_flops >= 0 or measured.temp_bytes > self.budget_bytes):
      return
    self._choices, self.best, self._outcome = choices, measured, outcome
    self._found = found.compiled(measured.temp_bytes, self.budget_bytes, more_flops)

  def infeasible(self) -> BudgetInfeasibleError:
    """The error that a missed budget deserves: the smallest reached, and what forces it."""
    step = self._step
    assert self._trials.smallest is not None  # the step as it is to begin with
    error = missed(
      step.name,
      self._request,
      module_of(self._trials.smallest),
      budget_bytes=self.budget_bytes,
      smallest_bytes=self.best.temp_bytes,
      functions=[member.traced for member in step.members],
      arguments=step.arguments,
      ways=resident.ways_out(step.arguments, self.best, self._request.platform),
    )
    if not step.has_regions:
      error.add_note(
        f"the HLO engine alone was asked: the policy engine decides on remat regions, and {why_no_regions(step)}"
      )
    error.add_note("try a larger budget, a smaller batch, donated arguments, or on_infeasible='best_effort'")
    return error

  def plan(self, planning_s: float) -> RematPlan:
    """What was decided, and what the compiler says of it."""
    step = self._step
    engine = max((choice.engine for choice in self._choices), key=len)  # not all regions need the policy engine
    choices = [(member.traced, choice) for member, choice in zip(step.members, self._choices)]
    repeated = {} if self._found is None else self._repeated(self._choices)
    return assemble(
      self._request,
      name=step.name,
      fingerprint=step.fingerprint,
      budget_bytes=self.budget_bytes,
      engine=engine,
      spread=self._spread,
      choices=choices,
      regions=region_plans(step, self._choices, self._outcome, self._found, repeated, self._request.names_only),
      outcome=self._outcome,
      found=self._found,
      baseline=self.before,
      measured=self.best,
      planning_s=planning_s,
      existing=step.existing,
      of_gradients=step.of_gradients,
      plain_flops=self._found and sum(self._flops(marked(step, None)).values()),
      runs=[(member.num_examples * member.num_runs, member.num_examples * member.num_kept) for member in step.members],
      shards=[(self._tried.shards or {}).get(member.key, {}) for member in step.members],
    )


def _choices(shares: tuple[Share, ...], mark: str | None) -> tuple[Choice, ...]:
  return tuple(Choice(mark, share.decisions if share.decisions.regions else None) for share in shares)
