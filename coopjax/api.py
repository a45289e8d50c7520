"""The user's door: trace, plan, apply, verify."""

import collections
import dataclasses
import functools
import hashlib
import re
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax

from coopjax import _core, compat
from coopjax.budget import Budget, format_bytes
from coopjax.errors import (
  BudgetExceededWarning, BudgetInfeasibleError, NotDifferentiableError, PlanMismatchError, RematNoEffectWarning,
)
from coopjax.jaxpr import policy as jaxpr_policy
from coopjax.jaxpr import rewrite
from coopjax.jaxpr.tags import tagged_fn
from coopjax.jaxpr.trace import TracedFn, fn_and_gradient, split_arguments, trace
from coopjax.planners import base
from coopjax.program import explain
from coopjax.remat_plan import Decision, MemoryProfile, RematPlan
from coopjax.xla import hook
from coopjax.xla.compile import compile_abstract, compiled_flops, measure

ENGINES = ("auto", "hlo", "policy")
ON_INFEASIBLE = ("error", "best_effort")
_KEPT_CHOICES = 256
_ADDRESS = re.compile(r"\b0x[0-9a-f]+\b")


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
    policy: a ``jax.checkpoint`` policy that ``fn`` is wrapped with first; the budget is then met on top of it.
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
  request = _Request.checked(budget, planner, engine if plan is None else "auto", target, time_limit_s, on_infeasible)
  if fn is None:
    return functools.partial(
      remat, budget=None if plan else request.budget, planner=planner, engine=engine, policy=policy,
      static_argnums=static_argnums, static_argnames=static_argnames, target=target, time_limit_s=time_limit_s,
      on_infeasible=on_infeasible, plan=plan,
    )
  inner = fn if policy is None else jax.checkpoint(
    fn, policy=policy, static_argnums=static_argnums)

  @functools.wraps(fn)
  def rematerialized(*args, **kwargs):
    static = {"static_argnums": static_argnums, "static_argnames": static_argnames}
    traced = trace(inner, args, kwargs, **static)
    leaves = split_arguments(inner, args, kwargs, **static).leaves
    choice = _choose(traced, request) if plan is None else _follow(traced, plan)
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
  request = _Request.checked(budget, planner, engine, target, time_limit_s, "error")
  return _make_plan(trace(fn, args, kwargs), request)


@dataclasses.dataclass(frozen=True)
class _Request:
  """A validated request; hashable, so that choices are kept under it."""

  budget: Budget
  planner: str
  engine: str
  time_limit_s: float
  on_infeasible: str

  @classmethod
  def checked(cls, budget, planner, engine, target, time_limit_s, on_infeasible) -> "_Request":
    base.get_planner(planner)
    if engine not in ENGINES:
      raise ValueError(f"engine={engine!r}: one of {', '.join(ENGINES)}")
    if on_infeasible not in ON_INFEASIBLE:
      raise ValueError(f"on_infeasible={on_infeasible!r}: one of {', '.join(ON_INFEASIBLE)}")
    if target is not None and target != jax.default_backend():
      raise ValueError(f"target={target!r}: only the default backend ({jax.default_backend()!r}) can be planned for")
    if not time_limit_s > 0:
      raise ValueError(f"time_limit_s={time_limit_s!r}: a positive number of seconds")
    return cls(Budget.parse(budget), planner, engine, float(time_limit_s), on_infeasible)

  def on_hook(self, key: str) -> hook.Request:
    return hook.Request(self.budget, self.planner, self.time_limit_s, key)


@dataclasses.dataclass(frozen=True)
class _Choice:
  """How a traced function is carried out: under a mark for the HLO engine, rewritten, both, or as it is."""

  mark: str | None = None
  decisions: rewrite.PolicyDecisions | None = None

  @property
  def engine(self) -> str:
    return "+".join(name for name, used in (("policy", self.decisions), ("hlo", self.mark)) if used) or "none"

  def flat_fn(self, traced: TracedFn) -> Callable[..., list[Any]]:
    if self.decisions is not None:
      return rewrite.rewrite(traced, self.decisions, self.mark)
    return tagged_fn(traced, self.mark) if self.mark else traced.evaluate


@dataclasses.dataclass(frozen=True)
class _Decided:
  """A choice together with what the planning module showed."""

  choice: _Choice
  outcome: hook.Outcome | None = None
  policy_plan: jaxpr_policy.PolicyPlan | None = None


_choices: collections.OrderedDict[tuple[str, _Request], _Choice] = collections.OrderedDict()
_choices_lock = threading.Lock()


def _choose(traced: TracedFn, request: _Request) -> _Choice:
  """The choice for this program and request, made once per process.

  A program that can't be planned because it has no gradient is left as it is, with a warning.
  """
  key = (_fingerprint(traced), request)
  with _choices_lock:
    if key in _choices:
      return _choices[key]
  try:
    decided = _decide(traced, request, key[0])
  except NotDifferentiableError as error:
    warnings.warn(f"coopjax.remat has no effect: {error}", RematNoEffectWarning, stacklevel=3)
    return _Choice()
  except BudgetInfeasibleError:
    if jax.device_count() == 1:
      raise
    # A trace does not say how its inputs are sharded: the hook, which sees one device's program, decides.
    decided = _Decided(_Choice(_mark(key[0], request.budget, request.planner, request.time_limit_s)))
  outcome = decided.outcome
  if outcome and outcome.baseline.temp_bytes <= outcome.budget_bytes and request.budget.share is None:
    _warn_no_effect(traced, outcome.baseline, outcome.budget_bytes, outcome)
  with _choices_lock:
    _choices[key] = decided.choice
    while len(_choices) > _KEPT_CHOICES:
      _choices.popitem(last=False)
  return decided.choice


def _decide(traced: TracedFn, request: _Request, fingerprint: str) -> _Decided:
  """Plans fn with its gradient on the module that XLA schedules for it, without generating code.

  Raises:
    NotDifferentiableError: nothing to differentiate.
    BudgetInfeasibleError: no plan reaches the budget and the request says "error".
  """
  fn_and_gradient(traced)  # raises early if there is no gradient
  platform = compat.hook_platform(jax.default_backend())
  if request.engine == "hlo" and platform is None:
    raise ValueError(f"engine='hlo': JAX {jax.__version__} has no HLO hook on {jax.default_backend()}; use 'policy'")
  if request.engine == "policy" or platform is None:
    return _decide_policy(traced, request, None, fingerprint)
  hook.install(platform)
  module = hook.capture(lambda mark: compile_abstract(*fn_and_gradient(traced, tagged_fn(traced, mark))))
  mark = _mark(fingerprint, request.budget, request.planner, request.time_limit_s)
  outcome = hook.plan_module(module, [hook.Request.from_mark(mark)])
  if not outcome.fits and request.engine == "auto":
    return _decide_policy(traced, request, outcome, fingerprint)
  if not outcome.fits:
    _report_infeasible(traced, request, outcome.budget_bytes, outcome.predicted.temp_bytes, outcome)
  return _Decided(_Choice(mark), outcome)


def _decide_policy(
  traced: TracedFn, request: _Request, outcome: hook.Outcome | None, fingerprint: str,
) -> _Decided:
  """Plans checkpoint segments; every round is a compile. With an outcome, the HLO engine works under them.

  A share is settled here, in bytes: the hook will not see the un-rematerialized program again.
  """
  baseline = outcome.baseline if outcome else measure(compile_abstract(*fn_and_gradient(traced)))
  budget_bytes = request.budget.resolve(baseline.temp_bytes, baseline.resident_bytes)
  if baseline.temp_bytes <= budget_bytes:
    return _Decided(_Choice(), outcome)
  mark = _mark(fingerprint, Budget(budget_bytes), request.planner, request.time_limit_s) if outcome else None
  found = None
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", BudgetExceededWarning)  # trials may miss the budget
    for only_scans in (True, False) if mark else (False,):
      if found is None or not found.is_feasible:
        found = jaxpr_policy.plan_policy(
          traced, budget_bytes, compile_abstract, baseline.temp_bytes, mark=mark, only_scans=only_scans)
  if not found.is_feasible:
    smallest_bytes = min(found.smallest_bytes, outcome.predicted.temp_bytes if outcome else found.smallest_bytes)
    _report_infeasible(traced, request, budget_bytes, smallest_bytes, outcome)
  return _Decided(_Choice(mark, found.decisions), outcome, found)


def _mark(fingerprint: str, budget: Budget, planner: str, time_limit_s: float) -> str:
  """The mark of a traced program; the same for the same program and request, in every process."""
  key = _hash(f"{fingerprint} {budget} {planner} {time_limit_s}")
  return hook.Request(budget, planner, time_limit_s, key).to_mark()


def _report_infeasible(
  traced: TracedFn, request: _Request, budget_bytes: int, smallest_bytes: int, outcome: hook.Outcome | None,
) -> None:
  """Raises, or warns for a best effort, with the smallest reachable bytes and what forces them."""
  op, largest = "", ()
  lines = [
    f"no plan brings {traced.name} and its gradient within {format_bytes(budget_bytes)} of temporaries; the smallest "
    f"reached is {format_bytes(smallest_bytes)} (planner {request.planner}, engine {request.engine})"
  ]
  if outcome is not None and outcome.result is not None:
    program = outcome.program
    op_id, values = explain.largest_at_peak(program, outcome.result.schedule)
    op = " ".join(filter(None, (program.op_names[op_id], program.op_sources[op_id])))
    largest = tuple(
      (int(program.value_bytes[v]), program.value_types[v], program.op_sources[program.value_producer[v]]) for v in values
    )
    lines.append(f"what forces it is {op}; the largest values live there:")
    lines += [f"  {format_bytes(program.value_bytes[v]):>10}  {explain.describe_value(program, v)}" for v in values]
  lines.append("try a larger budget, a smaller batch, or on_infeasible='best_effort'")
  if request.on_infeasible == "error":
    raise BudgetInfeasibleError(
      "\n".join(lines), budget_bytes=budget_bytes, smallest_bytes=smallest_bytes, op=op, largest=largest,
    )
  warnings.warn("\n".join(lines), BudgetExceededWarning, stacklevel=5)


def _follow(traced: TracedFn, plan: RematPlan) -> _Choice:
  """The choice that a finished plan stands for."""
  if _fingerprint(traced) != plan.fingerprint:
    raise PlanMismatchError(
      f"the plan was made for {plan.name} with fingerprint {plan.fingerprint}; {traced.name} as called here has "
      f"{_fingerprint(traced)}: another function, other shapes or dtypes, or other versions of its libraries"
    )
  mark = None
  if "hlo" in plan.engine:
    hook.install(compat.hook_platform(jax.default_backend()))
    budget = plan.budget if plan.policy is None else Budget(plan.budget_bytes)
    mark = _mark(plan.fingerprint, budget, plan.planner, 10.0)
  return _Choice(mark, plan.policy)


def _make_plan(traced: TracedFn, request: _Request) -> RematPlan:
  """Plans, compiles with and without the plan, and reads the compiler's numbers."""
  start = time.perf_counter()
  fingerprint = _fingerprint(traced)
  decided = _decide(traced, request, fingerprint)
  planning_s = time.perf_counter() - start
  outcome, found = decided.outcome, decided.policy_plan
  compiled = compile_abstract(*fn_and_gradient(traced))
  baseline, baseline_flops = measure(compiled), compiled_flops(compiled)
  is_planned = found is not None or (outcome is not None and outcome.module_bytes is not None)
  if is_planned:
    compiled = compile_abstract(*fn_and_gradient(traced, decided.choice.flat_fn(traced)))
  measured = measure(compiled)
  budget_bytes = request.budget.resolve(baseline.temp_bytes, baseline.resident_bytes)
  if measured.temp_bytes >= baseline.temp_bytes:
    _warn_no_effect(traced, baseline, budget_bytes, outcome)
  recompute_flops = compiled_flops(compiled) - baseline_flops
  result = outcome.result if outcome and not found else None
  predicted_bytes = found.temp_bytes if found else outcome.predicted.temp_bytes if outcome else baseline.temp_bytes
  return RematPlan(
    name=traced.name, budget=request.budget, budget_bytes=budget_bytes, fingerprint=fingerprint, target=None,
    planner=result.planner if result else request.planner, engine=decided.choice.engine if is_planned else "none",
    baseline=baseline, measured=measured,
    predicted=MemoryProfile(temp_bytes=predicted_bytes, peak_live_bytes=result.peak_live_bytes if result else 0),
    overhead=result.overhead(outcome.program) if result else recompute_flops / max(baseline_flops, 1.0),
    recompute_flops=recompute_flops, lower_bound_bytes=_core.lower_bound(outcome.program.core)[0] if outcome and not found else 0,
    decisions=_decisions(outcome) if result else (), policy=decided.choice.decisions,
    rounds=tuple(map(str, found.rounds)) if found else outcome.rounds if outcome else (), planning_s=planning_s,
  )


def _decisions(outcome: hook.Outcome) -> tuple[Decision, ...]:
  program, schedule = outcome.program, outcome.result.schedule
  times = explain.times_recomputed(program, schedule)
  decisions = []
  for value in explain.decided_values(program, schedule):
    op = int(program.value_producer[value])
    decisions.append(Decision(
      value=f"{program.op_names[op]}[{list(program.outputs(op)).index(value)}]", type=program.value_types[value],
      source=program.op_sources[op], scope=program.op_scopes[op], num_bytes=int(program.value_bytes[value]),
      decision="recomputed" if times[op] else "saved", times=int(times[op]), cost_s=float(program.op_cost_s[op]),
    ))
  return tuple(decisions)


def _warn_no_effect(
  traced: TracedFn, baseline: MemoryProfile, budget_bytes: int, outcome: hook.Outcome | None,
) -> None:
  if baseline.temp_bytes <= budget_bytes:
    cause = (
      f"{traced.name} and its gradient take {format_bytes(baseline.temp_bytes)} of temporaries, within the budget of "
      f"{format_bytes(budget_bytes)} as they are"
    )
  else:
    cause = outcome.reason if outcome and outcome.reason else "the compiled program takes no less than without it"
  warnings.warn(f"the remat of {traced.name} has no effect: {cause}", RematNoEffectWarning, stacklevel=4)


def _fingerprint(traced: TracedFn) -> str:
  """A hash of the traced program that is the same in every process: its text, without object addresses."""
  return _hash(_ADDRESS.sub("", str(traced.jaxpr)))


def _hash(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()[:16]
