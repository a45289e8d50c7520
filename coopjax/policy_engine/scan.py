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
import functools
import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

import numpy as np
from jax.extend import core

from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.jaxpr.tags import EquationInfo
from coopjax.jaxpr.trace import is_floating
from coopjax.policy_engine import groups
from coopjax.policy_engine.apart import LoopBody, open_loop
from coopjax.policy_engine.bodies import (
  MAX_CUTTINGS,
  Body,
  Loop,
  around_checkpoints,
  in_groups,
  joined,
  joint_curve,
  nested,
  of_pieces,
)
from coopjax.policy_engine.by_hand import named_values, values_of
from coopjax.policy_engine.cuts import between_blocks, cut
from coopjax.policy_engine.decisions import PolicyDecisions, Region, Segment, Value, merged
from coopjax.policy_engine.forward_graph import ForwardGraph
from coopjax.policy_engine.offload import HostLink, HostTrips, Input, carried_inputs
from coopjax.policy_engine.offload_curves import offload_curves
from coopjax.policy_engine.residuals import differentiated_in, forward_graph
from coopjax.policy_engine.rewrite import apply_inside
from coopjax.policy_engine.save_curves import CurvePoint, Form, SavingRegion
from coopjax.policy_engine.shards import WHOLE, Shards
from coopjax.policy_engine.working_set import WorkingSets


@dataclasses.dataclass(frozen=True, eq=False)
class Scan(Loop):
  """A scan that takes a policy; or a region that loops and calls around run many times, as if it were a scan's body.

  Its first cutting is in one piece; where there are scans inside, others have these as they are, or with checkpoints of
  their own.

  Attributes:
    choice_of: the body in one piece, saving these values.
    carried_bytes: that a checkpoint around the body keeps, of all turns.
    in_blocks: it in several ways, with the body cut between its blocks (`cuts.between_blocks`), or where there are
      scans inside, with theirs; none where there are not several; made when asked for.
    in_groups: the body in one piece, its turns in groups of a size of `group_sizes`, peeled or not.
    group_sizes: from the one with the most carries to the one with the fewest.
  """

  choice_of: Callable[[frozenset[Value]], CurvePoint]
  carried_bytes: int
  in_groups: Callable[[int, bool], Body]
  group_sizes: Sequence[int] = ()
  in_blocks: Callable[[], Sequence["Scan"]] = tuple

  def same_outside(self, level: int) -> int:
    """As of `Loop`."""
    body = self.body(level)
    return next(i for i, each in enumerate(self.bodies) if each.inner == body.inner) if body.is_nested else level

  def regions(self, body: Body, choice: CurvePoint) -> tuple[Region, ...]:
    """As of `Loop`."""
    if not choice.is_wrapped:
      return ()
    pieces = list(itertools.pairwise(body.bounds))
    segments = merged(
      [
        Segment(*piece, point.is_wrapped, _made_in(choice.saved, *piece), _made_in(choice.offloaded, *piece))
        for piece, point in zip(pieces, choice.pieces or [choice] * len(pieces), strict=True)
      ]
    )
    if body.is_nested:
      segments = (Segment(0, body.bounds[-1], True, inner=segments),)
    region = Region(self.equation_id, segments, group_size=body.group_size, is_peeled=body.is_peeled)
    return (region, *body.inner)

  @property
  def has_scans(self) -> bool:
    """As of `Loop`."""
    return any(body.inner for body in self.bodies) or len(self.bodies[0].bounds) > 2

  @property
  def tightest(self) -> Body:
    """The body in one piece, with checkpoints inside of it, too, if there is anything inside."""
    return next((body for body in self.bodies if body.inner), self.bodies[0])


def _made_in(values: Iterable[Value], start: int, stop: int) -> tuple[Value, ...]:
  """The values made in a segment; what is carried into the body belongs to the first."""
  return tuple(value for value in values if start <= max(value[0], 0) < stop)


def find_scans(
  jaxpr: core.Jaxpr,
  table: tuple[EquationInfo, ...],
  parent_id: int | None = None,
  first_id: int = 0,
  link: HostLink | None = None,
  shards: Mapping[int | None, Shards] | None = None,
  is_differentiable: Sequence[bool] | None = None,
) -> list[Scan]:
  """The scans at the top of a region that would stack residuals.

  Args:
    jaxpr: the region.
    table: of the whole program, from `tags.tag_jaxpr`.
    parent_id: the equation in which the region stands; None for the top.
    first_id: of the region's equations.
    link: to the host, if values may be offloaded.
    shards: how devices share values, by scan; whole where a scan is not among them.
    is_differentiable: per input of the region, whether a gradient is taken; by default of what is floating.
  """
  differentiated = differentiated_in(jaxpr, is_differentiable or [is_floating(var.aval) for var in jaxpr.invars])
  ids = [info.id for info in table if info.parent_id == parent_id and info.id >= first_id]
  return [
    scan
    for position, equation in enumerate(jaxpr.eqns)
    if equation.primitive.name == "scan"
    if (scan := _as_scan(equation, differentiated, ids[position], position, table, link, shards or {})) is not None
  ]


def _as_scan(
  equation: core.JaxprEqn,
  differentiated: Container[core.Var],
  equation_id: int,
  position: int,
  table: tuple[EquationInfo, ...],
  link: HostLink | None,
  shards: Mapping[int | None, Shards],
) -> Scan | None:
  (body,) = compat.sub_jaxprs(equation)
  carries, constants = compat.scan_carries(equation), compat.scan_constants(equation)
  has_tangent = [isinstance(atom, core.Var) and atom in differentiated for atom in equation.invars]
  has_gradient = any(has_tangent) and any(is_floating(atom.aval) for atom in body.outvars)
  length = equation.params["length"]
  if not length or not has_gradient or not compat.may_repeat(equation):
    return None
  # What a turn hands on has a tangent as soon as anything has.
  is_differentiable = [is_floating(var.aval) and (has or var in carries) for var, has in zip(body.invars, has_tangent)]
  return _as_body(body, is_differentiable, length, equation_id, position, table, shards, link, carries, constants)


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
  return _as_body(jaxpr, is_differentiable, num_turns, None, 0, table, shards or {}, link, carried, is_cut=is_cut)


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
  constants: Sequence[core.Var] = (),
  is_cut: bool = True,
) -> Scan | None:
  first_id = 0 if equation_id is None else equation_id + 1
  scans = find_scans(body, table, equation_id, first_id, shards=shards, is_differentiable=is_differentiable)
  inner = tuple(region for scan in scans for region in scan.regions(scan.tightest, scan.tightest.curve[0]))
  inner_flops = length * sum(scan.tightest.curve[0].flops for scan in scans)
  at_body = shards.get(equation_id, WHOLE)
  graph = forward_graph(body, is_differentiable, at_body)
  if not graph.residual_bytes().sum():
    return None
  forms = list(Form if is_cut else [Form.EVERY_OP])
  region = None if link is None else HostTrips.of(link.of_turn(length), body, at_body)

  def cuttings(graph: ForwardGraph, forms: Sequence[Form], inner: tuple[Region, ...]) -> list[Body]:
    bounds = sorted(cut(graph), key=len) if is_cut else [(0, graph.num_positions)]
    bounds = [bounds[i] for i in sorted({*np.linspace(0, len(bounds) - 1, MAX_CUTTINGS, dtype=int).tolist()})]
    turns = WorkingSets(graph)
    bodies, *others = (
      [of_pieces(turns, each, length, form, choose_apart=not scans and form is Form.EVERY_OP) for each in bounds]
      for form in forms
    )
    if region is not None:
      inputs = [carried_inputs(body, piece.bounds, carried, at_body) for piece in bodies]
      bodies = [
        dataclasses.replace(piece, offload_curves=_offload_curves(turns, piece, length, region, at))
        for piece, at in zip(bodies, inputs, strict=True)
      ]
    bodies += [*itertools.chain(*others), *(nested(graph, piece, length) for piece in bodies[1:])]
    return [dataclasses.replace(piece, inner=inner) for piece in bodies]

  def graph_with(inner: tuple[Region, ...]) -> ForwardGraph:
    return forward_graph(carried_out(body, inner, first_id), is_differentiable, at_body)

  bodies, graph_in_groups = cuttings(graph, forms, ()), graph
  if inner:
    tight = graph_with(inner)
    as_it_is = bodies[0].curve[-1]
    bodies += [around_checkpoints(piece, inner_flops, as_it_is) for piece in cuttings(tight, [Form.EVERY_OP], inner)]
    graph_in_groups = tight
  turns, pieces, whole = WorkingSets(graph), [(0, graph.num_positions)], SavingRegion(graph, 0, graph.num_positions)
  carried_bytes, constant_bytes = (
    sum(at_body.num_bytes(var.aval, -1) for var in each if is_floating(var.aval)) for each in (carried, constants)
  )
  in_one_piece = next((piece for piece in bodies if piece.inner), bodies[0])
  names = named_values(body, graph)
  choice_of = lambda saved: joined(turns, pieces, [whole.choice(saved)], length)
  inputs = carried_inputs(body, (0, graph.num_positions), carried, at_body) if region else ()

  def offloading(saved: Iterable[str], offloaded: Iterable[str]) -> CurvePoint:
    assert region is not None
    point = region.point(whole, values_of(names, saved), values_of(names, offloaded), inputs)
    return joined(turns, pieces, [point], length)

  def grouped(size: int, is_peeled: bool) -> Body:
    groups_bytes = {"carried_bytes": carried_bytes, "constant_bytes": constant_bytes}
    return in_groups(graph_in_groups, in_one_piece, length, size, is_peeled=is_peeled, **groups_bytes)

  def in_blocks(scan: Scan) -> list[Scan]:
    if not is_cut:
      return []
    if scans:
      return [dataclasses.replace(scan, opened=open_loop(opened, inside)) for inside in ways_in_blocks(scans)]
    reads = ((i, atom) for i, equation in enumerate(body.eqns) for atom in equation.invars)
    last_read = {atom: i for i, atom in reads if isinstance(atom, core.Var)}
    handed_on = [(at_body.num_bytes(var.aval, -1), last_read.get(var, -1)) for var in carried if is_floating(var.aval)]
    blocks = between_blocks(graph, handed_on)
    num_blocks, end = len(blocks) - 1, graph.num_positions
    if num_blocks < 2:
      return []
    ways = [(*blocks[:-1], end), (*blocks, end)] if blocks[-1] < end else [blocks]

    def way(bounds: tuple[int, ...]) -> Scan:
      pieces = list(itertools.pairwise(bounds))
      each_saving = {piece: SavingRegion(graph, *piece) for piece in pieces[:num_blocks]}
      behind = [CurvePoint(int(graph.stacked_bytes()[stop:].sum()), 0.0, False, ()) for stop in bounds[num_blocks:-1]]

      def saving(chosen: Iterable[str]) -> CurvePoint:
        values = values_of(names, chosen)
        points = [region.choice(_made_in(values, *piece)) for piece, region in each_saving.items()]
        return joined(turns, pieces, [*points, *behind], length)

      body = of_pieces(turns, bounds, length, Form.EVERY_OP, choose_apart=True, num_blocks=num_blocks)
      return dataclasses.replace(scan, bodies=(body,), saving=saving, offloading=None)

    return [way(bounds) for bounds in ways]

  opened = LoopBody(equation_id, position, body, length, functools.cache(graph_with))
  scan = Scan(
    equation_id,
    position,
    tuple(bodies),
    names,
    lambda chosen: choice_of(values_of(names, chosen)),
    open_loop(opened, scans, is_first=bool(scans)) if is_cut else (),
    choice_of,
    length * carried_bytes,
    grouped,
    groups.sizes(length) if equation_id is not None else (),
    offloading=offloading if region is not None else None,
  )
  return dataclasses.replace(scan, in_blocks=functools.cache(functools.partial(in_blocks, scan)))


def ways_in_blocks(scans: Sequence[Scan]) -> Iterator[list[Scan]]:
  """Scans cut between their blocks, in several ways; those without blocks in one piece."""
  cut = [scan.in_blocks() for scan in scans]
  for way in range(max(map(len, cut), default=0)):
    yield [
      in_ways[min(way, len(in_ways) - 1)] if in_ways else dataclasses.replace(scan, bodies=scan.bodies[:1])
      for scan, in_ways in zip(scans, cut, strict=True)
    ]


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


def carried_out(body: core.Jaxpr, nested: tuple[Region, ...], first_id: int) -> core.Jaxpr:
  """A region, whose first equation has this id, with its own scans' decisions."""
  shifted = tuple(dataclasses.replace(region, equation_id=region.scan_id - first_id) for region in nested)
  return apply_inside(body, PolicyDecisions(shifted))


def _offload_curves(
  turns: WorkingSets, body: Body, length: int, region: HostTrips, inputs: tuple[Input, ...]
) -> tuple[tuple[CurvePoint, ...], ...]:
  by_piece = [
    list(offload_curves(region, turns.graph, *piece, () if piece[0] else inputs, is_stacked=True))
    for piece in itertools.pairwise(body.bounds)
  ]
  ways = ([curves[min(way, len(curves) - 1)] for curves in by_piece] for way in range(max(map(len, by_piece))))
  return tuple(joint_curve(turns, body.bounds, way, length) for way in ways)
