"""How a finished plan is carried out: in a function, or in the remat regions of a whole step.

Reads what a plan says and makes none, so that `RematPlan.apply` can come here.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax

from coopjax import compat
from coopjax.budget import Budget
from coopjax.errors import NoRegionsError, PlanMismatchError, RematNoEffectWarning, warn
from coopjax.hlo_engine import hook
from coopjax.hlo_engine.mark import Mark, keyed
from coopjax.jaxpr.fingerprint import fingerprint_of
from coopjax.jaxpr.placement import Spread
from coopjax.jaxpr.trace import TracedFn
from coopjax.planners import base
from coopjax.planning import differentiated, existing, regions, whole_steps
from coopjax.planning.choice import Choice
from coopjax.xla import targets

if TYPE_CHECKING:
  from coopjax.planning.remat_plan import RematPlan


def follow(
  fn: Callable,
  plan: "RematPlan",
  *,
  policy: Callable | None = None,
  static_argnums: int | Sequence[int] = (),
  static_argnames: str | Sequence[str] = (),
  prevent_cse: bool | Sequence[bool] = True,
) -> Callable:
  """The function that was planned, with its plan carried out; a whole step keeps its jit, donation and shardings.

  Args:
    fn: the function, or the step.
    plan: for it.
    policy: of a function, as for `coopjax.remat`.
    static_argnums: same.
    static_argnames: same.
    prevent_cse: same.

  Raises:
    PlanMismatchError: when called with arguments that trace to another program, or lie on another mesh.
  """
  regions.check_function(fn)
  base.get_planner(plan.planner)
  Budget.parse(plan.budget)
  if _is_of_whole_step(plan):
    return whole_steps.follow(fn, plan, _mark_here(plan))
  if plan.regions:
    existing.watch()
    if plan.of_gradients:
      differentiated.watch()
    return regions.step_under(_directions(plan), fn)
  return regions.region(
    fn,
    functools.partial(_choice_here, plan),
    policy=policy,
    static_argnums=static_argnums,
    static_argnames=static_argnames,
    prevent_cse=prevent_cse,
  )


def _is_of_whole_step(plan: "RematPlan") -> bool:
  """Whether it is of a step without regions."""
  return bool(plan.regions) and plan.regions[0].fingerprint == plan.fingerprint


def _directions(plan: "RematPlan") -> regions.Directions:
  """Of a plan of regions."""
  choices = _choices_here(plan)
  return regions.Directions(
    plan.name,
    tuple((region.fingerprint, choice) for region, choice in zip(plan.regions, choices, strict=True)),
    Spread(plan.mesh, plan.num_devices, plan.shards),
    plan.existing,
    plan.of_gradients,
  )


def standing_directions(plan: "RematPlan") -> regions.Directions:
  """What `coopjax.enable` asks of every region of the process.

  Raises:
    NoRegionsError: the plan is not of regions.
  """
  if not plan.regions or plan.of_gradients or _is_of_whole_step(plan):
    raise NoRegionsError(
      f"the plan of {plan.name} has no remat regions, by which enable(plan=) would know it: use plan.apply(fn)"
    )
  existing.watch()
  return dataclasses.replace(_directions(plan), is_standing=True)


def choices_of(plan: "RematPlan") -> tuple[Choice, ...]:
  """What a plan stands for where it is compiled for its target: a choice per region of a step, or one for a
  function.
  """
  return _choices(plan, _mark(plan))


def _choices(plan: "RematPlan", mark: str | None, held: str | None = None) -> tuple[Choice, ...]:
  return tuple(Choice(mark, part.policy, held) for part in plan.regions or (plan,))


def _choices_here(plan: "RematPlan") -> tuple[Choice, ...]:
  """As `choices_of`, where the plan is carried out: a program that takes more than was planned is told of."""
  held = None
  if plan.engine == "policy" and _is_for_here(plan):
    budget = Budget(max(plan.budget_bytes, plan.measured.temp_bytes))
    held = keyed(Mark(budget, plan.planner, plan.effort, plan.time_limit_s), plan.fingerprint).to_choice()
  return _choices(plan, _mark_here(plan), held)


def _choice_here(plan: "RematPlan", traced: TracedFn) -> Choice:
  """The choice that a plan stands for in a function as it is called here."""
  if fingerprint_of(traced) != plan.fingerprint:
    raise PlanMismatchError(
      f"the plan was made for {plan.name} with fingerprint {plan.fingerprint}; {traced.name} as called here has "
      f"{fingerprint_of(traced)}: another function, other shapes or dtypes, or other versions of its libraries"
    )
  if traced.placement.mesh not in ("", plan.mesh):
    raise PlanMismatchError(
      f"the plan for {plan.name} was made for {'the mesh ' + plan.mesh if plan.mesh else 'one device'}, and its "
      f"arguments lie on the mesh {traced.placement.mesh}: give coopjax.plan jax.ShapeDtypeStructs with their shardings"
    )
  (choice,) = _choices_here(plan)
  return choice


def _is_for_here(plan: "RematPlan") -> bool:
  """Whether the plan's target is what is here."""
  return plan.target is None or targets.resolve(plan.target).is_running


def _mark_here(plan: "RematPlan") -> str | None:
  """As `_mark`; None where the plan's target is not what is here."""
  if _is_for_here(plan):
    return _mark(plan)
  if plan.engine == "hlo":
    warn(
      f"the plan for {plan.name} has no effect: the HLO engine made it for target {plan.target}, and this is "
      f"{jax.default_backend()}; a plan made with engine='policy' is carried out anywhere",
      RematNoEffectWarning,
    )
  return None


def _mark(plan: "RematPlan") -> str | None:
  """The mark for the HLO engine's part in a plan, if it has one.

  A share is settled in bytes where the hook does not see the un-rematerialized program, or not its compiled bytes.
  """
  if "hlo" not in plan.engine:
    return None
  target = targets.running() if plan.target is None else targets.resolve(plan.target)
  if platform := compat.hook_platform(target.platform):  # None under an older JAX than the plan was made with
    hook.install(platform)
  is_settled = plan.regions or plan.policy is not None or target.platform != "cpu"
  budget = Budget(plan.budget_bytes) if is_settled else plan.budget
  asked = Mark(budget, plan.planner, plan.effort, plan.time_limit_s, target=target.name)
  return keyed(asked, plan.fingerprint).to_text()
