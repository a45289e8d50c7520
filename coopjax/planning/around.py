"""The program around a remat: planned as a whole where the plan of the function alone leaves it over the budget.

A remat is planned when it is traced, from its function and the gradient of that. The program that it becomes a part of
holds more: gradients until an optimizer has used them, what clipping them takes, a second loss. How much, its compile
shows. Where that is over the budget and would be refused, the program is traced once more as a step
(`planning.steps`) and planned as one; what was found is compiled in its place.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from coopjax import compat
from coopjax.errors import BudgetInfeasibleError
from coopjax.hlo_engine import hook
from coopjax.hlo_engine.mark import Mark
from coopjax.jaxpr.trace import TracedFn
from coopjax.planning import function_plan, regions
from coopjax.planning.choice import Choice
from coopjax.planning.plannable import Plannable
from coopjax.planning.request import Request
from coopjax.planning.steps import Step


def choose(traced: TracedFn, request: Request) -> Choice:
  """As `function_plan.choose`; the program around is kept in mind for its compile.

  Raises:
    BudgetInfeasibleError: no plan reaches the budget; where the program around is known, with what it takes at least.
  """
  program = None if traced.placement.processes or request.engine == "hlo" else _Program.here(request)
  try:
    choice = function_plan.choose(traced, request, says_unneeded=program is None)
  except BudgetInfeasibleError:
    if program is not None:
      with compat.no_trace():
        program.planned()
    raise
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

  def planned(self) -> tuple[Callable, int] | None:
    """The function with its plan carried out, and its budget in bytes; None where it is no step.

    Raises:
      BudgetInfeasibleError: no plan of the step reaches the budget.
    """
    step = Plannable.of(self.jitted, self.args, self.kwargs, self.request.device, existing="keep")
    if not (isinstance(step.program, Step) and step.program.members):
      return None
    plan = step.plan(self.request)
    return (plan.apply(self.jitted), plan.budget_bytes) if plan.fits else None

  def planned_anew(self) -> tuple[jax.stages.Lowered, int] | None:
    """As `planned`, lowered."""
    planned = self.planned()
    return planned and (planned[0].lower(*self.args, **self.kwargs), planned[1])


def _abstract(leaf: Any) -> Any:
  """An array's type, with its sharding where it has been put somewhere."""
  if not isinstance(leaf, jax.Array | np.ndarray):
    return leaf
  aval, sharding = jax.typeof(leaf), leaf.sharding if getattr(leaf, "committed", False) else None
  return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type)
