"""Equinox: functions and modules whose gradient stays inside a memory budget. Needs ``equinox``."""

import functools
from collections.abc import Callable, Sequence
from typing import Unpack, overload

from coopjax.budget import BudgetLike
from coopjax.keywords import Decorator, EquinoxKeywords
from coopjax.planning import regions
from coopjax.planning.around import choose
from coopjax.planning.request import Request

__all__ = ["remat"]


@overload
def remat[**P, R](fn: Callable[P, R], **keywords: Unpack[EquinoxKeywords]) -> Callable[P, R]: ...
@overload
def remat(fn: None = None, **keywords: Unpack[EquinoxKeywords]) -> Decorator: ...
def remat(
  fn: Callable | None = None,
  *,
  budget: BudgetLike,
  planner: str = "auto",
  engine: str = "auto",
  policy: Callable | None = None,
  target: str | None = None,
  effort: str = "normal",
  time_limit_s: float | None = None,
  on_infeasible: str = "error",
  prevent_cse: bool | Sequence[bool] = True,
) -> Callable:
  """``equinox.filter_checkpoint`` that takes a memory budget: what is recomputed is planned, not all of it.

  As there, arguments and results that are no arrays are static: flags, numbers, strings, functions, and those among the
  fields of modules. (In modules, :func:`coopjax.remat` takes them so, too; flags among its arguments it traces.) The
  rest is as for :func:`coopjax.remat`.

  Args:
    fn: a function, a module that can be called, or a method; left out, ``remat`` returns a decorator.
    budget: as for :func:`coopjax.remat`: temporary memory of the function and its gradient.
    planner: same.
    engine: same.
    policy: same.
    target: same.
    effort: same.
    time_limit_s: same.
    on_infeasible: same.
    prevent_cse: same.

  Returns:
    A function with the signature and the results of ``fn``.

  Raises:
    InvalidBudgetError: the budget is not one.
    TypeError: ``fn`` is no function.

  Example:
    >>> import equinox as eqx, jax, jax.numpy as jnp, coopjax.equinox
    >>> model = eqx.nn.MLP(32, 32, 32, depth=4, key=jax.random.key(0))
    >>> @coopjax.equinox.remat(budget=0.5)
    ... def loss(model, x, squared):
    ...   y = jax.vmap(model)(x)
    ...   return (y**2 if squared else y).mean()
    >>> grads = eqx.filter_jit(eqx.filter_grad(loss))(model, jnp.ones((256, 32)), True)
  """
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
  lift = functools.partial(
    regions.region,
    choose=functools.partial(choose, request=request),
    policy=policy,
    prevent_cse=prevent_cse,
    is_plain_when_eager=True,
    is_filtered=True,
  )
  if fn is None:
    return lift
  regions.check_function(fn)
  return lift(fn)
