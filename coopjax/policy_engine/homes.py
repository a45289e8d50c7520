"""Where the loops of a function stand: at its top, or in a `shard_map` that holds what one device does.

The layers of a pipeline, or of a model that is written for one device with its collectives, are loops in the body of a
`shard_map`. There the policy engine decides on these loops as it does on those at the top: sizes and FLOPs in the body
are those of one device.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from jax.extend import core

from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.jaxpr.trace import is_floating


@dataclasses.dataclass(frozen=True, eq=False)
class Home:
  """A region with what is decided on.

  Attributes:
    equation_id: the `shard_map` whose body it is; None for the top.
    jaxpr: the region.
    is_differentiable: per input.
    scope: that it is traced in.
  """

  equation_id: int | None
  jaxpr: core.Jaxpr
  is_differentiable: Sequence[bool]
  scope: compat.AxisScope


def home_of(jaxpr: core.Jaxpr, is_differentiable: Sequence[bool]) -> Home:
  """The top, or where it has no loop, the body of the `shard_map` with the most work in loops.

  Args:
    jaxpr: of the function, tagged: ids count its equations in pre-order.
    is_differentiable: per input of it.
  """
  top = Home(None, jaxpr, is_differentiable, compat.AxisScope.here())
  if _work_in_loops(jaxpr):
    return top
  inside = list(_shard_maps(jaxpr, is_differentiable))
  return max(inside, key=lambda home: _work_in_loops(home.jaxpr)) if inside else top


def _shard_maps(jaxpr: core.Jaxpr, is_differentiable: Sequence[bool]) -> Iterator[Home]:
  """The bodies of the `shard_map`s at the top that have loops."""
  has_gradient = {var for var, ok in zip(jaxpr.invars, is_differentiable, strict=True) if ok}
  equation_id = 0
  for equation in jaxpr.eqns:
    is_read = [isinstance(atom, core.Var) and atom in has_gradient for atom in equation.invars]
    if any(is_read):
      has_gradient.update(var for var in equation.outvars if is_floating(var.aval))
    if equation.primitive.name == "shard_map" and any(is_read):
      (body,) = compat.sub_jaxprs(equation)
      if _work_in_loops(body):
        yield Home(equation_id, body, is_read, compat.AxisScope.inside(equation))
    equation_id += _num_equations(equation)


def _work_in_loops(jaxpr: core.Jaxpr) -> float:
  """FLOPs of the scans of a region."""
  return sum(cost.equation_flops(equation) for equation in jaxpr.eqns if equation.primitive.name == "scan")


def _num_equations(equation: core.JaxprEqn) -> int:
  """That have ids: it, and those inside."""
  return 1 + sum(_num_equations(inner) for body in compat.sub_jaxprs(equation) for inner in body.eqns)
