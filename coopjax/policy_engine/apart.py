"""Loops that stay as they are, with what stands in their bodies decided on: scans inside, and blocks between these.

A checkpoint around a body repeats the scans inside of it whole, and they repeat their turns once more. Where a body
holds several layers, a scan of narrow ones and then a wide one, people put a checkpoint around each of them, and none
around all. So the pieces of such a body choose apart: scans by curves of their own, blocks like the segments of a
function, and what is no block stays as it is. All that they keep is stacked, once for each turn of the loop.

There are several ways to tell the blocks: all that lies between scans; what the body calls; its branchings; what it
repeats; none. A scan inside may be opened in turn. A body without scans is one layer, unless it has branches, or blocks
come again in it: the stages of a solver, of which each turn takes four.
"""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np
from jax.extend import core

from coopjax import compat
from coopjax.policy_engine.blocks import Block, blocks_of, ways_to_tell_blocks
from coopjax.policy_engine.bodies import MAX_CUTTINGS, MAX_POINTS, Body, Loop, inside_bytes, ladder
from coopjax.policy_engine.calls import calls_from
from coopjax.policy_engine.cuts import bytes_between, cut
from coopjax.policy_engine.decisions import Region, Segment, merged
from coopjax.policy_engine.forward_graph import ForwardGraph
from coopjax.policy_engine.save_curves import CurvePoint, climb, save_curve
from coopjax.policy_engine.working_set import WorkingSets

_MOST = 1 / 2  # of the residual bytes between scans, made in blocks, for these to be layers


@dataclasses.dataclass(frozen=True, eq=False)
class Opened(Loop):
  """A loop that is left as it is but for what stands in its body.

  Attributes:
    has_blocks: not all that is decided on are loops.
  """

  has_blocks: bool

  def regions(self, body: Body, choice: CurvePoint) -> tuple[Region, ...]:
    """As of `Loop`."""
    regions, segments = list[Region](), list[Segment]()
    for (start, stop), point in zip(itertools.pairwise(body.bounds), choice.pieces, strict=True):
      if start in body.loops:
        loop, inside = body.loops[start]
        regions += loop.regions(inside, point)
        segments.append(Segment(start, stop))
      else:
        segments.append(Segment(start, stop, point.is_wrapped, point.saved))
    if any(segment.is_wrapped for segment in segments):
      regions.insert(0, Region(self.equation_id, merged(segments)))
    return tuple(regions)

  @property
  def has_scans(self) -> bool:
    """As of `Loop`."""
    return self.has_blocks or any(loop.has_scans for loop, _ in self.bodies[0].loops.values())


@dataclasses.dataclass(frozen=True, eq=False)
class LoopBody:
  """A loop to open.

  Attributes:
    equation_id: as of `Loop`.
    position: as of `Loop`.
    jaxpr: of its body.
    length: turns.
    graph_with: of the body, with the decisions for scans inside carried out.
  """

  equation_id: int | None
  position: int
  jaxpr: core.Jaxpr
  length: int
  graph_with: Callable[[tuple[Region, ...]], ForwardGraph]


def open_loop(of: LoopBody, loops: Sequence[Loop], is_first: bool = True) -> tuple[Opened, ...]:
  """All ways to open a loop, the first with the most ways to cut its blocks.

  Args:
    of: the loop.
    loops: in its body, that keep something; where there are none, its layers are decided on.
    is_first: not only as people decide on it.
  """
  deeper = list[Opened]()
  for i, inside in enumerate(ways_to_open(loops)):
    deeper += open_loop(of, inside, is_first=is_first and i == 0)
  graph = of.graph_with(tuple(region for loop in loops for region in loop.barest()))
  alone = {loop.position for loop in loops} | {i for i, each in enumerate(of.jaxpr.eqns) if not compat.may_repeat(each)}
  told = _ways_to_tell_blocks(of.jaxpr, graph, alone)
  ways = [(loops, blocks) for blocks in told if loops or _are_layers(of.jaxpr, blocks)]
  if loops:
    largest = max(loops, key=lambda loop: loop.bodies[0].curve[-1].saved_bytes)
    ways += [(each, ()) for each in (loops, [largest])[: len(loops)]]
  opened = [_Opening(of, graph, chosen, blocks, alone) for chosen, blocks in ways]
  found = []
  for i, each in enumerate(opened):
    # In all combinations with the cuttings of loops where these are the innermost.
    has_levels = is_first and (not each.blocks or (i == 0 and not deeper))
    num_levels = max(len(loop.bodies) for loop in each.loops) if has_levels else 1
    bodies = [each.body(level, each.bounds) for level in range(num_levels)]
    if is_first and i == 0 and each.blocks:
      bounds = sorted(cut(graph, frozenset(alone)), key=len)
      levels = {*np.linspace(0, len(bounds) - 1, MAX_CUTTINGS, dtype=int).tolist()}
      bodies += [each.body(0, bounds[level], is_cut=True) for level in sorted(levels)]
    names = frozenset(name for layer in (*each.loops, *each.blocks) for name in layer.names)
    found.append(
      Opened(
        of.equation_id,
        of.position,
        tuple(bodies),
        names,
        each.saving,
        tuple(deeper) if i == 0 else (),
        bool(each.blocks),
      )
    )
  return tuple(found)


def ways_to_open(loops: Sequence[Loop]) -> Iterator[list[Loop]]:
  """What is decided on where loops stay as they are that have others inside."""
  for way in range(max((len(loop.opened) for loop in loops), default=0)):
    yield [loop.opened[min(way, len(loop.opened) - 1)] if loop.opened else loop for loop in loops]


def _ways_to_tell_blocks(jaxpr: core.Jaxpr, graph: ForwardGraph, alone: set[int]) -> Iterator[Sequence[Block]]:
  """Those that make most of what is kept besides, each way once."""
  ends, residual_bytes = sorted({-1, *alone, graph.num_positions}), graph.residual_bytes()
  residual_bytes[list(alone)] = 0
  held = lambda block: residual_bytes[block.position : block.stop].sum()
  between = [(start + 1, stop) for start, stop in itertools.pairwise(ends)]
  known = set[tuple[tuple[int, int], ...]]()
  branchings = [(i, i + 1) for i, equation in enumerate(jaxpr.eqns) if equation.primitive.name == "cond"]
  told = (blocks_of(jaxpr, graph, spans) for spans in (between, calls_from(jaxpr), branchings))
  for blocks in itertools.chain(told, ways_to_tell_blocks(jaxpr, graph, alone)):
    blocks = [block for block in blocks if held(block) and alone.isdisjoint(range(block.position, block.stop))]
    spans = tuple((block.position, block.stop) for block in blocks)
    if blocks and spans not in known and sum(map(held, blocks)) >= _MOST * residual_bytes.sum():
      known.add(spans)
      yield blocks


def _are_layers(jaxpr: core.Jaxpr, blocks: Sequence[Block]) -> bool:
  """Whether blocks of a body without loops are layers by themselves: branchings, or two that do the same, whatever that
  is for (of the first of two layers, nothing need be kept).
  """
  equations = [jaxpr.eqns[block.position : block.stop] for block in blocks]
  if all(len(of_block) == 1 and of_block[0].primitive.name == "cond" for of_block in equations):
    return True
  return len({tuple(equation.primitive for equation in of_block) for of_block in equations}) < len(blocks)


class _Opening:
  """One way to open a loop: these loops and blocks in its body are decided on."""

  def __init__(
    self, of: LoopBody, graph: ForwardGraph, loops: Sequence[Loop], blocks: Sequence[Block], alone: Collection[int]
  ):
    self.loops, self.blocks, self._alone = loops, blocks, alone
    self._of, self._graph, self._turns = of, graph, WorkingSets(graph)
    self._stacked_bytes = graph.stacked_bytes()
    spans = [*((loop.position, loop.position + 1) for loop in loops), *((each.position, each.stop) for each in blocks)]
    self.bounds = tuple(sorted({0, graph.num_positions, *itertools.chain(*spans)}))
    self._layers = {layer.position: layer for layer in (*loops, *blocks)}

  def body(self, level: int, bounds: tuple[int, ...], *, is_cut: bool = False) -> Body:
    """With the loops' bodies cut at this level; with `is_cut` each piece between them is a block."""
    loops = {loop.position: (loop, loop.body(level)) for loop in self.loops}
    graph = self._of.graph_with(tuple(region for loop in self.loops for region in loop.barest(level)))
    curves = []
    for start, stop in itertools.pairwise(bounds):
      if start in loops:
        curves.append(loops[start][1].curve)
      elif start in self._layers or (is_cut and start not in self._alone):
        curves.append(save_curve(self._graph, start, stop, max_points=MAX_POINTS, is_stacked=True))
      else:
        curves.append([self._as_it_is(start, stop)])
    *points, as_it_is = (self._joined(bounds, points) for points in climb(curves))
    stacked_bytes = bytes_between(graph, bounds).sum() + sum(graph.residual_bytes()[list(loops)])
    return Body(bounds, int(self._of.length * stacked_bytes), ladder(points, as_it_is), loops=loops)

  def saving(self, names: Iterable[str]) -> CurvePoint:
    """As of `Loop`."""
    names = frozenset(names)
    pieces = itertools.pairwise(self.bounds)
    points = [
      layer.saving(names) if (layer := self._layers.get(start)) else self._as_it_is(start, stop)
      for start, stop in pieces
    ]
    return self._joined(self.bounds, points)

  def _as_it_is(self, start: int, stop: int) -> CurvePoint:
    return CurvePoint(int(self._stacked_bytes[start:stop].sum()), 0.0, False, ())

  def _joined(self, bounds: tuple[int, ...], points: Sequence[CurvePoint]) -> CurvePoint:
    """The choices of one turn, as one for all turns."""
    inside = [
      self._inside_bytes(*piece, point) for piece, point in zip(itertools.pairwise(bounds), points, strict=True)
    ]
    return CurvePoint(
      self._of.length * sum(point.saved_bytes for point in points),
      self._of.length * sum(point.flops for point in points),
      any(point.is_wrapped for point in points),
      (),
      inside_bytes=max(inside),
      pieces=tuple(points),
    )

  def _inside_bytes(self, start: int, stop: int, point: CurvePoint) -> int:
    """While this piece of a turn is differentiated: of a scan, what was stacked of this turn has been cut out."""
    if isinstance(self._layers.get(start), Loop):
      return point.inside_bytes + point.saved_bytes
    return inside_bytes(self._turns, start, stop, point)
