"""The program around a remat: planned as a whole where the plan of the function alone leaves it over the budget.

A remat is planned when it is traced, from its function and the gradient of that. The program that it becomes a part of
holds more: gradients until an optimizer has used them, what clipping them takes, a second loss. How much, its compile
shows. Where that is over the budget and would be refused, the program is traced once more as a step
(`planning.steps`) and planned as one; what was found is compiled in its place.
"""

import dataclasses
import logging
from typing import Any

import jax
import jax.core
import numpy as np

from coopjax import compat
from coopjax.budget import Budget
from coopjax.errors import BudgetInfeasibleError, log
from coopjax.hlo_engine import hook
from coopjax.hlo_engine.mark import Mark
from coopjax.jaxpr.fingerprint import fingerprint_of
from coopjax.jaxpr.placement import own_sharding
from coopjax.jaxpr.trace import TracedFn
from coopjax.planning import following, function_plan, regions
from coopjax.planning.choice import Choice
from coopjax.planning.plannable import Plannable
from coopjax.planning.remat_plan import RematPlan
from coopjax.planning.request import Request
from coopjax.planning.steps import Step

_log = logging.getLogger("coopjax.planning")


def choose(traced: TracedFn, request: Request) -> Choice:
  """As `function_plan.choose`; the program around is kept in mind for its compile.

  A share that the function alone can't be brought to is of the program around, which may.

  Raises:
    BudgetInfeasibleError: no plan reaches the budget; where the program around is known, with what it takes at least.
  """
  program = None if traced.placement.processes or request.engine == "hlo" else _Program.here(request)
  try:
    choice = function_plan.choose(traced, request, says_unneeded=program is None)
  except BudgetInfeasibleError:
    if program is None:
      raise
    with compat.no_trace():
      choices = program.choices()
    if (choice := choices.get(fingerprint_of(traced))) is None:
      raise
    return choice
  if program is not None and (asked := choice.mark or choice.held):
    program = dataclasses.replace(program, is_left=choice.engine == "none" and compat.num_gradients() == 1)
    hook.expect(Mark.from_text(asked).key, program)
  return choice


@dataclasses.dataclass(frozen=True, eq=False)
class _Program:
  """A jitted function that is being traced, with the types of its arguments.

  Attributes:
    jitted: the function.
    args: types of its arguments; what is no array, as it is.
    kwargs: same.
    request: what a remat in it asks.
    is_left: that remat leaves its function as it is, which takes no more alone with its gradient.
  """

  jitted: jax.stages.Wrapped
  args: tuple[Any, ...]
  kwargs: dict[str, Any]
  request: Request
  is_left: bool = False

  @classmethod
  def here(cls, request: Request) -> "_Program | None":
    """The one whose trace this is; None outside of one, and where it is itself traced or differentiated."""
    if regions.is_planned() or (found := compat.outermost_jit()) is None:
      return None
    jitted, args, kwargs = found
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
      return None
    args, kwargs = jax.tree.map(_abstract, (args, kwargs))
    return cls(jitted, args, kwargs, request)

  def _plan(self, request: Request) -> RematPlan | None:
    """Of all of it; None where it is no step, or can't be traced as it was (its mesh is no longer set, for one).

    Raises:
      BudgetInfeasibleError: no plan of the step reaches the budget.
    """
    try:
      step = Plannable.of(self.jitted, self.args, self.kwargs, request.device, existing="keep")
      return step.plan(request) if isinstance(step.program, Step) and step.program.members else None
    except BudgetInfeasibleError:
      raise
    except Exception as error:  # whatever it is, what is said of the function alone is true
      log(_log, logging.INFO, "%s is not planned as a whole: %s", getattr(self.jitted, "__name__", "a program"), error)
      return None

  def choices(self) -> dict[str, Choice]:
    """By fingerprint of its regions, what a plan of all of it decides; none where there is none."""
    plan = self._plan(self.request)
    if plan is None:
      return {}
    return dict(zip((region.fingerprint for region in plan.regions), following.choices_of(plan), strict=True))

  def planned_anew(self, limit_bytes: int | None = None) -> tuple[jax.stages.Lowered, int, int] | None:
    """It with its plan carried out, lowered, its budget in bytes and its temporaries; None where there is none.

    Args:
      limit_bytes: of temporaries, in place of the budget.
    """
    request = self.request
    if limit_bytes is not None:
      budget = Budget(limit_bytes, offload=request.budget.offload)
      request = dataclasses.replace(request, budget=budget)
    plan = self._plan(request)
    if plan is None:
      return None
    fitted: Any = plan.apply(self.jitted)  # jitted, as that is
    return fitted.lower(*self.args, **self.kwargs), plan.budget_bytes, plan.measured.temp_bytes


def _abstract(leaf: Any) -> Any:
  """An array's type, with its sharding where it has been put somewhere."""
  if not isinstance(leaf, jax.Array | np.ndarray):
    return leaf
  aval = jax.typeof(leaf)
  return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=own_sharding(leaf), weak_type=aval.weak_type)
