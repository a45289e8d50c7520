"""Training steps of a job that nobody changes: each is planned when it is first called, lowered or traced.

Trainers (MaxText's, one's own) make their step with ``jax.jit`` somewhere inside. While `plan_steps` lasts, that name
gives functions that look, before they run, whether what they are called with takes gradients; such a step is planned
with the arguments, the mesh and the options that the trainer gives it, and carried out as planned. So it is while
`coopjax.enable` has a budget, for steps with `jax.checkpoint`s of their own (`StandingSteps`).
"""

import contextlib
import functools
import types
import warnings
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol

import jax
import jax.core

from coopjax import compat, progress
from coopjax.budget import Budget, BudgetLike
from coopjax.errors import BudgetExceededWarning, NoRegionsError, PlanMismatchError, RematNoEffectWarning, warn
from coopjax.hlo_engine import hook
from coopjax.planning import around, regions, steps
from coopjax.planning.plannable import Plannable
from coopjax.planning.remat_plan import RematPlan
from coopjax.planning.request import Request
from coopjax.xla import standing, targets

type _Watcher = Callable[[RematPlan], Any]


class _Planner(Protocol):
  """Whoever has steps planned.

  Attributes:
    is_on: steps that come up are planned.
    state: under which what was planned is carried out.
  """

  @property
  def is_on(self) -> bool: ...
  @property
  def state(self) -> Hashable: ...
  def planned(self, jitted: jax.stages.Wrapped, args: Any, kwargs: Any) -> Callable:
    """The function with its plan carried out if it is a step that can be planned; else the function."""
    ...


class PlannedSteps:
  """What `plan_steps` returns; as a context manager it ends at the end of the block.

  Attributes:
    plans: that were made so far, in the order of the first calls.
    is_on: steps that come up are planned.
  """

  state: Hashable = None  # what was planned stays so

  def __init__(self, request: Callable[[str | None], Request], existing: str, on_plan: _Watcher | None):
    self.plans: list[RematPlan] = []
    self._request, self._existing, self._on_plan = request, existing, on_plan
    self._former = jax.jit
    self.is_on = False

  def __enter__(self) -> "PlannedSteps":
    self._start()
    return self

  def __exit__(self, *_) -> None:
    self.is_on = False
    jax.jit = self._former

  def _start(self) -> None:
    if self.is_on:
      return
    self._former, self.is_on = jax.jit, True
    jax.jit = _jit_for(self, self._former)

  def planned(self, jitted: jax.stages.Wrapped, args: Any, kwargs: Any) -> Callable:
    traced = jitted.trace(*args, **kwargs)  # which JAX keeps for the call
    if not steps.holds_backward(traced.jaxpr.jaxpr):
      return jitted
    request = self._request(targets.of_arguments((args, kwargs)))
    name = getattr(jitted, "__name__", "a step")
    try:
      with _planning(name):
        plan = Plannable.of(jitted, args, kwargs, request.device, None, self._existing).plan(request)
    except NoRegionsError as error:
      warn(f"{name} runs as it is: {error}", RematNoEffectWarning)
      return jitted
    self.plans.append(plan)
    if self._on_plan is not None:
      self._on_plan(plan)
    return plan.apply(jitted)


class StandingSteps:
  """Steps under `jax.checkpoint` while `coopjax.enable` has a budget; one for the process, as what is enabled is.

  No harm is done: what can't be planned, or is not in need of it, is left to the hook, which has all other programs.
  """

  def __init__(self):
    self._former: Callable = jax.jit
    self._ours: Callable | None = None  # while it stands for `jax.jit`

  @property
  def state(self) -> standing.Standing | None:
    return standing.current()

  @property
  def is_on(self) -> bool:
    asked = self.state
    return asked is not None and asked.budget is not None and asked.existing != "keep"

  def settle(self) -> None:
    """What is enabled has changed: `jax.jit` is ours from here on, or JAX's own."""
    hook.plan_steps(self._in_compile)
    if self.is_on and jax.jit is not self._ours:
      self._former = jax.jit
      self._ours = jax.jit = _jit_for(self, self._former)
    elif not self.is_on and jax.jit is self._ours:
      jax.jit, self._ours = self._former, None

  def planned(self, jitted: jax.stages.Wrapped, args: Any, kwargs: Any) -> Callable:
    jaxpr = jitted.trace(*args, **kwargs).jaxpr.jaxpr
    if not (steps.holds_checkpoint(jaxpr) and steps.holds_backward(jaxpr)):
      return jitted
    name = getattr(jitted, "__name__", "a step")
    try:
      with _planning(name):
        plan = self._plan(jitted, args, kwargs)
      return jitted if plan is None else plan.apply(jitted)
    except Exception as error:  # whatever it is, the step can do without
      reason = str(error).partition("\n")[0]
      warn(f"{name} keeps its own checkpoints: {reason or type(error).__name__}", RematNoEffectWarning)
      return jitted

  def _plan(self, jitted: jax.stages.Wrapped, args: Any, kwargs: Any) -> RematPlan | None:
    """None for a step with a `coopjax.remat`, whose own budget goes first."""
    asked = self.state
    assert asked is not None  # `is_on`
    request = _request(asked, args, kwargs)
    step = Plannable.of(jitted, args, kwargs, request.device, None, asked.existing)
    assert isinstance(step.program, steps.Step)  # it takes gradients
    return step.plan(request) if step.program.is_all_checkpoints else None

  def _in_compile(self, program: compat.ProgramToCompile, smallest_bytes: int) -> jax.stages.Lowered | None:
    """A step that the hook leaves over its budget: what it differentiates, and checkpoints that are older than what is
    enabled, are decided on, too. The hook tells of what is still over the budget.
    """
    asked, call = self.state, program.asked
    if asked is None or not self.is_on or call is None:
      return None
    with _planning(program.name, BudgetExceededWarning):
      return around.as_a_step(program, _request(asked, call.args, call.kwargs), asked.existing, smallest_bytes)


def _request(asked: standing.Standing, args: Any, kwargs: Any) -> Request:
  """What is enabled, of a step with these arguments."""
  name = targets.of_arguments((args, kwargs))
  device = targets.running() if name is None else targets.resolve(name)
  return Request.checked(
    budget=Budget.total(device.memory_bytes) if asked.budget == standing.DEVICE else asked.budget,
    planner=asked.planner,
    engine="auto",
    target=name,
    effort=asked.effort,
    time_limit_s=asked.time_limit_s,
    on_infeasible="best_effort",
  )


steps_of_process = StandingSteps()


def _jit_for(planner: _Planner, former: Callable) -> Callable:
  """`jax.jit`, of whose functions those are planned that are called as steps."""

  @functools.wraps(former)
  def jit(*args, **kwargs):
    jitted = former(*args, **kwargs)
    if regions.is_jitted(jitted):
      return _Jitted(jitted, planner)
    return lambda fn: _Jitted(jitted(fn), planner)  # options alone: a decorator

  return jit


@contextlib.contextmanager
def _planning(name: str, *ignored: type[Warning]) -> Iterator[None]:
  """Shown on a terminal; a step within the budget is as it should be."""
  with progress.shown(f"planning {name}"), warnings.catch_warnings():
    for category in (RematNoEffectWarning, *ignored):
      warnings.simplefilter("ignore", category)
    yield


class _Jitted:
  """A jitted function, called, lowered or traced as planned for the arguments; all else of it as it is."""

  def __init__(self, jitted: Any, planner: _Planner):
    functools.update_wrapper(self, jitted)
    if isinstance(jitted, _Jitted):
      jitted = jitted._jitted  # the inner of two blocks decides
    self.__wrapped__ = getattr(jitted, "__wrapped__", jitted)
    self._jitted, self._planner = jitted, planner
    self._known: dict[Hashable, Callable] = {}  # by state and kind of arguments

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    return self._carried_out("__call__", args, kwargs)

  def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
    return self._carried_out("lower", args, kwargs)

  def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
    return self._carried_out("trace", args, kwargs)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._jitted, name)

  def __get__(self, owner: Any, kind: type | None = None) -> Any:
    return self if owner is None else types.MethodType(self, owner)

  def _carried_out(self, name: str, args: Any, kwargs: Any) -> Any:
    leaves, tree = jax.tree.flatten((args, kwargs))
    if _is_part_of_a_program(leaves):
      return getattr(self._jitted, name)(*args, **kwargs)
    kind = self._planner.state, tree, tuple(map(_leaf_kind, leaves))
    if kind in self._known:
      with contextlib.suppress(PlanMismatchError):  # raised before anything runs: what differs is not in the kind
        return getattr(self._known[kind], name)(*args, **kwargs)
    if not self._planner.is_on:
      return getattr(self._jitted, name)(*args, **kwargs)
    self._known[kind] = self._planner.planned(self._jitted, args, kwargs)
    return getattr(self._known[kind], name)(*args, **kwargs)


def _is_part_of_a_program(leaves: list[Any]) -> bool:
  """Whether what is called with these arguments is traced or differentiated from outside, or planned as it is."""
  is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
  return is_traced or not compat.is_eager() or regions.is_planned()


def _leaf_kind(leaf: Any) -> Hashable:
  """What a step is traced anew for, as far as it is cheap to say."""
  if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
    return tuple(leaf.shape), leaf.dtype
  if isinstance(leaf, (int, float, complex)) and not isinstance(leaf, bool):
    return type(leaf)
  return leaf if isinstance(leaf, Hashable) else type(leaf)


def plan_steps(
  budget: BudgetLike,
  *,
  planner: str = "auto",
  engine: str = "auto",
  effort: str = "normal",
  time_limit_s: float | None = None,
  on_infeasible: str = "error",
  existing: str = "replace",
  names_only: bool = False,
  on_plan: Callable[[RematPlan], Any] | None = None,
) -> PlannedSteps:
  """Plans every training step that is jitted from now on, as :func:`coopjax.plan` does, when it is first used.

  For trainers whose step can't be reached: what they give to ``jax.jit`` is planned with the arguments, the mesh and
  the options that it is called, lowered or traced with, real arrays or shapes, of devices that are there or not; the
  trainer runs on as it is. A function that takes no gradients is left alone, and so is one that is called inside of
  another. Where a step is used with other shapes it is planned again; plans are kept on disk as :func:`coopjax.plan`'s.

  ``coopjax run --budget 6GiB -m package.trainer ...`` does this around a program.

  Args:
    budget: of each step, as for :func:`coopjax.remat`; ``"fits"`` is what the device leaves it.
    planner: as for :func:`coopjax.plan`.
    engine: same.
    effort: same.
    time_limit_s: same.
    on_infeasible: same.
    existing: same.
    names_only: same.
    on_plan: is called with each plan when it is made, to show or to save it.

  Returns:
    A handle for ``with coopjax.plan_steps(...) as steps:``, whose ``plans`` are those that were made. At its end
    ``jax.jit`` is what it was, and what was planned stays so. What is not entered holds for the process.

  Raises:
    InvalidBudgetError: the budget is none.
    ValueError: another argument is none, when a step is first used.
    BudgetInfeasibleError: when a step is first used, if no plan reaches the budget.

  Limits: ``jax.jit`` has to be looked up after this: code that has imported the bare name before keeps JAX's own.
  Gradients have to be taken inside of it.

  Example:
    >>> import jax, jax.numpy as jnp, coopjax
    >>> def train():  # the trainer, in which nothing is changed
    ...   layer = jax.checkpoint(lambda x, weight: jnp.tanh(x @ weight))
    ...   def loss(weights, x):
    ...     x, _ = jax.lax.scan(lambda x, weight: (layer(x, weight), None), x, weights)
    ...     return jnp.mean(x**2)
    ...   step = jax.jit(lambda weights, x: weights - 0.1 * jax.grad(loss)(weights, x))
    ...   return step(jnp.ones((8, 64, 64)) / 64, jnp.ones((512, 64)))
    >>> with coopjax.plan_steps(budget="2MiB") as steps:
    ...   weights = train()
    >>> [plan.fits for plan in steps.plans]
    [True]
  """
  regions.check_existing(existing)
  budget = Budget.parse(budget)  # the rest is checked with the first step: before, no device may be asked for
  asked = {"planner": planner, "engine": engine, "effort": effort, "time_limit_s": time_limit_s}
  asked |= {"on_infeasible": on_infeasible, "names_only": names_only}
  request = lambda target: Request.checked(budget=budget, target=target, **asked)
  handle = PlannedSteps(request, existing, on_plan)
  handle._start()
  return handle
