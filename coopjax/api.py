"""The user's door: a function that fits a budget, and the plan for one."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Unpack, overload

from coopjax import progress
from coopjax.budget import BudgetLike
from coopjax.keywords import Decorator, RematKeywords
from coopjax.planning import following, regions
from coopjax.planning.around import choose
from coopjax.planning.plannable import Plannable
from coopjax.planning.remat_plan import RematPlan
from coopjax.planning.request import Request
from coopjax.xla import targets


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
  effort: str = "normal",
  time_limit_s: float | None = None,
  on_infeasible: str = "error",
  prevent_cse: bool | Sequence[bool] = True,
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
  Where the compiled program is over its budget all the same, since it holds more than the function's gradient needs
  (all gradients at once, for clipping), it is traced again and planned as a whole, as :func:`plan` does, once. A share
  for the policy engine is of that program, too: where it takes more than the share of the function alone, what it takes
  without remats is looked at, once.

  On a mesh the budget is each device's. The HLO engine plans what one device runs, after partitioning, whatever the
  shardings. The policy engine plans in the trace, which shows them inside a ``shard_map`` and over Explicit mesh axes.
  Over Auto axes JAX traces once for all shardings. There, budgets in bytes are held by a plan for all devices together,
  with more recompute than one of them needs (``ShardingUnknownWarning``), shares are carried over in proportion, and an
  infeasible budget is an error of the compile. A plan of the function, or of the whole step, for
  abstract values with shardings is exact: ``coopjax.plan(step, *shapes, budget=...).apply(step)``. Under a ``vmap``
  the HLO engine sees all examples, the policy engine one: put the remat around the ``vmap``.

  Args:
    fn: a differentiable function of pytrees, whose leaves need not all be arrays (a module of Equinox may hold
      functions); left out, ``remat`` returns a decorator.
    budget: temporary memory on one device: bytes (int), a size (``"6GiB"``), a float in (0, 1], or ``"25%"``, as a
      share of the un-rematerialized temporaries of the program that is compiled, or a :class:`coopjax.Budget`; or
      ``"fits"``: arguments, results and temporaries in the device's memory, less a reserve for what XLA does not count
      (of a TPU's program, what XLA allocates: its memory analysis says more).
      With ``Budget("6GiB", offload=True)`` values may also be kept in the host's memory, where that takes less time
      than to recompute them, or nothing else holds the budget: on GPU in scans and straight-line code, on TPU in scans,
      by the policy engine; ``offload="40GiB"`` bounds what each device has there. A CPU has nowhere to offload to
      (``HostOffloadWarning``, or ``HostOffloadError`` if it is asked of an engine by name).
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
    effort: ``"fast"``, ``"normal"`` or ``"best"``: how much is searched, in steps that are counted and grow with the
      program; the same everywhere. "normal" takes about as long as to compile the program, or less.
    time_limit_s: a fuse, seconds: when planning one program takes longer it ends with what it has. That may differ
      between hosts, so the plan says so (``is_cut_short``) and is not kept. None is no fuse.
    on_infeasible: ``"error"`` raises when no plan reaches the budget, ``"best_effort"`` warns and takes the smallest.
    prevent_cse: as for ``jax.checkpoint``: False lets XLA merge what is recomputed with the forward pass, which is safe
      where a loop stands between them (a function in the body of a ``scan``), and undoes a remat elsewhere. Of the
      policy engine: what the HLO engine recomputes comes after XLA's merging.
    plan: a plan from :func:`coopjax.plan` to carry out, in place of ``budget``, ``planner`` and ``engine``.

  Returns:
    A function with the signature and the results of ``fn``.

  Raises:
    InvalidBudgetError: the budget is not one; raised here, not when the function is called.
    BudgetInfeasibleError: when the function is traced, if no plan reaches the budget, with the least bytes of the
      jitted program around it; when that is compiled, if no plan of it does. Not where no gradient is taken, nor of a
      share where the passes are compiled apart, or which the remat around has to hold.
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
  if fn is not None:
    regions.check_function(fn)
  if plan is not None:
    if not isinstance(plan, RematPlan):
      raise TypeError(f"plan={plan!r} is no plan of coopjax.plan")
    if budget is not None:
      raise TypeError("give remat either budget= or plan=, not both: a plan carries its budget")
    budget, planner, engine = dataclasses.replace(plan.budget, offload=False), plan.planner, "auto"
  elif budget is None:
    raise TypeError("remat needs budget= (bytes, a size such as '6GiB', or a share in (0, 1]) or plan=")
  request = Request.checked(
    budget=budget,
    planner=planner,
    engine=engine,
    target=target,
    effort=effort,
    time_limit_s=time_limit_s,
    on_infeasible=on_infeasible,
  )
  regions.check_prevent_cse(prevent_cse)
  static = {"static_argnums": static_argnums, "static_argnames": static_argnames}
  if fn is None:
    return functools.partial(
      remat,
      budget=None if plan else request.budget,
      planner=planner,
      engine=engine,
      policy=policy,
      target=target,
      effort=effort,
      time_limit_s=time_limit_s,
      on_infeasible=on_infeasible,
      plan=plan,
      prevent_cse=prevent_cse,
      **static,
    )
  if plan is not None:
    return following.follow(fn, plan, policy=policy, prevent_cse=prevent_cse, **static)
  return regions.region(
    fn,
    functools.partial(choose, request=request),
    policy=policy,
    prevent_cse=prevent_cse,
    is_plain_when_eager=True,
    **static,
  )


def plan(
  fn: Callable,
  *args: Any,
  budget: BudgetLike,
  planner: str = "auto",
  engine: str = "auto",
  target: str | None = None,
  effort: str = "normal",
  time_limit_s: float | None = None,
  on_infeasible: str = "error",
  argnums: int | Sequence[int] | None = None,
  existing: str = "replace",
  names_only: bool = False,
  **kwargs: Any,
) -> RematPlan:
  """Plans ``fn`` with its gradient for a budget, compiles the plan, and reports the compiler's numbers.

  A plan that holds its budget is kept on disk (see ``coopjax.planning.cache``): where the same is planned again, in
  this process or another, it is compiled once, to measure it.

  A whole training step, recognized by the gradients that it takes, is planned as it is: with its optimizer, donation,
  gradient accumulation and jit options. The budget is then the step's, not each region's, and is divided between the
  regions inside, functions under ``jax.checkpoint`` (as Flax's and Equinox's remat are) or :func:`remat`, those first
  that are cheap to repeat; their own budgets and policies don't count. ``plan.apply(step)`` is that step. Where the HLO
  engine alone would repeat more than a tenth of the regions' forward pass, or people may do better, ``"auto"`` takes a
  division of the budget by the policy engine if that, with what the HLO engine repeats under it, is less work. A step
  without regions is the HLO engine's alone. Where that, or what regions there are, does not reach the budget, or it
  repeats much beside regions that are not most of the step, ``"auto"`` takes the functions that the step differentiates
  as regions, if that does better.

  Args:
    fn: a differentiable function, or a training step, jitted or not.
    *args: its arguments; ``jax.ShapeDtypeStruct`` will do. With shardings, all bytes are those of one device.
    budget: as for :func:`remat`.
    planner: as for :func:`remat`.
    engine: as for :func:`remat`.
    target: as for :func:`remat`; by default the one on whose devices the arguments lie (``coopjax.target(name)``).
    effort: as for :func:`remat`.
    time_limit_s: as for :func:`remat`.
    on_infeasible: as for :func:`remat`.
    argnums: positions of the arguments that the function is differentiated by, as for `jax.grad`; by default all. With
      it, a function that takes gradients itself is no step; nor is one without regions that returns one number, a loss.
      Not for a step with regions.
    existing: what becomes of a step's own ``jax.checkpoint``s: ``"replace"`` plans what is under them in place of what
      they say, ``"at_least"`` as well, but keeps what their policies save, and ``"keep"`` leaves them alone.
    names_only: the best plan that a policy over the step's own names (``checkpoint_name``) can say, one for all of its
      checkpoints: what :meth:`RematPlan.checkpoint_policy` then gives, :meth:`RematPlan.to_maxtext` and others write,
      and the step does without coopjax.
    **kwargs: keyword arguments of ``fn``.

  Returns:
    The plan, with memory before (``baseline``), as modelled (``predicted``) and as compiled (``measured``).

  Raises:
    InvalidBudgetError: the budget is not one.
    ValueError: ``argnums`` names an argument that is not given, or ``fn`` is a step.
    NotDifferentiableError: ``fn`` has no floating input or output.
    NoRegionsError: ``fn`` is a step without regions, and the engine asked for needs some.
    PolicyNamesError: ``names_only`` where names can't be planned.
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
  request = Request.checked(
    budget=budget,
    planner=planner,
    engine=engine,
    target=target or targets.of_arguments((args, kwargs)),
    effort=effort,
    time_limit_s=time_limit_s,
    on_infeasible=on_infeasible,
    names_only=names_only,
  )
  regions.check_existing(existing)
  with progress.shown(f"planning {getattr(fn, '__name__', 'a program')}"):
    return Plannable.of(fn, args, kwargs, request.device, argnums, existing).plan(request)
