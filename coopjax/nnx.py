"""Flax NNX: functions and methods whose gradient stays inside a memory budget. Needs ``coopjax[flax]``."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Unpack, overload

from coopjax.budget import BudgetLike
from coopjax.jaxpr.static_arguments import StaticArguments
from coopjax.keywords import BlockKeywords, Decorator
from coopjax.planning.blocks import block_remat

try:
  from flax import nnx
  from flax.nnx.transforms import general
except ImportError as error:
  raise ImportError("coopjax.nnx needs Flax: pip install 'coopjax[flax]'") from error

__all__ = ["remat"]


@overload
def remat[**P, R](fn: Callable[P, R], **keywords: Unpack[BlockKeywords]) -> Callable[P, R]: ...
@overload
def remat(fn: None = None, **keywords: Unpack[BlockKeywords]) -> Decorator: ...
def remat(
  fn: Callable | None = None,
  *,
  budget: BudgetLike,
  static_argnums: int | Sequence[int] = (),
  static_argnames: str | Sequence[str] = (),
  engine: str = "policy",
  planner: str = "auto",
  effort: str = "normal",
  time_limit_s: float | None = None,
) -> Callable:
  """``flax.nnx.remat`` that takes a memory budget: what is recomputed is planned, not all of it.

  Modules and other graph nodes among the arguments are split into arrays before and merged after, so that what the
  function does to them (batch statistics, counters of random numbers, new variables) is done once, and stands
  afterwards, as without remat. Modules that the function closes over can be read, but not changed: pass them.

  The budget bounds what *one call keeps* for its backward pass, beyond its arguments, and with ``engine="hlo"`` the
  temporaries of the whole program: see :func:`coopjax.linen.remat`. Calls that trace to the same program, of the equal
  blocks of a model say, are planned once.

  Args:
    fn: a function, a method in a class body, a bound method, or a module that can be called; left out, ``remat``
      returns a decorator.
    budget: bytes (int, 0 included), a size (``"64MiB"``) or a float in (0, 1] as a share of what is kept without remat.
    static_argnums: positions of arguments that are not arrays; ``self`` counts where it is an argument of ``fn`` (in a
      class body), as for ``flax.nnx.remat``. They are static when passed by name, too.
    static_argnames: names of such arguments.
    engine: ``"policy"`` (checkpoints and saved names, on every backend) or ``"hlo"``.
    planner: of the HLO engine, as for :func:`coopjax.remat`.
    effort: how much the HLO engine may search, as for :func:`coopjax.remat`.
    time_limit_s: as for :func:`coopjax.remat`.

  Returns:
    A function with the signature and the results of ``fn``.

  Raises:
    InvalidBudgetError: the budget is not one.
    TypeError: ``fn`` can't be wrapped.
    ValueError: a static argument that ``fn`` does not have; an engine or planner that is none.

  Example:
    >>> import jax.numpy as jnp, coopjax.nnx
    >>> from flax import nnx
    >>> class Block(nnx.Module):
    ...   def __init__(self, rngs):
    ...     self.layers = nnx.List([nnx.Linear(32, 32, rngs=rngs) for _ in range(4)])
    ...   @coopjax.nnx.remat(budget=0.5)
    ...   def __call__(self, x):
    ...     for layer in self.layers:
    ...       x = nnx.tanh(layer(x))
    ...     return x
    >>> grads = nnx.jit(nnx.grad(lambda block, x: block(x).sum()))(Block(nnx.Rngs(0)), jnp.ones((256, 32)))
  """
  fitted = block_remat(budget=budget, engine=engine, planner=planner, effort=effort, time_limit_s=time_limit_s)
  statics = {"static_argnums": static_argnums, "static_argnames": static_argnames}
  return functools.partial(_lift, fitted=fitted, statics=statics) if fn is None else _lift(fn, fitted, statics)


def _lift(fn: Callable, fitted: Callable, statics: dict) -> Callable:
  """The function, its graph nodes split before ``fitted`` and merged inside."""
  if isinstance(fn, type) or not callable(fn):
    raise TypeError(
      f"coopjax.nnx.remat takes a function, a method or a module that can be called, not {fn!r}; "
      "of a class, decorate the method"
    )
  if isinstance(fn, nnx.Module):
    fn = fn.__call__
  # The module of a bound method is an argument like the others, or its state would be a constant.
  owners, unbound = (), fn
  if inspect.ismethod(fn) and isinstance(fn.__self__, nnx.Module):
    owners, unbound = (fn.__self__,), fn.__func__
  arguments = StaticArguments.of(fn, **statics)

  @functools.wraps(fn)
  def rematerialized(*args, **kwargs):
    bound, traced = arguments.split(args, kwargs)

    def lifted(owners, traced):
      call = arguments.merge(bound, traced)
      return unbound(*owners, *call.args, **call.kwargs)

    lifted.__name__ = arguments.name
    return general.split_inputs(fitted(general.merge_inputs(lifted)))(owners, traced)

  return rematerialized
