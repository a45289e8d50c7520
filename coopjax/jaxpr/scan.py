"""Scans as regions of their own.

The backward pass of a scan stacks the residuals of its body, once per step, before it starts. A policy outside the
loop can only keep or repeat the whole stack; a checkpoint around the body keeps the carry of every step and repeats
one step at a time. So each scan whose body has residuals is a region with curves of its own: what is kept inside
counts `length` times, in bytes and in FLOPs spared. Cutting the body, too, trades more stacked bytes for fewer held
while one step is repeated.
"""

import dataclasses

from jax.extend import core
import numpy as np

from coopjax import compat
from coopjax.jaxpr.residuals import ForwardGraph, forward_graph
from coopjax.jaxpr.rewrite import PolicyDecisions, Region, apply_to_scans
from coopjax.jaxpr.segments import CurvePoint, Segment, bytes_between, climb, cut, save_curve
from coopjax.jaxpr.tags import EquationInfo
from coopjax.jaxpr.trace import is_floating

_MAX_CUTTINGS = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
  """One cutting of a scan's body.

  Attributes:
    bounds: of its segments.
    stacked_bytes: passed between the segments, of all steps.
    inside_bytes: held while one segment of one step is repeated and differentiated.
    curve: bytes and FLOPs of all steps; the first point keeps nothing but the segments' inputs, the last may leave
      the scan as the user wrote it.
  """

  bounds: tuple[int, ...]
  stacked_bytes: int
  inside_bytes: int
  curve: tuple[CurvePoint, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Scan:
  """A scan that takes a policy.

  Attributes:
    equation_id: its tag.
    position: in the region that holds it.
    bodies: cuttings of its body, the first in one piece.
    nested: decisions for scans inside the body, carried out whenever the body is wrapped.
  """

  equation_id: int
  position: int
  bodies: tuple[Body, ...]
  nested: tuple[Region, ...]

  def body(self, level: int) -> Body:
    """The cutting at this level of fineness, or the finest."""
    return self.bodies[min(level, len(self.bodies) - 1)]

  def regions(self, body: Body, choice: CurvePoint) -> tuple[Region, ...]:
    """The decisions that carry a choice out; none for a scan left as it is."""
    if not choice.is_wrapped:
      return ()
    segments = tuple(
      Segment(start, stop, True, tuple(value for value in choice.saved if start <= value[0] < stop))
      for start, stop in zip(body.bounds, body.bounds[1:], strict=False))
    return (Region(self.equation_id, segments), *self.nested)

  def barest(self, level: int = 0) -> tuple[Region, ...]:
    """The decisions that keep nothing but inputs of the body's segments."""
    return self.regions(self.body(level), self.body(level).curve[0])


def find_scans(jaxpr: core.Jaxpr, table: tuple[EquationInfo, ...], parent_id: int | None = None) -> list[Scan]:
  """The scans at the top of a region that would stack residuals.

  Args:
    jaxpr: the region.
    table: of the whole program, from `tags.tag_jaxpr`.
    parent_id: the scan whose body the region is; None for the top.
  """
  ids = [info.id for info in table if info.parent_id == parent_id]
  return [scan for position, equation in enumerate(jaxpr.eqns) if equation.primitive.name == "scan"
          if (scan := _as_scan(equation, ids[position], position, table)) is not None]


def _as_scan(equation: core.JaxprEqn, equation_id: int, position: int, table: tuple[EquationInfo, ...]) -> Scan | None:
  (body,) = compat.sub_jaxprs(equation)
  is_differentiable = [is_floating(var.aval) for var in body.invars]
  has_gradient = any(is_differentiable) and any(is_floating(atom.aval) for atom in body.outvars)
  if not has_gradient or not compat.may_repeat(equation):
    return None
  nested = tuple(region for scan in find_scans(body, table, equation_id) for region in scan.barest())
  graph = forward_graph(_carry_out(body, nested, equation_id), is_differentiable)
  if not graph.residual_bytes().sum():
    return None
  length = equation.params["length"]
  cuttings = sorted(cut(graph), key=len)
  cuttings = [cuttings[i] for i in sorted({*np.linspace(0, len(cuttings) - 1, _MAX_CUTTINGS, dtype=int).tolist()})]
  return Scan(equation_id, position, tuple(_body(graph, bounds, length) for bounds in cuttings), nested)


def _carry_out(body: core.Jaxpr, nested: tuple[Region, ...], equation_id: int) -> core.Jaxpr:
  """The body with its own scans' decisions; ids inside a body start behind the id of its scan."""
  shifted = tuple(dataclasses.replace(region, equation_id=region.equation_id - equation_id - 1) for region in nested)
  return apply_to_scans(body, PolicyDecisions(shifted))


def _body(graph: ForwardGraph, bounds: tuple[int, ...], length: int) -> Body:
  residuals = graph.residual_bytes()
  pieces = list(zip(bounds, bounds[1:], strict=False))
  curves = [[point for point in save_curve(graph, start, stop) if point.is_wrapped] for start, stop in pieces]
  rungs = {rung.saved_bytes: rung for rung in (_joined(points, length) for points in climb(curves))}
  unwrapped = CurvePoint(int(length * residuals.sum()), 0.0, False, ())
  curve = [rungs[saved] for saved in sorted(rungs) if saved < unwrapped.saved_bytes] + [unwrapped]
  return Body(bounds, int(length * bytes_between(graph, bounds).sum()),
              max(int(residuals[start:stop].sum()) for start, stop in pieces), tuple(curve))


def _joined(points: list[CurvePoint], length: int) -> CurvePoint:
  return CurvePoint(length * sum(point.saved_bytes for point in points), length * sum(point.flops for point in points),
                    True, tuple(sorted(value for point in points for value in point.saved)))
