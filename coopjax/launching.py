"""Training steps of a job that nobody changes: each is planned when it is first called, lowered or traced.

Trainers (MaxText's, one's own) make their step with ``jax.jit`` somewhere inside. While `plan_steps` lasts, that name
gives functions that look, before they run, whether what they are called with takes gradients; such a step is planned
with the arguments, the mesh and the options that the trainer gives it, and carried out as planned.
"""

import contextlib
import functools
import types
import warnings
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.core

from coopjax import compat, progress
from coopjax.budget import Budget, BudgetLike
from coopjax.errors import NoRegionsError, PlanMismatchError, RematNoEffectWarning, warn
from coopjax.planning import regions, steps
from coopjax.planning.plannable import Plannable
from coopjax.planning.remat_plan import RematPlan
from coopjax.planning.request import Request
from coopjax.xla import targets

type _Watcher = Callable[[RematPlan], Any]


class PlannedSteps:
  """What `plan_steps` returns; as a context manager it ends at the end of the block.

  Attributes:
    plans: that were made so far, in the order of the first calls.
    is_on: steps that come up are planned.
  """

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
    former = self._former

    @functools.wraps(former)
    def jit(*args, **kwargs):
      jitted = former(*args, **kwargs)
      if regions.is_jitted(jitted):
        return _Jitted(jitted, self)
      return lambda fn: _Jitted(jitted(fn), self)  # options alone: a decorator

    jax.jit = jit

  def planned(self, jitted: jax.stages.Wrapped, args: Any, kwargs: Any) -> Callable:
    """The function with its plan carried out if it is a step that can be planned; else the function."""
    traced = jitted.trace(*args, **kwargs)  # which JAX keeps for the call
    if not steps.holds_backward(traced.jaxpr.jaxpr):
      return jitted
    request = self._request(targets.of_arguments((args, kwargs)))
    name = getattr(jitted, "__name__", "a step")
    try:
      with progress.shown(f"planning {name}"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RematNoEffectWarning)  # a step within the budget is as it should be
        plan = Plannable.of(jitted, args, kwargs, request.device, None, self._existing).plan(request)
    except NoRegionsError as error:
      warn(f"{name} runs as it is: {error}", RematNoEffectWarning)
      return jitted
    self.plans.append(plan)
    if self._on_plan is not None:
      self._on_plan(plan)
    return plan.apply(jitted)


class _Jitted:
  """A jitted function, called, lowered or traced as planned for the arguments; all else of it as it is."""

  def __init__(self, jitted: Any, planned_steps: PlannedSteps):
    functools.update_wrapper(self, jitted)
    if isinstance(jitted, _Jitted):
      jitted = jitted._jitted  # the inner of two blocks decides
    self.__wrapped__ = getattr(jitted, "__wrapped__", jitted)
    self._jitted, self._steps = jitted, planned_steps
    self._known: dict[Hashable, Callable] = {}  # by kind of arguments

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
    kind = tree, tuple(map(_leaf_kind, leaves))
    if kind in self._known:
      with contextlib.suppress(PlanMismatchError):  # raised before anything runs: what differs is not in the kind
        return getattr(self._known[kind], name)(*args, **kwargs)
    if not self._steps.is_on:
      return getattr(self._jitted, name)(*args, **kwargs)
    self._known[kind] = self._steps.planned(self._jitted, args, kwargs)
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
