"""The program around a remat: planned as a whole where the plan of the function alone leaves it over the budget.

A remat is planned when it is traced, from its function and the gradient of that. The program that it becomes a part of
holds more: gradients until an optimizer has used them, what clipping them takes, a second loss. How much, its compile
shows. Where that is over the budget and would be refused, the program is traced once more as a step
(`planning.steps`) and planned as one; what was found is compiled in its place.
"""

import dataclasses
import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import numpy as np

from coopjax import compat, contexts
from coopjax.budget import Budget
from coopjax.errors import BudgetInfeasibleError, copy_of, log
from coopjax.hlo_engine import hook
from coopjax.hlo_engine.mark import Mark
from coopjax.jaxpr.fingerprint import fingerprint_of
from coopjax.jaxpr.placement import own_sharding
from coopjax.jaxpr.trace import TracedFn
from coopjax.planning import following, function_plan, regions, steps
from coopjax.planning.choice import Choice
from coopjax.planning.plannable import Plannable
from coopjax.planning.remat_plan import RematPlan
from coopjax.planning.request import Request
from coopjax.planning.trials import Trials
from coopjax.policy_engine.decisions import PolicyDecisions, Region, Segment
from coopjax.xla.compile import temp_bytes_of

_log = logging.getLogger("coopjax.planning")
# Whether a trial is whole, in turn: on a CPU its schedule tells what it takes, and for a TPU a draft does to a percent.
_HOW_FAR = {"cpu": (False,), "tpu": (False, True)}
# Of traces in progress, by request: all that are asked the same in one of them have one plan of what is around them.
_programs: weakref.WeakKeyDictionary[Any, dict[Request, "_Program | None"]] = weakref.WeakKeyDictionary()


def choose(traced: TracedFn, request: Request) -> Choice:
  """As `function_plan.choose`; the program around is kept in mind for its compile.

  A share that the function alone can't be brought to is of the program around, which may, or of the region that the
  function is a part of. A program without a gradient keeps nothing for it: any budget lets it run.

  Raises:
    BudgetInfeasibleError: no plan reaches the budget; where the program around is known, with what it takes at least.
  """
  program = None if traced.placement.processes or request.engine == "hlo" else _Program.here(request)
  if program is not None and (decided := program.decided(fingerprint_of(traced))) is not None:
    return decided
  try:
    choice = function_plan.choose(traced, request, says_unneeded=program is None)
  except BudgetInfeasibleError:
    if (choice := _choice_around(traced, request, program)) is None:
      raise
    return choice
  if program is not None and (asked := choice.mark or choice.held):
    is_left = choice.engine == "none" and compat.num_gradients() == 1
    program = dataclasses.replace(program, fingerprint=fingerprint_of(traced), is_left=is_left)
    hook.expect(Mark.from_text(asked).key, program)
  return choice


def _choice_around(traced: TracedFn, request: Request, program: "_Program | None") -> Choice | None:
  """The choice for a function that alone can't be brought to its budget, from what is around; None where it has to be.

  Raises:
    BudgetInfeasibleError: no plan of the program around reaches the budget either.
  """
  is_share, fingerprint = request.budget.share is not None, fingerprint_of(traced)
  if is_share and contexts.in_region.value:
    return Choice()  # a part of the region, whose plan decides
  if program is not None:
    with compat.no_trace():
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


@dataclasses.dataclass(frozen=True, eq=False)
class _Program:
  """A jitted function that is being traced, with the types of its arguments.

  Attributes:
    jitted: the function.
    args: types of its arguments; what is no array, as it is.
    kwargs: same.
    surroundings: of its trace.
    request: what a remat in it asks.
    fingerprint: of the function under that remat.
    is_left: that remat leaves its function as it is, which takes no more alone with its gradient.
  """

  jitted: jax.stages.Wrapped
  args: tuple[Any, ...]
  kwargs: dict[str, Any]
  surroundings: compat.Surroundings
  request: Request
  fingerprint: str = ""
  is_left: bool = False
  _known: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)  # shared by all remats in it

  @classmethod
  def here(cls, request: Request) -> "_Program | None":
    """The one whose trace this is; None outside of one, and where it is itself traced or differentiated."""
    if regions.is_planned() or (traced := compat.outermost_traced()) is None:
      return None
    known = _programs.setdefault(traced, {})
    if request not in known:
      known[request] = cls._found(request)
    return known[request]

  @classmethod
  def _found(cls, request: Request) -> "_Program | None":
    if (found := compat.outermost_jit()) is None:
      return None
    jitted, args, kwargs = found
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
      return None
    args, kwargs = jax.tree.map(_abstract, (args, kwargs))
    return cls(jitted, args, kwargs, compat.Surroundings.here(), request)

  def decided(self, fingerprint: str) -> Choice | None:
    """What a plan of all of it, made for a region before, decides on this one, too."""
    found = self._known.get("choices")
    return found.get(fingerprint) if isinstance(found, dict) else None

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

  def is_differentiated(self) -> bool:
    """Whether it takes a gradient of the function, as far as is known."""
    step = self._made(self._step)
    members = step.program.members if step and isinstance(step.program, steps.Step) else ()
    return all(member.num_runs for member in members if member.key == self.fingerprint)

  def unaided_bytes(self, program: compat.ProgramToCompile, enough_bytes: float) -> int | None:
    """Temporaries of what is compiled, if it is this, without what remats do in it; None where they are not known.

    Args:
      program: what is compiled.
      enough_bytes: about so many, or more, need not be known any closer.
    """
    return self._made(lambda: self._once("unaided", lambda: self._unaided_bytes(program, enough_bytes)))

  def _once(self, what: str, make: Callable[[], Any]) -> Any:
    """What is made of it, or the error that is raised, once."""
    if what not in self._known:
      try:
        self._known[what] = make()
      except BudgetInfeasibleError as error:
        self._known[what] = copy_of(error)
    if isinstance(found := self._known[what], BudgetInfeasibleError):
      raise copy_of(found)
    return found

  def _made[Made](self, make: Callable[[], Made | None]) -> Made | None:
    """What is made of a plan; None where it can't be traced as it was.

    Raises:
      BudgetInfeasibleError: no plan of it reaches the budget.
    """
    try:
      with self.surroundings.entered():
        return make()
    except BudgetInfeasibleError:
      raise
    except Exception as error:  # whatever it is, what is said of the function alone is true
      name = getattr(self.jitted, "__name__", "a program")
      log(_log, logging.WARNING, "%s is not planned as a whole: %s: %s", name, type(error).__name__, error)
      return None

  def _step(self) -> Plannable | None:
    of_step = functools.partial(Plannable.of_step, self.jitted, self.args, self.kwargs, self.request.device)
    return self._once("step", lambda: of_step(existing="keep"))

  def _unaided_bytes(self, program: compat.ProgramToCompile, enough_bytes: float) -> int | None:
    step = self._step()
    if step is None or not isinstance(step.program, steps.Step):
      return None
    as_it_is = step.program.program(step.program.each(Choice()))
    if program.replaced(as_it_is.lower()) is None:  # JAX had a trace of a part of it, from another program
      return None
    trials, temp_bytes = Trials(self.request, resident_bytes=0), None
    for whole in _HOW_FAR.get(self.request.platform, (True,)):
      temp_bytes = temp_bytes_of(trials.compile(as_it_is, (), whole=whole))
      if temp_bytes >= enough_bytes:
        break
    return temp_bytes

  def _plan(self, request: Request) -> RematPlan | None:
    """Of all of it; None where it is no step, or has no regions."""
    step = self._step()
    return step.plan(request) if step and step.functions else None

  def _choices(self) -> dict[str, Choice] | None:
    if (plan := self._plan(self.request)) is None:
      return None
    return dict(zip((region.fingerprint for region in plan.regions), following.choices_of(plan), strict=True))

  def _lowered(self, request: Request) -> tuple[jax.stages.Lowered, int, int] | None:
    if (plan := self._plan(request)) is None:
      return None
    fitted: Any = plan.apply(self.jitted)  # jitted, as that is
    return fitted.lower(*self.args, **self.kwargs), plan.budget_bytes, plan.measured.temp_bytes


def _abstract(leaf: Any) -> Any:
  """An array's type, with its sharding where it has been put somewhere."""
  if not isinstance(leaf, jax.Array | np.ndarray):
    return leaf
  aval = jax.typeof(leaf)
  return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=own_sharding(leaf), weak_type=aval.weak_type)
