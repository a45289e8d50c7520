"""Flax Linen: modules whose gradient stays inside a memory budget. Needs ``coopjax[flax]``."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Unpack, overload

import jax

from coopjax.budget import BudgetLike
from coopjax.jaxpr.static_arguments import StaticArguments
from coopjax.keywords import LinenDecorator, LinenKeywords
from coopjax.planning.blocks import block_remat

try:
  from flax import linen
  from flax.core import lift
  from flax.linen import transforms
except ImportError as error:
  raise ImportError("coopjax.linen needs Flax: pip install 'coopjax[flax]'") from error

__all__ = ["remat"]


@overload
def remat[F: Callable[..., Any]](target: F, **keywords: Unpack[LinenKeywords]) -> F: ...
@overload
def remat(target: None = None, **keywords: Unpack[LinenKeywords]) -> LinenDecorator: ...
def remat(
  target: Any = None,
  *,
  budget: BudgetLike,
  variables: Any = True,
  rngs: Any = True,
  static_argnums: int | Sequence[int] = (),
  static_argnames: str | Sequence[str] = (),
  methods: str | Sequence[str] | None = None,
  engine: str = "policy",
  planner: str = "auto",
  effort: str = "normal",
  time_limit_s: float | None = None,
) -> Any:
  """``flax.linen.remat`` that takes a memory budget: what is recomputed is planned, not all of it.

  Lifted as ``flax.linen.remat`` is: variables and random numbers go in, changed variables come out, and parameters,
  updates of batch statistics and dropout masks are those of the plain module. It goes on a module class, on a method
  inside one, or on a function that takes a module first, and works inside ``flax.linen.scan``. The class is named as
  ``flax.linen.remat`` names it, "CheckpointBlock" for "Block", so that saved parameters keep their paths.

  **What the budget bounds.** What *one call of the module keeps* between its forward and its backward pass, beyond its
  arguments. Of that there are N in a model of N blocks, stacked or scanned, so it takes N budgets at most beyond what
  it takes under ``flax.linen.remat``: the blocks' inputs, the workspace of one block while that is differentiated, and
  whatever lies outside. ``budget=0`` keeps nothing, and is ``flax.linen.remat``; up from there, values are saved that
  spare the most FLOPs per byte. Blocks that trace to the same program, whatever their names and dropout keys, are
  planned once.

  With ``engine="hlo"`` the blocks are marked, and the hook plans the whole program that they end up in, gradients and
  optimizer included: there the budget bounds *that program's* temporaries, as for :func:`coopjax.remat`, of several the
  strictest holds, and results have the bits of the plain module. It can't reduce what a ``scan`` stacks.

  Nothing is planned while a module initializes its variables.

  Args:
    target: a module class (or ``functools.partial`` of one), a method in a class body, or a function of a module; left
      out, ``remat`` returns a decorator.
    budget: bytes (int, 0 included), a size (``"64MiB"``) or a float in (0, 1] as a share of what is kept without remat.
    variables: collections that are lifted; all by default.
    rngs: random number sequences that are lifted; all by default.
    static_argnums: positions of arguments that are not arrays, counted as ``flax.linen.remat`` counts them: ``self`` is
      0, the first argument of the call 1. They are static when passed by name, too.
    static_argnames: names of such arguments.
    methods: names of the methods to lift where ``target`` is a class; ``__call__`` by default.
    engine: ``"policy"`` (checkpoints and saved names, on every backend) or ``"hlo"``.
    planner: of the HLO engine, as for :func:`coopjax.remat`.
    effort: how much the HLO engine may search, as for :func:`coopjax.remat`.
    time_limit_s: as for :func:`coopjax.remat`.

  Returns:
    A module class, or a function, like ``target``.

  Raises:
    InvalidBudgetError: the budget is not one.
    TypeError: ``target`` is neither a module class nor a function.
    ValueError: a method, or a static argument, that ``target`` does not have; an engine or planner that is none.

  Example:
    >>> import jax, jax.numpy as jnp, coopjax.linen
    >>> from flax import linen as nn
    >>> @coopjax.linen.remat(budget=0.5)
    ... class Block(nn.Module):
    ...   @nn.compact
    ...   def __call__(self, x):
    ...     for _ in range(4):
    ...       x = nn.tanh(nn.Dense(32)(x))
    ...     return x
    >>> model = nn.Sequential([Block() for _ in range(3)])
    >>> variables = model.init(jax.random.key(0), jnp.ones((256, 32)))
    >>> grads = jax.jit(jax.grad(lambda v, x: model.apply(v, x).sum()))(variables, jnp.ones((256, 32)))
  """
  fitted = block_remat(budget=budget, engine=engine, planner=planner, effort=effort, time_limit_s=time_limit_s)
  options = {"fitted": fitted, "variables": variables, "rngs": rngs}
  statics = {"static_argnums": static_argnums, "static_argnames": static_argnames}
  if target is None:
    return functools.partial(_lift, methods=methods, options=options, statics=statics)
  return _lift(target, methods, options, statics)


def _lift(target: Any, methods: str | Sequence[str] | None, options: dict, statics: dict) -> Any:
  """The target, with its methods under :func:`checkpoint`."""
  module_class = target.func if isinstance(target, functools.partial) else target
  if isinstance(module_class, type) and issubclass(module_class, linen.Module):
    names = ("__call__",) if methods is None else (methods,) if isinstance(methods, str) else tuple(methods)
    if missing := [name for name in names if not callable(getattr(module_class, name, None))]:
      raise ValueError(f"methods={missing[0]!r}: {module_class.__name__} has no such method")
    per_method = {name: {**options, "arguments": _arguments(getattr(module_class, name), statics)} for name in names}
    return transforms.lift_transform(checkpoint, target, methods=per_method)
  if isinstance(target, (type, linen.Module)) or not callable(target):
    kind = "an instance: wrap its class" if isinstance(target, linen.Module) else "neither"
    raise TypeError(f"coopjax.linen.remat takes a Linen module class or a function of a module; {target!r} is {kind}")
  if methods is not None:
    raise ValueError(
      f"methods={methods!r}: only for a module class; {getattr(target, '__qualname__', target)} is a function"
    )
  return transforms.lift_transform(checkpoint, target, arguments=_arguments(target, statics), **options)


def _arguments(method: Callable, statics: dict) -> StaticArguments:
  """The static arguments of a method; ``self`` is not one of them."""
  arguments = StaticArguments.of(method, **statics)
  owner = next(iter(arguments.signature.parameters), None)
  if owner in arguments.names:
    raise ValueError(
      f"static_argnums=0: argument 0 of {arguments.name} is {owner}, the module; its fields are static "
      "as they are, and the first argument of the call is 1"
    )
  return arguments


def checkpoint(
  fn: Callable,
  *,
  fitted: Callable,
  arguments: StaticArguments,
  variables: Any,
  rngs: Any,
) -> Callable:
  """A function of scopes under a budget; the name is what Flax puts before the name of the lifted class.

  Args:
    fn: called with scopes, then with the arguments of the method.
    fitted: wraps a function of pytrees; from `block_remat`.
    arguments: of the method, its module included.
    variables: filter of collections.
    rngs: filter of random number sequences.
  """

  def pure(scope_fn, repack_fn, variable_groups, rng_groups, *args, **kwargs):
    bound, traced = arguments.split((None, *args), kwargs)  # None stands for the module, which the scopes carry

    def lifted(variable_groups, rng_groups, traced):
      scopes, call = scope_fn(variable_groups, rng_groups), arguments.merge(bound, traced)
      return fn(scopes, *call.args[1:], **call.kwargs), repack_fn(scopes)

    lifted.__name__ = arguments.name
    return fitted(lifted)(variable_groups, rng_groups, traced)

  packed = lift.pack(pure, (variables,), (variables,), (rngs,), name="remat", enable_kwargs=True)

  def call(scopes, *args, **kwargs):
    if any(scope.get_flag("initializing", False) for scope in jax.tree.leaves(scopes)):
      fresh = jax.tree.map(lambda scope: scope.rewound(), scopes)  # a shared module takes its names again at each call
      return fn(fresh, *args, **kwargs)
    return packed(scopes, *args, **kwargs)

  return call
