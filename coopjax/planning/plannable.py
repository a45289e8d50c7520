"""What can be planned: a function with its gradient, or a whole step, traced once for any number of plans."""

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from coopjax import compat, contexts, job
from coopjax.errors import BudgetInfeasibleError, NoRegionsError, log
from coopjax.jaxpr import cost
from coopjax.jaxpr.trace import TracedFn, differentiable, fn_and_gradient, trace, with_respect_to
from coopjax.planning import following, kept, steps, together
from coopjax.planning.assemble import STEP_OVER_FORWARD
from coopjax.planning.baseline import Baseline
from coopjax.planning.choice import Choice
from coopjax.planning.function_plan import plan_function
from coopjax.planning.remat_plan import RematPlan
from coopjax.planning.request import Request
from coopjax.planning.step_plan import baseline_of, plan_step, repeated_alone
from coopjax.planning.trials import Tried
from coopjax.xla.compile import OversizedProgram, compile_draft, compile_trial, num_devices
from coopjax.xla.targets import Target

_MOST = 0.75  # of the forward pass, in regions: what stands beside them hardly counts
_LITTLE = 0.01  # of it: to repeat so much is no reason to plan once more
_log = logging.getLogger("coopjax.planning")


@dataclasses.dataclass(frozen=True, eq=False)
class Plannable:
  """A function with its gradient, or a whole step, traced for its arguments; any number of plans are made of it.

  Attributes:
    program: what is planned.
    baseline: it, compiled as it is.
    target: what it is compiled for, None for the default backend.
    drafts: as of `Request`.
    processes: of a job, that run it together; () for this one's own program.
  """

  program: TracedFn | steps.Step
  baseline: Baseline
  target: Target | None
  drafts: bool = False
  processes: tuple[int, ...] = ()

  @classmethod
  def of(
    cls,
    fn: Callable,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    target: Target | None,
    argnums: int | Sequence[int] | None = None,
    existing: str = "replace",
    *,
    drafts: bool = False,
  ) -> "Plannable":
    """What `coopjax.plan` makes of a function and its arguments."""
    step = cls.of_step(fn, args, kwargs, target, existing, drafts=drafts)
    if step and (step.functions or argnums is None):
      if argnums is not None:
        raise ValueError(f"argnums={argnums}: {step.name} is a step, which takes the gradients that it takes")
      return step
    with contexts.in_region(True):
      traced = trace(fn, args, kwargs)
    traced.refuse_ordered_effects()
    traced = differentiable(traced if argnums is None else with_respect_to(traced, argnums))
    if traced.has_symbolic_sizes:
      raise ValueError(f"{traced.name} is traced for symbolic sizes: what it takes is known for sizes that are numbers")
    compile_fn = compile_draft if drafts else compile_trial
    return cls(traced, Baseline.of(traced, target, compile_fn), target, drafts, _processes_of(args, kwargs, target))

  @classmethod
  def of_step(
    cls,
    fn: Callable,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    target: Target | None,
    existing: str = "replace",
    *,
    drafts: bool = False,
  ) -> "Plannable | None":
    """The same, if it is a step, with regions or without; else None."""
    step = steps.find_step(fn, args, kwargs, target, existing)
    if step is None:
      return None
    baseline = baseline_of(step, target, compile_draft if drafts else compile_trial)
    return cls(step, baseline, target, drafts, _processes_of(args, kwargs, target))

  def plan(self, request: Request) -> RematPlan:
    """The plan for one request: the one that is kept on disk, if there is one. In a job, one process's for all."""
    if self.processes and (program := self._program_key):
      return together.agreed_plan(self.name, program, request, self.processes, lambda: self._planned_here(request))
    return self._planned_here(request)

  def _planned_here(self, request: Request) -> RematPlan:
    return kept.kept_or_made(
      self._key,
      request,
      make=lambda: self._planned_anew(request),
      measure=lambda plan: request.measure(self.as_of(plan).compile_with(following.choices_of(plan))),
    )

  def _planned_anew(self, request: Request) -> RematPlan:
    step = self.program
    if not isinstance(step, steps.Step):
      return plan_function(step, request, self.baseline)
    if request.engine != "auto" or request.names_only:
      return plan_step(step, request, self.baseline, self._tried)
    return self._planned_in_some_way(step, request)

  def _planned_in_some_way(self, step: steps.Step, request: Request) -> RematPlan:
    """By the step's regions, or by what it differentiates: the first that reaches the budget, else what comes nearest.
    Where it has no regions, the HLO engine alone, if that repeats but a little, or no other way repeats less; where it
    repeats more beside regions that are not most of the step, the other way, if that repeats less.
    """
    strict = dataclasses.replace(request, on_infeasible="error")
    as_written = functools.partial(plan_step, step, baseline=self.baseline, tried=self._tried)
    missed = list[tuple[float, Exception, Callable[..., RematPlan]]]()

    def attempt(way: Callable[..., RematPlan]) -> RematPlan | None:
      try:
        return way(request=strict)
      except (BudgetInfeasibleError, NoRegionsError) as error:
        missed.append((getattr(error, "smallest_bytes", math.inf), error, way))
        return None

    plan = None
    if step.has_regions:
      plan, ways = attempt(as_written), []
      if plan is not None and not self._repeats_beside_regions(step, plan):
        return plan
      below_flops = math.inf if plan is None else plan.recompute_flops
    else:
      below_flops, ways = repeated_alone(step, request, self.baseline, self._tried), [as_written]
    if below_flops and (other := self.by_gradients) is not None:
      assert isinstance(other.program, steps.Step)
      of_gradients = functools.partial(
        plan_step, other.program, baseline=other.baseline, tried=other._tried, below_flops=below_flops
      )
      ways = [of_gradients, *ways]
    plan = next(filter(None, map(attempt, ways)), plan)
    if plan is not None:
      return plan
    _, error, way = min(missed, key=lambda each: each[0])
    if request.on_infeasible == "error":
      raise error
    return way(request=request)

  def _repeats_beside_regions(self, step: steps.Step, plan: RematPlan) -> bool:
    """Whether the HLO engine repeats more than a little in a step whose regions are not most of it."""
    if "hlo" not in plan.engine:
      return False
    forward_flops = self.flops_with() / STEP_OVER_FORWARD
    is_beside = step.forward_flops / plan.num_devices < _MOST * forward_flops
    return is_beside and plan.recompute_flops > _LITTLE * forward_flops

  @functools.cached_property
  def by_gradients(self) -> "Plannable | None":
    """A step with those functions as regions that it differentiates; None where it has none that can be, and where its
    own regions may not be replaced.
    """
    step = self.program
    if not isinstance(step, steps.Step) or step.existing == "keep":
      return None
    if step.has_regions and step.existing != "replace":
      return None
    try:
      found = steps.find_step(step.jitted, step.args, step.kwargs, None, step.existing, of_gradients=True)
    except Exception as error:  # whatever it is, the step can do without
      log(_log, logging.INFO, "what %s differentiates is not planned by itself: %s", step.name, error)
      return None
    if found is None or not found.has_regions:
      return None
    baseline = baseline_of(found, self.target, lambda *_: self.baseline.plain)
    return dataclasses.replace(self, program=found, baseline=baseline)

  def as_of(self, plan: RematPlan) -> "Plannable":
    """The program that a plan of it decides on: with its regions, or with those functions that it differentiates."""
    program = self.by_gradients if plan.of_gradients else self
    assert program is not None  # it was planned
    return program

  @functools.cached_property
  def _tried(self) -> Tried:
    return Tried()

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

  @property
  def are_layers(self) -> tuple[bool, ...]:
    """Of each of these, whether the step runs it several times, as a layer."""
    if isinstance(self.program, steps.Step):
      return tuple(member.num_runs > 1 for member in self.program.members)
    return (False,)

  @functools.cached_property
  def _key(self) -> str | None:
    """What plans are kept under; None where the compiled program is not the one that will run."""
    key = self._program_key
    return key and f"{key} {kept.origin_of(*self.functions)}"

  @functools.cached_property
  def _program_key(self) -> str | None:
    """As `_key`, without the source lines, which differ between checkouts."""
    if isinstance(self.program, steps.Step):
      return self.program.key
    return kept.program_key(self.program) if self.program.placement.is_known else None

  def compile_with(self, choices: Sequence[Any], *, whole: bool = False) -> jax.stages.Compiled | OversizedProgram:
    """The program with a choice for each of `functions`: a `Choice`, what has its `flat_fn`, or None. A draft where
    there are drafts, unless it is to be `whole`.

    Raises:
      CompileMemoryError: it does not fit the device, and its sizes are not known.
    """
    compile_fn = compile_draft if self.drafts and not whole else compile_trial
    return compile_fn(*self._carried_out(choices), self.target)

  def flops_with(self, choices: Sequence[Any] = ()) -> float:
    """What one device computes of that program, or of it as it is, as traced; what nothing reads does not count."""
    program, avals = self._carried_out(choices)
    if isinstance(self.program, steps.Step):
      return sum(program.flops(self._tried.num_parts(num_devices(self.baseline.plain))).values())
    num_parts = self.program.placement.num_devices
    return sum(cost.device_flops(compat.dce(jax.make_jaxpr(program)(*avals)), lambda _: None, num_parts).values())

  def _carried_out(self, choices: Sequence[Any]) -> tuple[Any, Sequence[jax.ShapeDtypeStruct]]:
    """The program with these choices, and what it takes."""
    choices = [choice or Choice() for choice in choices] or [Choice()]
    if isinstance(self.program, steps.Step):
      return self.program.program(choices if len(choices) > 1 else self.program.each(choices[0])), ()
    return fn_and_gradient(self.program, choices[0].flat_fn(self.program))


def _processes_of(args: Sequence[Any], kwargs: dict[str, Any], target: Target | None) -> tuple[int, ...]:
  """`Plannable.processes`, by where the arguments lie."""
  leaves = () if target else jax.tree.leaves((args, kwargs))
  return job.spanned_by(getattr(leaf, "sharding", None) for leaf in leaves)
