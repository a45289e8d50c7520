"""The user's door: trace, plan, apply, verify."""

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax

from coopjax import _core, compat
from coopjax.budget import Budget, format_bytes
from coopjax.choice import Choice, Decided, Request, choose, decide, fingerprint_of, mark_of, warn_no_effect
from coopjax.errors import BudgetExceededWarning, PlanMismatchError
from coopjax.jaxpr import rewrite
from coopjax.jaxpr.trace import TracedFn, differentiable, fn_and_gradient, split_arguments, trace
from coopjax.program import cost, explain
from coopjax.remat_plan import Decision, MemoryProfile, RematPlan
from coopjax.xla import hook
from coopjax.xla.compile import compile_abstract, measure

_STEP_OVER_FORWARD = 3  # FLOPs of a step over those of its forward pass, as usually counted


def remat(
  fn: Callable | None = None,
  *,
  budget: Any = None,
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

  Args:
    fn: a differentiable function of pytrees; left out, ``remat`` returns a decorator.
    budget: temporary memory on one device: bytes (int), a size (``"6GiB"``), a float in (0, 1] as a share of the
      un-rematerialized temporaries of the program that is compiled, or a :class:`coopjax.Budget`.
    planner: one of ``coopjax.planners.base.PLANNERS``.
    engine: ``"auto"``, ``"hlo"`` or ``"policy"``.
    policy: a ``jax.checkpoint`` policy: what it saves is never recomputed, the budget decides on the rest. (The HLO
      engine sees fused instructions, so to it a kept value is the result of the fusion or product that makes it.)
    static_argnums: positions of arguments that are not arrays, as for ``jax.jit``.
    static_argnames: their names.
    target: None, the default backend.
    time_limit_s: seconds that planning one program may take.
    on_infeasible: ``"error"`` raises when no plan reaches the budget, ``"best_effort"`` warns and takes the smallest.
    plan: a plan from :func:`coopjax.plan` to carry out, in place of ``budget``, ``planner`` and ``engine``.

  Returns:
    A function with the signature and the results of ``fn``.

  Raises:
    InvalidBudgetError: the budget is not one; raised here, not when the function is called.
    BudgetInfeasibleError: when the function is traced, if no plan reaches the budget.
    PlanMismatchError: when the function is traced, if ``plan`` was made for another program.

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
  if plan is not None:
    if budget is not None:
      raise TypeError("give remat either budget= or plan=, not both: a plan carries its budget")
    budget, planner, engine, target = plan.budget, plan.planner, plan.engine, plan.target
  elif budget is None:
    raise TypeError("remat needs budget= (bytes, a size such as '6GiB', or a share in (0, 1]) or plan=")
  request = Request.checked(budget, planner, engine if plan is None else "auto", target, time_limit_s, on_infeasible)
  if fn is None:
    return functools.partial(
      remat, budget=None if plan else request.budget, planner=planner, engine=engine, policy=policy,
      static_argnums=static_argnums, static_argnames=static_argnames, target=target, time_limit_s=time_limit_s,
      on_infeasible=on_infeasible, plan=plan,
    )

  @functools.wraps(fn)
  def rematerialized(*args, **kwargs):
    static = {"static_argnums": static_argnums, "static_argnames": static_argnames}
    traced = dataclasses.replace(trace(fn, args, kwargs, **static), policy=policy)
    leaves = split_arguments(fn, args, kwargs, **static).leaves
    choice = choose(traced, request) if plan is None else _follow(traced, plan)
    return traced.call(leaves, choice.flat_fn(traced))

  return rematerialized


def plan(
  fn: Callable,
  *args: Any,
  budget: Any,
  planner: str = "auto",
  engine: str = "auto",
  target: str | None = None,
  time_limit_s: float = 10.0,
  **kwargs: Any,
) -> RematPlan:
  """Plans ``fn`` with its gradient for a budget, compiles the plan, and reports the compiler's numbers.

  Args:
    fn: a differentiable function.
    *args: its arguments; ``jax.ShapeDtypeStruct`` will do.
    budget: as for :func:`remat`.
    planner: as for :func:`remat`.
    engine: as for :func:`remat`.
    target: as for :func:`remat`.
    time_limit_s: seconds that planning may take, compiles excluded.
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
  """
  request = Request.checked(budget, planner, engine, target, time_limit_s, "error")
  return _make_plan(differentiable(trace(fn, args, kwargs)), request)


def _follow(traced: TracedFn, plan: RematPlan) -> Choice:
  """The choice that a finished plan stands for."""
  if fingerprint_of(traced) != plan.fingerprint:
    raise PlanMismatchError(
      f"the plan was made for {plan.name} with fingerprint {plan.fingerprint}; {traced.name} as called here has "
      f"{fingerprint_of(traced)}: another function, other shapes or dtypes, or other versions of its libraries"
    )
  mark = None
  if "hlo" in plan.engine:
    hook.install(compat.hook_platform(jax.default_backend()))
    budget = plan.budget if plan.policy is None else Budget(plan.budget_bytes)
    mark = mark_of(plan.fingerprint, budget, plan.planner, 10.0)
  return Choice(mark, plan.policy)


def _make_plan(traced: TracedFn, request: Request) -> RematPlan:
  """Plans, compiles with and without the plan, and reads the compiler's numbers."""
  start = time.perf_counter()
  fingerprint = fingerprint_of(traced)
  decided = decide(traced, request, fingerprint, planners=(request.planner,))
  planning_s = time.perf_counter() - start
  outcome, found = decided.outcome, decided.policy_plan
  compiled = compile_abstract(*fn_and_gradient(traced))
  baseline = measure(compiled)
  is_planned = found is not None or (outcome is not None and outcome.module_bytes is not None)
  if is_planned:
    compiled = compile_abstract(*fn_and_gradient(traced, decided.choice.flat_fn(traced)))
  measured = measure(compiled)
  budget_bytes = request.budget.resolve(baseline.temp_bytes, baseline.resident_bytes)
  if measured.temp_bytes >= baseline.temp_bytes:
    warn_no_effect(traced, baseline, budget_bytes, outcome)
  elif measured.temp_bytes > budget_bytes:
    warnings.warn(
      f"the plan for {traced.name} compiles to {format_bytes(measured.temp_bytes)} of temporaries, over its budget of "
      f"{format_bytes(budget_bytes)}: this backend's buffer assignment differs from the model", BudgetExceededWarning,
      stacklevel=3)
  model: dict[str, Any] = {"overhead": 0.0, "recompute_flops": 0.0, "rounds": (), "lower_bound_bytes": 0}
  predicted = baseline
  if found is not None:
    model |= {"overhead": found.recompute_flops / (_STEP_OVER_FORWARD * max(found.forward_flops, 1.0)),
              "recompute_flops": found.recompute_flops, "rounds": tuple(map(str, found.rounds))}
    predicted = MemoryProfile(temp_bytes=found.temp_bytes)
  elif outcome is not None:
    model |= {"rounds": outcome.rounds, "lower_bound_bytes": _core.lower_bound(outcome.program.core)[0]}
    predicted = MemoryProfile(
      temp_bytes=outcome.predicted.temp_bytes, peak_live_bytes=outcome.predicted.peak_live_bytes)
    if outcome.result is not None:
      model |= {"overhead": outcome.result.overhead(outcome.program), "recompute_flops": outcome.result.recompute_flops,
                "least_overhead": outcome.result.least_overhead(outcome.program)}
  return RematPlan(
    name=traced.name, budget=request.budget, budget_bytes=budget_bytes, planner=request.planner, target=None,
    engine=decided.choice.engine if is_planned else "none", fingerprint=fingerprint, baseline=baseline,
    predicted=predicted, measured=measured, decisions=_decisions(traced, decided), policy=decided.choice.decisions,
    planning_s=planning_s, **model,
  )


def _decisions(traced: TracedFn, decided: Decided) -> tuple[Decision, ...]:
  """What happens to each value: of the jaxpr where the policy engine decided, else of the scheduled module."""
  if decided.choice.decisions is not None:
    return tuple(
      Decision(
        value=f"equation {value.equation_id}[{value.index}]", type=value.type, source=value.source, scope="",
        num_bytes=value.num_bytes, decision=value.decision, times=int(value.decision == "recomputed"),
        cost_s=value.flops / cost.CPU.flops_per_s)
      for value in rewrite.describe(traced, decided.choice.decisions))
  if decided.outcome is None or decided.outcome.result is None:
    return ()
  program, schedule = decided.outcome.program, decided.outcome.result.schedule
  times = explain.times_recomputed(program, schedule)
  decisions = []
  for value in explain.decided_values(program, schedule):
    op = int(program.value_producer[value])
    decisions.append(Decision(
      value=f"{program.op_names[op]}[{list(program.outputs(op)).index(value)}]", type=program.value_types[value],
      source=program.op_sources[op], scope=program.op_scopes[op], num_bytes=int(program.value_bytes[value]),
      decision="recomputed" if times[op] else "saved", times=int(times[op]), cost_s=float(program.op_cost_s[op])))
  return tuple(decisions)
