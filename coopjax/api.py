"""The user's door: trace, plan, apply, verify."""

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Unpack, overload

import jax

from coopjax import compat
from coopjax.planning import assemble, kept_plans, steps
from coopjax.budget import Budget, BudgetLike, format_bytes
from coopjax.planning.choice import Choice, fingerprint_of
from coopjax.planning.function_plan import choose, decide, warn_no_effect
from coopjax.errors import BudgetExceededWarning, PlanMismatchError, RematNoEffectWarning
from coopjax.jaxpr.trace import TracedFn, differentiable, fn_and_gradient, split_arguments, trace
from coopjax.keywords import Decorator, RematKeywords
from coopjax.memory_profile import MemoryProfile
from coopjax.planning.remat_plan import RematPlan
from coopjax.planning.request import Request
from coopjax.planning.step_plan import directions_of, plan_step, unplanned_step
from coopjax.planning.baseline import Unplanned
from coopjax.xla import targets
from coopjax.xla.compile import compile_abstract, compile_trial, measure


@overload
def remat[**P, R](fn: Callable[P, R], **keywords: Unpack[RematKeywords]) -> Callable[P, R]: ...
@overload
def remat(fn: None = None, **keywords: Unpack[RematKeywords]) -> Decorator: ...
def remat(
  fn: Callable | None = None,
  *,
  budget: BudgetLike | None = None,
  planner: str = "auto",
  engine: str = "auto",
  policy: Callable | None = None,
  static_argnums: int | Sequence[int] = (),
  static_argnames: str | Sequence[str] = (),
  target: str | None = None,
  time_limit_s: float = 10.0,
  on_infeasible: str = "error",
  plan: RematPlan | None = None,
) -> Callable:
  """Makes ``fn`` train inside a memory budget: a drop-in for ``jax.checkpoint`` that takes a number.

  Memory of a training step is mostly residuals: forward values kept for the backward pass. ``remat`` decides which of
  them to keep and which to recompute, on the sizes, live ranges and offsets that XLA gives them, so that temporary
  memory (``temp_size_in_bytes`` of the compiled program) stays within ``budget`` at the least recompute.

  With the HLO engine the decision is made inside XLA's pipeline, for every program that the function ends up in: the
  function with its gradient, or a whole train step with optimizer and donated state. Recomputed instructions are
  clones of compiled ones, so results are bit-identical to those without remat. With the policy engine the function
  is rewritten into ``jax.checkpoint`` segments when it is traced; results agree within rounding. ``"auto"`` uses the
  HLO engine, and the policy engine under it where that can't reach the budget alone (the residuals of a ``scan``).

  On a mesh the budget is each device's. The HLO engine plans what one device runs, after partitioning, whatever the
  shardings. The policy engine plans in the trace, which shows them inside a ``shard_map`` and over Explicit mesh axes.
  Over Auto axes JAX traces once for all shardings. There, budgets in bytes are held by a plan for all devices together,
  with more recompute than one of them needs (``ShardingUnknownWarning``), shares are carried over in proportion, and an
  infeasible budget is a ``BudgetExceededWarning`` of the compile. A plan of the function, or of the whole step, for
  abstract values with shardings is exact: ``coopjax.plan(step, *shapes, budget=...).apply(step)``. Under a ``vmap``
  the HLO engine sees all examples, the policy engine one: put the remat around the ``vmap``.

  Args:
    fn: a differentiable function of pytrees, whose leaves need not all be arrays (a module of Equinox may hold functions);
      left out, ``remat`` returns a decorator.
    budget: temporary memory on one device: bytes (int), a size (``"6GiB"``), a float in (0, 1], or ``"25%"``, as a share
      of the un-rematerialized temporaries of the program that is compiled, or a :class:`coopjax.Budget`. With
      ``Budget("6GiB", offload=True)`` values may also be kept in the host's memory, where that takes less time than to
      recompute them, or nothing else holds the budget: on GPU in scans and straight-line code, on TPU in scans, by the
      policy engine. A CPU has nowhere to offload to (``HostOffloadWarning``, or ``HostOffloadError`` if it is asked of
      an engine by name).
    planner: one of ``coopjax.planners.base.PLANNERS``, for the HLO engine. For the policy engine, "segments" finds what
      to save by FLOPs spared per byte, "coop" by Coop's windows over XLA's offsets, and "auto" tries both; the others
      schedule instructions, and are refused with ``engine="policy"``.
    engine: ``"auto"``, ``"hlo"`` or ``"policy"``.
    policy: a ``jax.checkpoint`` policy: what it saves or offloads is never recomputed, the budget decides on the rest.
      One that offloads takes the policy engine, except on a CPU. (The HLO engine sees fused instructions, so to it a
      kept value is the result of the fusion or product that makes it.)
    static_argnums: positions of arguments that are not arrays, as for ``jax.jit``.
    static_argnames: their names.
    target: hardware to plan for, there or not: ``"cpu"``, ``"gpu:h100"``, ``"tpu:v5e:2x2"`` and others (see
      ``coopjax.xla.targets``; needs ``coopjax[gpu-target]`` or ``[tpu-target]``). None is the default backend. On
      another backend than the target's, ``"auto"`` carries the decisions out with the policy engine.
    time_limit_s: seconds that planning one program may take.
    on_infeasible: ``"error"`` raises when no plan reaches the budget, ``"best_effort"`` warns and takes the smallest.
    plan: a plan from :func:`coopjax.plan` to carry out, in place of ``budget``, ``planner`` and ``engine``.

  Returns:
    A function with the signature and the results of ``fn``.

  Raises:
    InvalidBudgetError: the budget is not one; raised here, not when the function is called.
    BudgetInfeasibleError: when the function is traced, if no plan reaches the budget.
    PlanMismatchError: when the function is traced, if ``plan`` was made for another program or another mesh.

  Example:
    >>> import jax, jax.numpy as jnp, coopjax
    >>> def loss(weights, x):
    ...   for weight in weights:
    ...     x = jnp.tanh(x @ weight)
    ...   return jnp.mean(x**2)
    >>> step = jax.jit(jax.grad(coopjax.remat(loss, budget=0.5)))
    >>> grads = step([jnp.eye(64)] * 8, jnp.ones((512, 64)))

  References:
    Zhang et al., "Coop: Memory is not a Commodity", NeurIPS 2023; Griewank and Walther, "Revolve", 2000.
  """
  if fn is not None and not callable(fn):
    raise TypeError(f"remat takes a function, and then keywords: {fn!r} is none")
  if plan is not None:
    if not isinstance(plan, RematPlan):
      raise TypeError(f"plan={plan!r} is no plan of coopjax.plan")
    if budget is not None:
      raise TypeError("give remat either budget= or plan=, not both: a plan carries its budget")
    budget, planner, engine = dataclasses.replace(plan.budget, offload=False), plan.planner, plan.engine
  elif budget is None:
    raise TypeError("remat needs budget= (bytes, a size such as '6GiB', or a share in (0, 1]) or plan=")
  request = Request.checked(budget, planner, engine if plan is None else "auto", target, time_limit_s, on_infeasible)
  if fn is None:
    return functools.partial(
      remat, budget=None if plan else request.budget, planner=planner, engine=engine, policy=policy,
      static_argnums=static_argnums, static_argnames=static_argnames, target=target, time_limit_s=time_limit_s,
      on_infeasible=on_infeasible, plan=plan,
    )

  if plan is not None and plan.regions:
    return steps.follow(fn, directions_of(plan, _mark_here(plan, Budget(plan.budget_bytes))))

  @functools.wraps(fn)
  def rematerialized(*args, **kwargs):
    if plan is None and not steps.is_planned() and compat.is_eager() and not compat.has_backward_outside():
      return fn(*args, **kwargs)  # operation by operation, and nothing is kept for a backward pass
    static = {"static_argnums": static_argnums, "static_argnames": static_argnames}
    with steps.inside_region():
      traced = trace(fn, args, kwargs, policy=policy, **static)
    leaves = split_arguments(fn, args, kwargs, **static).leaves
    if flat_fn := steps.directed(traced):
      return traced.call(leaves, flat_fn)
    choice = choose(traced, request) if plan is None else _follow(traced, plan)
    return traced.call(leaves, choice.here(traced.name).flat_fn(traced))

  return rematerialized


def plan(
  fn: Callable,
  *args: Any,
  budget: BudgetLike,
  planner: str = "auto",
  engine: str = "auto",
  target: str | None = None,
  time_limit_s: float = 10.0,
  on_infeasible: str = "error",
  **kwargs: Any,
) -> RematPlan:
  """Plans ``fn`` with its gradient for a budget, compiles the plan, and reports the compiler's numbers.

  A plan that holds its budget is kept on disk (see ``coopjax.planning.cache``): where the same is planned again, in this process
  or another, it is compiled once, to measure it.

  A whole training step, recognized by taking gradients of functions under :func:`remat` (or of Flax blocks under
  :func:`coopjax.linen.remat` or :func:`coopjax.nnx.remat`), is planned as it is: with its optimizer, donation, gradient
  accumulation and jit options. The budget is then the step's, not each region's, and is divided between the regions
  inside, those first that are cheap to repeat; their own budgets don't count. ``plan.apply(step)`` is that step. Where
  the HLO engine alone would repeat more than a tenth of the regions' forward pass, ``"auto"`` takes a division of the
  budget by the policy engine if that, with what the HLO engine repeats under it, is less work.

  Args:
    fn: a differentiable function, or a training step, jitted or not.
    *args: its arguments; ``jax.ShapeDtypeStruct`` will do. With shardings, all bytes are those of one device.
    budget: as for :func:`remat`.
    planner: as for :func:`remat`.
    engine: as for :func:`remat`.
    target: as for :func:`remat`.
    time_limit_s: seconds that planning may take, compiles excluded.
    on_infeasible: as for :func:`remat`.
    **kwargs: keyword arguments of ``fn``.

  Returns:
    The plan, with memory before (``baseline``), as modelled (``predicted``) and as compiled (``measured``).

  Raises:
    InvalidBudgetError: the budget is not one.
    NotDifferentiableError: ``fn`` has no floating input or output.
    BudgetInfeasibleError: no plan reaches the budget.

  Example:
    >>> import jax, jax.numpy as jnp, coopjax
    >>> def loss(weights, x):
    ...   for weight in weights:
    ...     x = jnp.tanh(x @ weight)
    ...   return jnp.mean(x**2)
    >>> plan = coopjax.plan(loss, [jnp.eye(64)] * 8, jnp.ones((512, 64)), budget=0.5)
    >>> plan.measured.temp_bytes <= plan.budget_bytes
    True

    A step, in a total with parameters, gradients and activations:

    >>> def train_step(weights, x):
    ...   value, grads = jax.value_and_grad(coopjax.remat(loss, budget=0.5))(weights, x)
    ...   return [weight - 0.1 * grad for weight, grad in zip(weights, grads)], value
    >>> train_step = jax.jit(train_step, donate_argnums=0)
    >>> plan = coopjax.plan(train_step, [jnp.eye(64)] * 8, jnp.ones((512, 64)), budget=coopjax.Budget.total("1 MiB"))
    >>> plan.measured.total_bytes <= 2**20
    True
    >>> fitted_step = plan.apply(train_step)
  """
  request = Request.checked(budget, planner, engine, target, time_limit_s, on_infeasible)
  return Plannable.of(fn, args, kwargs, request.device).plan(request)


@dataclasses.dataclass(frozen=True, eq=False)
class Plannable:
  """A function with its gradient, or a whole step, traced for its arguments; any number of plans are made of it.

  Attributes:
    program: what is planned.
    unplanned: it, compiled as it is.
    target: what it is compiled for, None for the default backend.
  """

  program: TracedFn | steps.Step
  unplanned: Unplanned
  target: targets.Target | None

  @property
  def is_step(self) -> bool:
    """Whether it is a whole step."""
    return isinstance(self.program, steps.Step)

  @classmethod
  def of(cls, fn: Callable, args: Sequence[Any], kwargs: dict[str, Any], target: targets.Target | None) -> "Plannable":
    """What `plan` makes of a function and its arguments."""
    if step := steps.find_step(fn, args, kwargs, target):
      return cls(step, unplanned_step(step, target), target)
    traced = differentiable(trace(fn, args, kwargs))
    if traced.has_symbolic_sizes:
      raise ValueError(f"{traced.name} is traced for symbolic sizes: what it takes is known for sizes that are numbers")
    return cls(traced, Unplanned.of(traced, target), target)

  def plan(self, request: Request) -> RematPlan:
    """The plan for one request: the one that is kept on disk, if there is one."""
    return kept_plans.kept_or_made(
      self._key, request, lambda: self._new_plan(request), lambda plan: self.measure_with(self._choices(plan, request)))

  def _new_plan(self, request: Request) -> RematPlan:
    if self.is_step:
      return plan_step(self.program, request, self.unplanned)
    return _make_plan(self.program, self.unplanned, request)

  def _choices(self, plan: RematPlan, request: Request) -> list[Choice]:
    """That a finished plan stands for, one for each of `functions`."""
    is_settled = self.is_step or plan.policy is not None or request.platform != "cpu"
    mark = kept_plans.mark(plan, Budget(plan.budget_bytes) if is_settled else request.budget)
    return [Choice(mark, part.policy) for part in (plan.regions if self.is_step else (plan,))]

  @functools.cached_property
  def _key(self) -> str | None:
    """What plans are kept under; None where the compiled program is not the one that will run."""
    if not self.is_step and not self.program.placement.is_known:
      return None
    program = self.program.key if self.is_step else f"{fingerprint_of(self.program)} {self.program.placement.key()}"
    return f"{program} {kept_plans.origin_of(*self.functions)}"

  @property
  def name(self) -> str:
    """Of the function."""
    return self.program.name

  @property
  def functions(self) -> tuple[TracedFn, ...]:
    """What can be carried out in several ways: the function, or the remat regions of the step."""
    return tuple(member.traced for member in self.program.members) if self.is_step else (self.program,)

  def measure_with(self, choices: Sequence[Any]) -> MemoryProfile:
    """Memory of the program with a choice for each of `functions`: a `Choice`, what has its `flat_fn`, or None.

    Raises:
      CompileMemoryError: it does not fit the device, and its sizes are not known.
    """
    choices = [choice or Choice() for choice in choices]
    planned = (self.program.program(choices), ()) if self.is_step else fn_and_gradient(
      self.program, choices[0].flat_fn(self.program))
    return measure(compile_trial(*planned, self.target), self.target)


def _follow(traced: TracedFn, plan: RematPlan) -> Choice:
  """The choice that a finished plan stands for."""
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
  is_settled = plan.policy is not None or jax.default_backend() != "cpu"
  return Choice(_mark_here(plan, Budget(plan.budget_bytes) if is_settled else plan.budget), plan.policy)


def _mark_here(plan: RematPlan, budget: Budget) -> str | None:
  """The mark for the HLO engine's part in a finished plan; None where it has none, or is not here."""
  if plan.target is None or targets.resolve(plan.target).is_running:
    return kept_plans.mark(plan, budget)
  if plan.engine == "hlo":
    warnings.warn(
      f"the plan for {plan.name} has no effect: the HLO engine made it for target {plan.target}, and this is "
      f"{jax.default_backend()}; a plan made with engine='policy' is carried out anywhere", RematNoEffectWarning,
      stacklevel=4)
  return None


def _make_plan(traced: TracedFn, unplanned: Unplanned, request: Request) -> RematPlan:
  """Plans, compiles with and without the plan, and reads the compiler's numbers."""
  start = time.perf_counter()
  fingerprint = fingerprint_of(traced)
  decided = decide(traced, unplanned, request, fingerprint, planners=(request.planner,))
  planning_s = time.perf_counter() - start
  outcome, found = decided.outcome, decided.policy_plan
  measured = baseline = decided.baseline or unplanned.profile
  is_planned = found is not None or (outcome is not None and outcome.module_bytes is not None)
  if is_planned:
    planned = fn_and_gradient(traced, decided.choice.flat_fn(traced))
    measured = decided.measured or measure(compile_abstract(*planned, request.device), request.device)
  budget_bytes = request.budget.resolve(baseline.temp_bytes, baseline.resident_bytes)
  if measured.temp_bytes >= baseline.temp_bytes:
    warn_no_effect(traced, baseline, budget_bytes, outcome)
  elif measured.temp_bytes > budget_bytes:
    warnings.warn(
      f"the plan for {traced.name} compiles to {format_bytes(measured.temp_bytes)} of temporaries, over its budget of "
      f"{format_bytes(budget_bytes)}: this backend's buffer assignment differs from the model", BudgetExceededWarning,
      stacklevel=3)
  policy = decided.choice.decisions
  decisions = assemble.module_decisions(outcome) if policy is None else assemble.jaxpr_decisions(
    traced, policy, request.speeds)
  return RematPlan(
    name=traced.name, budget=request.budget, budget_bytes=budget_bytes, planner=request.planner, target=request.target,
    engine=decided.choice.engine if is_planned else "none", fingerprint=fingerprint, baseline=baseline,
    measured=measured, decisions=decisions, policy=policy, planning_s=planning_s, time_limit_s=request.time_limit_s,
    mesh=traced.placement.mesh, **assemble.fields(outcome, found, baseline),
  )
