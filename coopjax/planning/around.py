"""The program around a remat: planned as a whole where the plan of the function alone leaves it over the budget.

A remat is planned when it is traced, from its function and the gradient of that. The program that it becomes a part of
holds more: gradients until an optimizer has used them, what clipping them takes, a second loss. How much, its compile
shows. Where that is over the budget and would be refused, the program is traced once more as a step
(`planning.steps`) and planned as one; what was found is compiled in its place.

JAX keeps a trace as long as its function lives. It compiles it again for other arguments, under other options, in
another jit; and what it has traced in one program stands in others. So at its trace a remat notes what is asked of it
alone (`_Inside`), and each compile shows what the program is: the jitted function that it is of (`compat.Asked`) has to
lower to it again. What is found of a program is kept under what it is: nothing is kept of functions.
"""

import contextlib
import dataclasses
import functools
import logging
import math
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import jax

from coopjax import compat, contexts
from coopjax.budget import Budget
from coopjax.errors import BudgetInfeasibleError, log
from coopjax.hlo_engine import hook
from coopjax.hlo_engine.mark import keyed
from coopjax.hlo_engine.over_budget import Excess, Repeated
from coopjax.jaxpr import cost
from coopjax.jaxpr.fingerprint import fingerprint_of
from coopjax.jaxpr.trace import TracedFn
from coopjax.planning import following, function_plan, regions, steps
from coopjax.planning.choice import Choice
from coopjax.planning.for_less import ForLess, Scheduled
from coopjax.planning.made_once import Result, Results
from coopjax.planning.plannable import Plannable
from coopjax.planning.remat_plan import RematPlan
from coopjax.planning.request import Request
from coopjax.planning.step_plan import baseline_of
from coopjax.planning.trials import Trials
from coopjax.policy_engine.decisions import PolicyDecisions, Region, Segment
from coopjax.policy_engine.rungs import Member
from coopjax.xla.compile import temp_bytes_of

_log = logging.getLogger("coopjax.planning")
# Whether a trial is whole, in turn: on a CPU its schedule tells what it takes, and for a TPU a draft does to a percent.
_HOW_FAR = {"cpu": (False,), "tpu": (False, True)}
_LITTLE = 0.01  # of the forward FLOPs: what the HLO engine may repeat more in a program than in a function of it alone
_SAME = 0.01  # of what a function and its gradient take: what a program around takes more or less that is just these
# Of traces and compiles in progress, by request: all that are asked the same in one of them have one plan of what is
# around them.
_programs: weakref.WeakKeyDictionary[Any, dict[Hashable, "_Program | None"]] = weakref.WeakKeyDictionary()


def _is_scheduled(request: Request) -> bool:
  """Whether the schedule of a program tells all that a compile does: on one CPU, what it takes."""
  return request.platform == "cpu" and request.device is None and jax.device_count() == 1


def choose(traced: TracedFn, request: Request) -> Choice:
  """As `function_plan.choose`; the program around is kept in mind for its compile.

  A share that the function alone can't be brought to is of the program around, which may, or of the region that the
  function is a part of. A program without a gradient keeps nothing for it: any budget lets it run.

  Raises:
    BudgetInfeasibleError: no plan reaches the budget; where the program around is known, with what it takes at least.
  """
  if request.engine == "auto" and (device := request.device) and not device.is_running:
    request = dataclasses.replace(request, engine="policy")  # no hook of the running backend plans for another
  if traced.placement.processes or request.engine == "hlo":
    return function_plan.choose(traced, request)
  program, fingerprint = _Program.here(request), fingerprint_of(traced)
  if program is not None and (decided := program.decided(fingerprint)) is not None:
    return decided
  try:
    choice = function_plan.choose(traced, request, says_unneeded=program is None)
  except BudgetInfeasibleError as error:
    if (choice := _choice_around(traced, request, program, error)) is None:
      raise
    return choice
  is_left = program is not None and choice.engine == "none" and compat.num_gradients() == 1
  most_flops = math.inf
  if choice.alone is not None and choice.mark is not None and _is_scheduled(request):
    most_flops = choice.alone.hlo_flops + _LITTLE * cost.jaxpr_flops(traced.inlined)
  return _noted(choice, _Inside(request, fingerprint, is_left, choice, most_flops))


def _noted(choice: Choice, function: "_Inside") -> Choice:
  """The choice, by whose mark compiles know the function with all that is asked of it."""
  if (asked := choice.asked) is None:
    return choice
  mark = keyed(asked, function.fingerprint, repr(function.request))
  hook.expect(mark.key, function)
  return choice.asking(mark)


def _choice_around(
  traced: TracedFn, request: Request, program: "_Program | None", missed: BudgetInfeasibleError
) -> Choice | None:
  """The choice for a function that alone can't be brought to its budget, from what is around; None where it has to be.

  Raises:
    BudgetInfeasibleError: no plan of the program around reaches the budget either.
  """
  is_share, fingerprint = request.budget.share is not None, fingerprint_of(traced)
  if is_share and contexts.in_region.value:
    return Choice()  # a part of the region, whose plan decides
  if program is not None:
    with compat.no_trace():
      if program.is_no_more_than(missed):
        return None
      choices = program.choices()
    if choices is not None:
      return choices.get(fingerprint)
  keeps_nothing = not (compat.has_backward() or steps.holds_backward(traced.jaxpr))
  is_apart = is_share and compat.has_backward_outside()  # from its backward pass: no program holds what the share is of
  return _as_checkpointed(traced, request, fingerprint) if keeps_nothing or is_apart else None


def _as_checkpointed(traced: TracedFn, request: Request, fingerprint: str) -> Choice:
  """As under `jax.checkpoint`, which repeats nothing where no gradient is taken.

  JAX keeps traces, and may come upon this one where a gradient is taken after all.
  """
  if request.engine == "hlo":
    return Choice(request.mark(fingerprint))
  everything = Segment(0, len(traced.inlined.eqns), is_wrapped=True)
  decisions = PolicyDecisions((Region(None, (everything,), policy=()),))
  return Choice(decisions=decisions, held=request.held(fingerprint, request.whole()))


def as_a_step(
  program: compat.ProgramToCompile, request: Request, existing: str, below_bytes: int
) -> jax.stages.Lowered | None:
  """A program without remats of ours, planned as a step and lowered; None where it is none, or takes no less so.

  Args:
    program: that is being compiled.
    request: what is asked of it.
    existing: as for `regions.Directions`.
    below_bytes: temporaries.
  """
  step = _Program.compiled(program, request, existing)
  planned = step and step.planned_anew()
  return planned[0] if planned is not None and planned[2] < below_bytes else None


@dataclasses.dataclass(frozen=True)
class _Inside:
  """A function under a remat, as `over_budget.Inside` has it.

  Attributes:
    request: what the remat asks.
    fingerprint: of the function.
    is_left: as there.
    choice: how it is carried out.
    most_flops: as there.
  """

  request: Request
  fingerprint: str
  is_left: bool
  choice: Choice
  most_flops: float = math.inf

  def is_differentiated(self, program: compat.ProgramToCompile) -> bool:
    around = _Program.compiled(program, self.request)
    return around is None or around.is_differentiated(self.fingerprint)

  def unaided_bytes(self, program: compat.ProgramToCompile, enough_bytes: float) -> int | None:
    around = _Program.compiled(program, self.request)
    return around and around.unaided_bytes(enough_bytes)

  def planned_anew(
    self, program: compat.ProgramToCompile, limit_bytes: int | None = None
  ) -> tuple[jax.stages.Lowered, int, int] | None:
    around = _Program.compiled(program, self.request)
    return around and around.planned_anew(limit_bytes)

  def in_another_way(self, program: compat.ProgramToCompile, found: Excess | Repeated) -> jax.stages.Lowered | None:
    around = _Program.compiled(program, self.request)
    if around is None or self.choice.engine == "none":
      return None
    return around.in_another_way(self.fingerprint, self.choice, found)


_results = Results()


@dataclasses.dataclass(frozen=True, eq=False)
class _Program:
  """A jitted function that is being traced or compiled, with the types of its arguments.

  Attributes:
    asked: the function with those.
    request: what remats in it ask, or is asked of all programs.
    existing: as for `regions.Directions`; "keep" where remats in it are what there is to decide on.
  """

  asked: compat.Asked
  request: Request
  existing: str = "keep"
  _known: dict[str, Result] = dataclasses.field(default_factory=dict, repr=False)

  @classmethod
  def here(cls, request: Request) -> "_Program | None":
    """The one whose trace this is; None outside of one, and where it is itself traced or differentiated."""
    if regions.is_planned() or (traced := compat.outermost_traced()) is None:
      return None
    known = _programs.setdefault(traced, {})
    if request not in known:
      asked = compat.traced_here()
      known[request] = None if asked is None else cls(asked, request)
    return known[request]

  @classmethod
  def compiled(cls, program: compat.ProgramToCompile, request: Request, existing: str = "keep") -> "_Program | None":
    """The one that is being compiled; None where it is not known, or is not what is compiled.

    The function that JAX has been asked for may stand around that, or may have been traced under other settings.
    """
    known, key = _programs.setdefault(program, {}), (request, existing)
    if key not in known:
      found = None if program.asked is None else cls(program.asked, request, existing)
      is_it = found is not None and found._made(lambda: program.is_of(found.asked.lower()))
      known[key] = found if is_it else None
    return known[key]

  def decided(self, fingerprint: str) -> Choice | None:
    """What a plan of all of it, made for a region before, decides on this one, too."""
    result = self._known.get("choices")
    return result.found.get(fingerprint) if result and isinstance(result.found, dict) else None

  def choices(self) -> dict[str, Choice] | None:
    """By fingerprint of its regions, what a plan of all of it decides; None where there is none."""
    return self._once("choices", lambda: self._made(self._choices))

  def planned_anew(self, limit_bytes: int | None = None) -> tuple[jax.stages.Lowered, int, int] | None:
    """It with its plan carried out, lowered, its budget in bytes and its temporaries; None where there is none.

    Args:
      limit_bytes: of temporaries, in place of the budget.
    """
    request = self.request
    if limit_bytes is not None:
      budget = Budget(limit_bytes, offload=request.budget.offload)
      request = dataclasses.replace(request, budget=budget)
    return self._made(lambda: self._lowered(request))

  def in_another_way(self, fingerprint: str, choice: Choice, found: Excess | Repeated) -> jax.stages.Lowered | None:
    """As of `over_budget.Inside`, of a function that is carried out so."""
    with contextlib.suppress(BudgetInfeasibleError):
      return self._made(lambda: self._lowered_in_another_way(fingerprint, choice, found))
    return None

  def is_differentiated(self, fingerprint: str) -> bool:
    """Whether it takes a gradient of a function, as far as is known."""
    step = self._made(self._step)
    members = step.program.members if step and isinstance(step.program, steps.Step) else ()
    return all(member.num_runs for member in members if member.key == fingerprint)

  def unaided_bytes(self, enough_bytes: float) -> int | None:
    """Its temporaries without what remats do in it; None where they are not known.

    Args:
      enough_bytes: about so many, or more, need not be known any closer.
    """
    return self._made(lambda: self._unaided_bytes(enough_bytes))

  def is_no_more_than(self, missed: BudgetInfeasibleError) -> bool:
    """Whether it takes what the function and its gradient take alone: no plan of it comes to less than theirs."""
    if self.request.budget.is_total or not missed.unaided_bytes:
      return False
    unaided_bytes = self.unaided_bytes((1 + _SAME) * missed.unaided_bytes)
    return unaided_bytes is not None and abs(unaided_bytes - missed.unaided_bytes) <= _SAME * missed.unaided_bytes

  def _once(self, what: str, make: Callable[[], Any]) -> Any:
    """What is made of it, or the error that is raised, once."""
    return self._known.setdefault(what, Result()).once(make)

  def _once_of_all(self, step: Plannable, what: Hashable, make: Callable[[], Any]) -> Any:
    """As `_once`, for all programs in this process that are the same; what a fuse may have cut short is not kept."""
    of_step = step.program
    if self.request.time_limit_s is not None or not isinstance(of_step, steps.Step):
      return make()
    key = self._once("key", lambda: of_step.key)
    return _results.once((key, self.asked.options, self.request.target, what), make)

  def _made[Made](self, make: Callable[[], Made | None]) -> Made | None:
    """What is made of a plan; None where it can't be traced as it was.

    Raises:
      BudgetInfeasibleError: no plan of it reaches the budget.
    """
    try:
      with self.asked.surroundings.entered():
        return make()
    except BudgetInfeasibleError:
      raise
    except Exception as error:  # whatever it is, what is said of the function alone is true
      name = getattr(self.asked.jitted, "__name__", "a program")
      log(_log, logging.WARNING, "%s is not planned as a whole: %s: %s", name, type(error).__name__, error)
      return None

  def _step(self) -> Plannable | None:
    return self._once("step", self._found_step)

  def _found_step(self) -> Plannable | None:
    asked, request = self.asked.unplaced(), self.request
    step = Plannable.of_step(asked.jitted, asked.args, asked.kwargs, request.device, self.existing)
    if step is None or not _is_scheduled(request):
      return step
    trials, program = Trials(request, resident_bytes=0), step.program
    assert isinstance(program, steps.Step)  # of `Plannable.of_step`
    scheduled = lambda program, avals, _: trials.compile(program, avals)
    return dataclasses.replace(step, baseline=baseline_of(program, request.device, scheduled, is_scheduled=True))

  def _unaided_bytes(self, enough_bytes: float) -> int | None:
    step = self._step()
    if step is None or not isinstance(step.program, steps.Step):
      return None
    if (baseline := step.baseline).is_scheduled:
      return self._once_of_all(step, ("unaided", False), lambda: temp_bytes_of(baseline.plain))
    as_it_is = step.program.program(step.program.each(Choice()))
    temp_bytes = None
    for whole in _HOW_FAR.get(self.request.platform, (True,)):
      trials = Trials(self.request, resident_bytes=0)
      compiled = functools.partial(trials.compile, as_it_is, (), whole=whole)
      temp_bytes = self._once_of_all(step, ("unaided", whole), lambda compiled=compiled: temp_bytes_of(compiled()))
      if temp_bytes >= enough_bytes:
        break
    return temp_bytes

  def _plan(self, request: Request) -> RematPlan | None:
    """Of all of it; None where it is no step, or has no regions to decide on. What it takes, the compile that comes
    tells.
    """
    step, request = self._step(), dataclasses.replace(request, drafts=request.drafts or _is_scheduled(request))
    if step is None or (self.existing == "keep" and not step.functions):
      return None
    return self._once_of_all(step, (request, self.existing), lambda: step.plan(request))

  def _choices(self) -> dict[str, Choice] | None:
    """As `choices`. JAX keeps the trace that they are for, and may compile it in another jit: that is held, too."""
    if (plan := self._plan(self.request)) is None:
      return None
    if (step := self._step()) is not None:  # known with the plan, for the compile that comes
      whole = _HOW_FAR.get(self.request.platform, (True,))[-1]
      self._once_of_all(step, ("unaided", whole), lambda: plan.baseline.temp_bytes)
    held, choices = functools.partial(self.request.held, whole=self.request.whole()), {}
    for region, choice in zip(plan.regions, following.choices_of(plan), strict=True):
      if choice.mark is None:
        choice = dataclasses.replace(choice, held=held(region.fingerprint))
      choices[region.fingerprint] = _noted(choice, _Inside(self.request, region.fingerprint, False, choice))
    return choices

  def _alone(self, fingerprint: str) -> Member | None:
    """The function of that, where it is all that there is to decide on."""
    found = self._step()
    if found is None or not isinstance(step := found.program, steps.Step):
      return None
    members = [each for each in step.members if each.num_runs]
    return members[0] if [each.key for each in members] == [fingerprint] else None

  def _lowered_in_another_way(
    self, fingerprint: str, choice: Choice, found: Excess | Repeated
  ) -> jax.stages.Lowered | None:
    """It with the function carried out in another way; None where there is none."""
    if (member := self._alone(fingerprint)) is None:
      return None
    carried_out = functools.cache(functools.partial(self._with, fingerprint))  # lowered once
    scheduled = functools.partial(self._scheduled, carried_out) if _is_scheduled(self.request) else None
    of_function = ForLess(member, self.request, choice, scheduled)
    other = of_function.within(found) if isinstance(found, Excess) else of_function.repeating_less(found)
    return other and carried_out(other).lower()

  def _scheduled(self, carried_out: Callable[[Choice], steps.Program], choice: Choice) -> Scheduled:
    """It with a function carried out so."""
    trials = Trials(self.request, resident_bytes=0)
    compiled = trials.compile(carried_out(choice), (), choice.mark)
    share = trials.hlo_share()
    return Scheduled(temp_bytes_of(compiled), share.recompute_flops if share else 0.0)

  def _with(self, fingerprint: str, choice: Choice) -> steps.Program:
    """It with a function carried out so."""
    found = self._step()
    assert found is not None  # with the function
    step = found.program
    assert isinstance(step, steps.Step)  # of `Plannable.of_step`
    choices = [choice if each.key == fingerprint else Choice() for each in step.members]
    as_asked = dataclasses.replace(step, jitted=self.asked.jitted, args=self.asked.args, kwargs=self.asked.kwargs)
    return as_asked.program(choices)

  def _lowered(self, request: Request) -> tuple[jax.stages.Lowered, int, int] | None:
    if (plan := self._plan(request)) is None:
      return None
    fitted: Any = plan.apply(self.asked.jitted)  # jitted, as that is
    return fitted.lower(*self.asked.args, **self.asked.kwargs), plan.budget_bytes, plan.measured.temp_bytes
