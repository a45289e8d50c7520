"""What can be planned: a function with its gradient, or a whole step, traced once for any number of plans."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from coopjax.jaxpr.trace import TracedFn, differentiable, fn_and_gradient, trace
from coopjax.memory_profile import MemoryProfile
from coopjax.planning import following, kept, steps
from coopjax.planning.baseline import Baseline
from coopjax.planning.choice import Choice
from coopjax.planning.function_plan import plan_function
from coopjax.planning.remat_plan import RematPlan
from coopjax.planning.request import Request
from coopjax.planning.step_plan import baseline_of, plan_step
from coopjax.xla.compile import compile_trial, measure
from coopjax.xla.targets import Target


@dataclasses.dataclass(frozen=True, eq=False)
class Plannable:
  """A function with its gradient, or a whole step, traced for its arguments; any number of plans are made of it.

  Attributes:
    program: what is planned.
    baseline: it, compiled as it is.
    target: what it is compiled for, None for the default backend.
  """

  program: TracedFn | steps.Step
  baseline: Baseline
  target: Target | None

  @classmethod
  def of(cls, fn: Callable, args: Sequence[Any], kwargs: dict[str, Any], target: Target | None) -> "Plannable":
    """What `coopjax.plan` makes of a function and its arguments."""
    if step := steps.find_step(fn, args, kwargs, target):
      return cls(step, baseline_of(step, target), target)
    traced = differentiable(trace(fn, args, kwargs))
    if traced.has_symbolic_sizes:
      raise ValueError(f"{traced.name} is traced for symbolic sizes: what it takes is known for sizes that are numbers")
    return cls(traced, Baseline.of(traced, target), target)

  def plan(self, request: Request) -> RematPlan:
    """The plan for one request: the one that is kept on disk, if there is one."""
    return kept.kept_or_made(
      self._key,
      request,
      make=lambda: self._planned_anew(request),
      measure=lambda plan: self.measure_with(following.choices_of(plan)),
    )

  def _planned_anew(self, request: Request) -> RematPlan:
    if isinstance(self.program, steps.Step):
      return plan_step(self.program, request, self.baseline)
    return plan_function(self.program, request, self.baseline)

  @property
  def name(self) -> str:
    """Of the function."""
    return self.program.name

  @property
  def functions(self) -> tuple[TracedFn, ...]:
    """What can be carried out in several ways: the function, or the remat regions of the step."""
    if isinstance(self.program, steps.Step):
      return tuple(member.traced for member in self.program.members)
    return (self.program,)

  @functools.cached_property
  def _key(self) -> str | None:
    """What plans are kept under; None where the compiled program is not the one that will run."""
    if isinstance(self.program, steps.Step):
      key = self.program.key
    elif self.program.placement.is_known:
      key = kept.program_key(self.program)
    else:
      return None
    return f"{key} {kept.origin_of(*self.functions)}"

  def measure_with(self, choices: Sequence[Any]) -> MemoryProfile:
    """Memory of the program with a choice for each of `functions`: a `Choice`, what has its `flat_fn`, or None.

    Raises:
      CompileMemoryError: it does not fit the device, and its sizes are not known.
    """
    choices = [choice or Choice() for choice in choices]
    if isinstance(self.program, steps.Step):
      compiled = compile_trial(self.program.program(choices), (), self.target)
    else:
      compiled = compile_trial(*fn_and_gradient(self.program, choices[0].flat_fn(self.program)), self.target)
    return measure(compiled, self.target)
