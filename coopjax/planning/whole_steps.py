"""Steps without remat regions, carried out: a mark on all of the step, for the HLO engine."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.core

from coopjax import compat
from coopjax.errors import PlanMismatchError
from coopjax.jaxpr import non_arrays
from coopjax.jaxpr.fingerprint import fingerprint_of_step
from coopjax.jaxpr.placement import Spread
from coopjax.jaxpr.tags import marked
from coopjax.planning import regions

if TYPE_CHECKING:
  from coopjax.planning.remat_plan import RematPlan


def follow(fn: Callable, plan: "RematPlan", mark: str | None) -> Callable:
  """The step with its plan carried out; a jitted one stays jitted, with its options."""
  carried_out = _Marked(fn, plan, mark)
  return (
    carried_out if regions.is_jitted(fn) else functools.wraps(fn)(lambda *args, **kwargs: carried_out(*args, **kwargs))
  )


class _Marked:
  """Called, traced or lowered like the step itself."""

  def __init__(self, fn: Callable, plan: "RematPlan", mark: str | None):
    functools.update_wrapper(self, fn)
    self._fn, self._plan, self._mark = fn, plan, mark
    self._known = set[Any]()  # kinds of arguments that the plan was made for

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    return self._followed(self._fn)(*args, **kwargs)

  def __getattr__(self, name: str) -> Any:
    attribute = getattr(self._fn, name)
    return self._followed(attribute) if callable(attribute) else attribute

  def _followed(self, fn: Callable) -> Callable:
    def followed(*args, **kwargs):
      plan = self._plan
      Spread(plan.mesh, plan.num_devices, plan.shards).check(plan.name, (args, kwargs))
      self._check(args, kwargs)
      with marked(self._mark):
        return fn(*args, **kwargs)

    return followed

  def _check(self, args: Any, kwargs: Any) -> None:
    """Raises PlanMismatchError where the step is traced to another program than was planned; once for each kind."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    kind = tree, tuple((leaf.shape, leaf.dtype) if hasattr(leaf, "dtype") else repr(leaf) for leaf in leaves)
    if kind in self._known:
      return
    jitted = self._fn
    if not regions.is_jitted(jitted):
      args, kwargs = non_arrays.hidden((tuple(args), kwargs))
      jitted = jax.jit(non_arrays.of_hidden(self._fn))
    with compat.no_trace():
      traced = jitted.trace(*_abstract(args), **_abstract(kwargs))
    fingerprint = fingerprint_of_step(getattr(traced, "traced", traced).jaxpr)
    if fingerprint != self._plan.fingerprint:
      raise PlanMismatchError(
        f"the plan was made for the step {self._plan.name} with fingerprint {self._plan.fingerprint}, which has "
        f"{fingerprint} as called here: another step, other shapes or dtypes, or other versions of its libraries"
      )
    self._known.add(kind)


def _abstract(tree: Any) -> Any:
  """Tracers of a trace around, if there is one, as their types."""
  is_tracer = lambda leaf: isinstance(leaf, jax.core.Tracer)
  return jax.tree.map(lambda leaf: jax.typeof(leaf) if is_tracer(leaf) else leaf, tree)
