"""Where the layers of a function stand: at its top, or inside of what holds its work.

The layers of a pipeline, or of a model that is written for one device with its collectives, stand in the body of a
`shard_map`; others in a `jax.jit` with shardings of its own, or in a branch. There the policy engine decides on them as
it does on those at the top. Sizes and FLOPs in the body of a `shard_map` are those of one device.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from jax.extend import core

from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.jaxpr.trace import is_floating

_OPENED = ("shard_map", "jit", "cond")  # jits that are no more than calls are opened before
_MOSTLY = 3 / 4  # of the FLOPs, that a region without loops has in one inside


@dataclasses.dataclass(frozen=True, eq=False)
class Home:
  """A region with what is decided on.

  Attributes:
    equation_id: the equation in which it stands; None for the top.
    first_id: of its own equations.
    jaxpr: the region.
    is_differentiable: per input.
    scope: that it is traced in.
    is_of_one_device: it lies in a `shard_map`.
  """

  equation_id: int | None
  first_id: int
  jaxpr: core.Jaxpr
  is_differentiable: Sequence[bool]
  scope: compat.AxisScope
  is_of_one_device: bool = False

  @property
  def is_top(self) -> bool:
    return self.equation_id is None

  @property
  def work(self) -> float:
    """FLOPs of its scans."""
    return sum(cost.equation_flops(equation) for equation in self.jaxpr.eqns if equation.primitive.name == "scan")


def home_of(jaxpr: core.Jaxpr, is_differentiable: Sequence[bool], scope: compat.AxisScope) -> Home:
  """The top, or where that has no loop, the region inside with the most work in loops; without loops, that which has
  most of all work.

  Args:
    jaxpr: of the function; ids count its equations in pre-order (`tags.tag_jaxpr`).
    is_differentiable: per input of it.
    scope: that it is traced in.
  """
  home = Home(None, 0, jaxpr, is_differentiable, scope)
  if home.work:
    return home
  if looped := max(_with_loops(home), key=lambda inner: inner.work, default=None):
    return looped
  while inner := _with_most_work(home):
    home = inner
  return home


def _with_loops(outer: Home) -> Iterator[Home]:
  """The outermost regions in another one that have loops."""
  for _, inner in _inside(outer):
    if inner.work:
      yield inner
    else:
      yield from _with_loops(inner)


def _with_most_work(outer: Home) -> Home | None:
  """The region directly inside of another one that has most of its work."""
  flops = cost.jaxpr_flops(outer.jaxpr)
  inside = [
    (cost.jaxpr_flops(inner.jaxpr), inner)
    for equation, inner in _inside(outer)
    if cost.equation_flops(equation) >= _MOSTLY * flops > 0
  ]
  return max(inside, key=lambda each: each[0], default=(0.0, None))[1]


def _inside(outer: Home) -> Iterator[tuple[core.JaxprEqn, Home]]:
  """The regions directly inside of another one, with the equation that each stands in."""
  has_gradient = {var for var, ok in zip(outer.jaxpr.invars, outer.is_differentiable, strict=True) if ok}
  next_id = outer.first_id
  for equation in outer.jaxpr.eqns:
    is_read = [isinstance(atom, core.Var) and atom in has_gradient for atom in equation.invars]
    if any(is_read):
      has_gradient.update(var for var in equation.outvars if is_floating(var.aval))
    first_id = next_id + 1
    for body in compat.sub_jaxprs(equation):
      if equation.primitive.name in _OPENED and any(is_read):
        with outer.scope.entered():
          scope = compat.AxisScope.inside(equation)
        is_of_one_device = outer.is_of_one_device or equation.primitive.name == "shard_map"
        inputs = is_read[len(is_read) - len(body.invars) :]  # what chooses the branch comes first
        yield equation, Home(next_id, first_id, body, inputs, scope, is_of_one_device)
      first_id += _num_equations(body)
    next_id = first_id


def _num_equations(jaxpr: core.Jaxpr) -> int:
  """That have ids: those of a region, and those inside of them."""
  return len(jaxpr.eqns) + sum(_num_equations(body) for equation in jaxpr.eqns for body in compat.sub_jaxprs(equation))
