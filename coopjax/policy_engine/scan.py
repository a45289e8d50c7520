"""Scans as regions of their own.

The backward pass of a scan stacks the residuals of its body, once per step, before it starts. A policy outside the
loop can only keep or repeat the whole stack; a checkpoint around the body keeps the carry of every step and repeats
one step at a time. So each scan whose body has residuals is a region with curves of its own: what is kept inside
counts `length` times, in bytes and in FLOPs spared. Cutting the body, too, trades more stacked bytes for fewer held
while one step is repeated; with one more checkpoint around the pieces nothing more is stacked, and each step is run
once more.
"""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jax.extend import core

from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.jaxpr.tags import EquationInfo
from coopjax.jaxpr.trace import is_floating
from coopjax.policy_engine import groups
from coopjax.policy_engine.by_hand import named_values
from coopjax.policy_engine.cuts import bytes_between, cut
from coopjax.policy_engine.decisions import PolicyDecisions, Region, Segment, Value, in_order
from coopjax.policy_engine.forward_graph import ForwardGraph
from coopjax.policy_engine.offload import HostLink, HostTrips, Input, carried_inputs
from coopjax.policy_engine.offload_curves import offload_curve
from coopjax.policy_engine.residuals import forward_graph
from coopjax.policy_engine.rewrite import apply_inside
from coopjax.policy_engine.save_curves import CurvePoint, Form, SavingRegion, climb, save_curve
from coopjax.policy_engine.shards import WHOLE, Shards
from coopjax.policy_engine.working_set import WorkingSets

_MAX_CUTTINGS = 4
_MAX_POINTS = 64  # of a curve: steps are taken once for each layer


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
  """One cutting of a scan's body.

  Attributes:
    bounds: of its segments.
    stacked_bytes: passed between the segments, of all steps.
    curve: bytes and FLOPs of all steps; the first point keeps nothing but the segments' inputs, the last may leave
      the scan as the user wrote it.
    offload_curve: the same with values offloaded; empty where nothing can be.
    is_nested: what passes between the segments is repeated, too, step by step: they lie in one more (`Segment.inner`).
    inner: decisions for scans inside the body, carried out whenever the body is wrapped.
    group_size: as of `Region`.
  """

  bounds: tuple[int, ...]
  stacked_bytes: int
  curve: tuple[CurvePoint, ...]
  offload_curve: tuple[CurvePoint, ...] = ()
  is_nested: bool = False
  inner: tuple[Region, ...] = ()
  group_size: int = 1


@dataclasses.dataclass(frozen=True, eq=False)
class Scan:
  """A scan that takes a policy; or a region that loops and calls around run many times, as if it were a scan's body.

  Attributes:
    equation_id: its tag; None for such a region.
    position: in the region that holds it.
    bodies: cuttings of its body, the first in one piece; where there are scans inside, with these as they are and with
      checkpoints of their own.
    names: that the user gave to values of the body, and what a policy may name besides, with the values.
    choice_of: the body in one piece, saving these values.
    carried_bytes: that a checkpoint around the body keeps, of all turns.
    in_groups: the body in one piece, its turns in groups of a size of `group_sizes`.
    group_sizes: from the one with the most carries to the one with the fewest.
    opened: the scan in its body that keeps the most, of all turns: what is decided on where this one stays as it is.
  """

  equation_id: int | None
  position: int
  bodies: tuple[Body, ...]
  names: dict[str, frozenset[Value]]
  choice_of: Callable[[frozenset[Value]], CurvePoint]
  carried_bytes: int
  in_groups: Callable[[int], Body]
  group_sizes: Sequence[int] = ()
  opened: "Scan | None" = None

  def body(self, level: int) -> Body:
    """The cutting at this level of fineness, or the finest."""
    return self.bodies[min(level, len(self.bodies) - 1)]

  def same_outside(self, level: int) -> int:
    """The coarsest level at which the scan keeps what it does at this one, turn by turn."""
    body = self.body(level)
    return next(i for i, each in enumerate(self.bodies) if each.inner == body.inner) if body.is_nested else level

  def regions(self, body: Body, choice: CurvePoint) -> tuple[Region, ...]:
    """The decisions that carry a choice out; none for a scan left as it is."""
    if not choice.is_wrapped:
      return ()
    segments = tuple(
      Segment(start, stop, True, _made_in(choice.saved, start, stop), _made_in(choice.offloaded, start, stop))
      for start, stop in zip(body.bounds, body.bounds[1:], strict=False)
    )
    if body.is_nested:
      segments = (Segment(0, body.bounds[-1], True, inner=segments),)
    return (Region(self.equation_id, segments, group_size=body.group_size), *body.inner)

  @property
  def has_scans(self) -> bool:
    """There are scans inside."""
    return any(body.inner for body in self.bodies)

  @property
  def tightest(self) -> Body:
    """The body in one piece, with checkpoints inside of it, too, if there is anything inside."""
    return next((body for body in self.bodies if body.inner), self.bodies[0])

  def barest(self, level: int = 0) -> tuple[Region, ...]:
    """The decisions that keep nothing but inputs of the body's segments."""
    return self.regions(self.body(level), self.body(level).curve[0])


def _made_in(values: tuple[Value, ...], start: int, stop: int) -> tuple[Value, ...]:
  """The values made in a segment; what is carried into the body belongs to the first."""
  return tuple(value for value in values if start <= max(value[0], 0) < stop)


def find_scans(
  jaxpr: core.Jaxpr,
  table: tuple[EquationInfo, ...],
  parent_id: int | None = None,
  first_id: int = 0,
  link: HostLink | None = None,
  shards: Mapping[int | None, Shards] | None = None,
) -> list[Scan]:
  """The scans at the top of a region that would stack residuals.

  Args:
    jaxpr: the region.
    table: of the whole program, from `tags.tag_jaxpr`.
    parent_id: the equation in which the region stands; None for the top.
    first_id: of the region's equations.
    link: to the host, if values may be offloaded.
    shards: how devices share values, by scan; whole where a scan is not among them.
  """
  ids = [info.id for info in table if info.parent_id == parent_id and info.id >= first_id]
  return [
    scan
    for position, equation in enumerate(jaxpr.eqns)
    if equation.primitive.name == "scan"
    if (scan := _as_scan(equation, ids[position], position, table, link, shards or {})) is not None
  ]


def _as_scan(
  equation: core.JaxprEqn,
  equation_id: int,
  position: int,
  table: tuple[EquationInfo, ...],
  link: HostLink | None,
  shards: Mapping[int | None, Shards],
) -> Scan | None:
  (body,) = compat.sub_jaxprs(equation)
  is_differentiable = [is_floating(var.aval) for var in body.invars]
  has_gradient = any(is_differentiable) and any(is_floating(atom.aval) for atom in body.outvars)
  if not has_gradient or not compat.may_repeat(equation):
    return None
  carried = compat.scan_carries(equation)
  return _as_body(
    body, is_differentiable, equation.params["length"], equation_id, position, table, shards, link, carried
  )


def layer(
  jaxpr: core.Jaxpr,
  table: tuple[EquationInfo, ...],
  is_differentiable: Sequence[bool],
  num_turns: int,
  shards: Mapping[int | None, Shards] | None = None,
  *,
  link: HostLink | None = None,
  is_cut: bool = True,
) -> Scan | None:
  """A whole region, kept so many times at once, as a scan of it would be; None where it keeps nothing.

  What has the type of a result is taken for what the loop around carries, where no more inputs than results have it.
  """
  inputs, results = (
    collections.Counter(atom.aval.str_short() for atom in atoms) for atoms in (jaxpr.invars, jaxpr.outvars)
  )
  carried = [var for var in jaxpr.invars if is_floating(var.aval) and inputs[of := var.aval.str_short()] <= results[of]]
  return _as_body(jaxpr, is_differentiable, num_turns, None, 0, table, shards or {}, link, carried, is_cut)


def _as_body(
  body: core.Jaxpr,
  is_differentiable: Sequence[bool],
  length: int,
  equation_id: int | None,
  position: int,
  table: tuple[EquationInfo, ...],
  shards: Mapping[int | None, Shards],
  link: HostLink | None = None,
  carried: Sequence[core.Var] = (),
  is_cut: bool = True,
) -> Scan | None:
  first_id = 0 if equation_id is None else equation_id + 1
  scans = find_scans(body, table, equation_id, first_id, shards=shards)
  inner = tuple(region for scan in scans for region in scan.regions(scan.tightest, scan.tightest.curve[0]))
  inner_flops = length * sum(scan.tightest.curve[0].flops for scan in scans)
  at_body = shards.get(equation_id, WHOLE)
  graph = forward_graph(body, is_differentiable, at_body)
  if not graph.residual_bytes().sum():
    return None
  forms = list(Form if is_cut else [Form.EVERY_OP])
  region = None if link is None else HostTrips.of(link, body)

  def cuttings(graph: ForwardGraph, forms: Sequence[Form], inner: tuple[Region, ...]) -> list[Body]:
    bounds = sorted(cut(graph), key=len) if is_cut else [(0, graph.num_positions)]
    bounds = [bounds[i] for i in sorted({*np.linspace(0, len(bounds) - 1, _MAX_CUTTINGS, dtype=int).tolist()})]
    turns = WorkingSets(graph)
    bodies, *others = ([_body(turns, each, length, form) for each in bounds] for form in forms)
    if region is not None:
      inputs = [carried_inputs(body, piece.bounds, carried) for piece in bodies]
      bodies = [
        dataclasses.replace(piece, offload_curve=_offload_curve(turns, piece, length, region, at))
        for piece, at in zip(bodies, inputs, strict=True)
      ]
    bodies += [*itertools.chain(*others), *(_nested(graph, piece, length) for piece in bodies[1:])]
    return [dataclasses.replace(piece, inner=inner) for piece in bodies]

  bodies, graph_in_groups = cuttings(graph, forms, ()), graph
  if inner:
    tight = forward_graph(carried_out(body, inner, first_id), is_differentiable, at_body)
    bodies += [_dearer(piece, inner_flops) for piece in cuttings(tight, [Form.EVERY_OP], inner)]
    graph_in_groups = tight
  turns, pieces, whole = WorkingSets(graph), [(0, graph.num_positions)], SavingRegion(graph, 0, graph.num_positions)
  carried_bytes = sum(at_body.num_bytes(var.aval, -1) for var in carried if is_floating(var.aval))
  in_one_piece = next((piece for piece in bodies if piece.inner), bodies[0])
  return Scan(
    equation_id,
    position,
    tuple(bodies),
    named_values(body, graph),
    lambda saved: _joined(turns, pieces, [whole.choice(saved)], length),
    length * carried_bytes,
    lambda size: _in_groups(graph_in_groups, in_one_piece, length, size, carried_bytes),
    groups.sizes(length) if equation_id is not None else (),
    opened=_in_loop(max(scans, key=kept_bytes), length, position) if scans else None,
  )


def has_invariants(equation: core.JaxprEqn) -> bool:
  """Whether a scan makes something in each turn from nothing but what no turn changes: XLA may make it once, and keep
  it from then on.
  """
  (body,) = compat.sub_jaxprs(equation)
  unchanging = set(compat.scan_constants(equation))
  for inner in body.eqns:
    read = [atom for atom in inner.invars if isinstance(atom, core.Var)]
    if read and unchanging.issuperset(read):
      if cost.equation_flops(inner):
        return True
      unchanging.update(inner.outvars)
  return False


def kept_bytes(scan: Scan) -> int:
  """What a scan in one piece keeps as it is."""
  return scan.bodies[0].curve[-1].saved_bytes


def _in_loop(scan: Scan, length: int, position: int) -> Scan:
  """A scan as it is inside a loop that stays as it is, which stacks all that it keeps."""

  def of_turns(point: CurvePoint, stacked_bytes: int = 0) -> CurvePoint:
    sliced_bytes = point.saved_bytes + stacked_bytes  # of the turn that is differentiated
    return dataclasses.replace(
      point,
      saved_bytes=length * point.saved_bytes,
      flops=length * point.flops,
      inside_bytes=point.inside_bytes + sliced_bytes,
    )

  bodies = tuple(
    dataclasses.replace(
      body,
      stacked_bytes=length * body.stacked_bytes,
      curve=tuple(of_turns(point, body.stacked_bytes) for point in body.curve),
      offload_curve=(),
    )
    for body in scan.bodies
  )
  return dataclasses.replace(
    scan,
    position=position,
    bodies=bodies,
    choice_of=lambda saved: of_turns(scan.choice_of(saved)),
    group_sizes=(),
    opened=scan.opened and _in_loop(scan.opened, length, position),
  )


def carried_out(body: core.Jaxpr, nested: tuple[Region, ...], first_id: int) -> core.Jaxpr:
  """A region, whose first equation has this id, with its own scans' decisions."""
  shifted = tuple(dataclasses.replace(region, equation_id=region.scan_id - first_id) for region in nested)
  return apply_inside(body, PolicyDecisions(shifted))


def _body(turns: WorkingSets, bounds: tuple[int, ...], length: int, form: Form) -> Body:
  graph = turns.graph
  curves = [save_curve(graph, start, stop, form, _MAX_POINTS) for start, stop in itertools.pairwise(bounds)]
  return Body(
    bounds,
    int(length * bytes_between(graph, bounds).sum()),
    _joint_curve(turns, bounds, curves, length),
  )


def _nested(graph: ForwardGraph, body: Body, length: int) -> Body:
  """A cutting with a checkpoint around it: each step keeps its carry, and is run twice more, first as far as the last
  piece's inputs, then by pieces.
  """
  between_bytes = body.stacked_bytes // length
  flops = body.curve[0].flops + length * sum(graph.flops[: body.bounds[-2]])
  bare = CurvePoint(0, flops, True, (), inside_bytes=between_bytes + body.curve[0].inside_bytes)
  curve = (bare, body.curve[-1])
  return Body(body.bounds, 0, curve, curve, is_nested=True)


def _in_groups(graph: ForwardGraph, body: Body, length: int, size: int, carried_bytes: int) -> Body:
  """A body whose turns lie in groups: all but the last of a group save what a point says, until the group is done."""
  bare, early = body.curve[0], (size - 1) / size
  again = early * length * sum(graph.flops) + bare.flops / size
  curve = [
    dataclasses.replace(
      point,
      saved_bytes=(size - 1) * point.saved_bytes // length,
      flops=again + early * point.flops,
      inside_bytes=(size - 1) * carried_bytes + max(bare.inside_bytes, point.inside_bytes),
    )
    for point in body.curve
    if point.is_wrapped
  ]
  return dataclasses.replace(body, curve=tuple(curve), offload_curve=(), group_size=size)


def _dearer(body: Body, inner_flops: float) -> Body:
  """With what checkpoints inside of the body repeat once more."""

  def curve(points: tuple[CurvePoint, ...]) -> tuple[CurvePoint, ...]:
    return tuple(
      dataclasses.replace(point, flops=point.flops + inner_flops) if point.is_wrapped else point for point in points
    )

  return dataclasses.replace(body, curve=curve(body.curve), offload_curve=curve(body.offload_curve))


def _offload_curve(
  turns: WorkingSets, body: Body, length: int, region: HostTrips, inputs: tuple[Input, ...]
) -> tuple[CurvePoint, ...]:
  graph = turns.graph
  curves = [
    offload_curve(region.choices(graph, start, stop, () if start else inputs))
    for start, stop in zip(body.bounds, body.bounds[1:], strict=False)
  ]
  return _joint_curve(turns, body.bounds, curves, length)


def _joint_curve(
  turns: WorkingSets, bounds: Sequence[int], curves: Sequence[Sequence[CurvePoint]], length: int
) -> tuple[CurvePoint, ...]:
  """The choices for all pieces of a body together, of all steps; the last leaves the scan as it is."""
  wrapped = [[point for point in points if point.is_wrapped] for points in curves]
  pieces = list(itertools.pairwise(bounds))
  rungs = {rung.saved_bytes: rung for rung in (_joined(turns, pieces, points, length) for points in climb(wrapped))}
  as_it_is = CurvePoint(length * turns.graph.stacked_bytes(), 0.0, False, ())
  return (*(rungs[saved] for saved in sorted(rungs) if saved < as_it_is.saved_bytes), as_it_is)


def _joined(
  turns: WorkingSets, pieces: Sequence[tuple[int, int]], points: Sequence[CurvePoint], length: int
) -> CurvePoint:
  return CurvePoint(
    length * sum(point.saved_bytes for point in points),
    length * sum(point.flops for point in points),
    True,
    in_order(value for point in points for value in point.saved),
    in_order(value for point in points for value in point.offloaded),
    length * sum(point.waiting_flops for point in points),
    max(turns.peak_bytes(*piece, point.saved) for piece, point in zip(pieces, points, strict=True)),
  )
