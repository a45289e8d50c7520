"""What to save inside a segment: bytes against recompute.

`save_curve` trades bytes against recompute inside one segment, exactly: a minimum cut with a knapsack on top, in C++;
`climb` goes up the curves of all segments together.
"""

import dataclasses
import enum
import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from coopjax import _core
from coopjax.policy_engine.decisions import Value, in_order
from coopjax.policy_engine.forward_graph import ForwardGraph
from coopjax.policy_engine.inside import parts
from coopjax.program.step_program import csr

_MANY_CURVES = 8
_LEAST_STEP = 1 / 8  # of a curve's bytes
_PRODUCT_FLOPS_PER_BYTE = 5  # read and made: a product takes more, an elementwise op or a sum less
_OTHER_OPS = 1e-3  # what an op that is no product counts where only products do, so that ties are broken
_NEARLY = 0.01  # of the FLOPs that another way repeats
MIN_SHARE = 1e-3  # of a segment's FLOPs: what spares less is not worth a saved value


@dataclasses.dataclass(frozen=True)
class CurvePoint:
  """One choice for a segment.

  Attributes:
    saved_bytes: kept on the device beyond the segment's inputs; negative where some of these are offloaded.
    flops: repeated in the backward pass, and what could be computed while it waits for the host.
    is_wrapped: as in `decisions.Segment`.
    saved: as in `decisions.Segment`.
    offloaded: as in `decisions.Segment`.
    waiting_flops: the part of `flops` that is waiting.
    inside_bytes: of a scan's body, held while one turn is repeated and differentiated.
    host_bytes: kept in the host's memory.
    pieces: what each piece of a body does, of one turn, where these choose apart (`apart`); all else is empty then.
  """

  saved_bytes: int
  flops: float
  is_wrapped: bool
  saved: tuple[Value, ...]
  offloaded: tuple[Value, ...] = ()
  waiting_flops: float = 0.0
  inside_bytes: int = 0
  host_bytes: int = 0
  pieces: tuple["CurvePoint", ...] = ()

  @property
  def saves_values(self) -> bool:
    """Something is saved by name."""
    return bool(self.saved) or any(piece.saves_values for piece in self.pieces)


def shifted(point: CurvePoint, offset: int) -> CurvePoint:
  """The same choice for a segment that starts so many positions later."""
  saved, offloaded = (
    tuple((position + offset, index) for position, index in values) for values in (point.saved, point.offloaded)
  )
  return dataclasses.replace(point, saved=saved, offloaded=offloaded)


def climb(curves: Sequence[Sequence[CurvePoint]]) -> Iterator[list[CurvePoint]]:
  """One point of every curve at a time, from all first to all last, the best FLOPs per byte next.

  Over the lower convex hulls, without points that are close to the one before: many curves at few levels make all the
  steps that are needed, and where the budget moves a little, few of them move. Few curves are climbed twice, over
  every point first; neither contains the other: a jump may not fit.
  """
  convex = [_thinned(_convex(curve)) for curve in curves]
  if sum(len(curve) > 1 for curve in curves) >= _MANY_CURVES:
    yield from _climb(convex)
    return
  yield from _climb(curves)
  if any(len(hull) < len(curve) for hull, curve in zip(convex, curves, strict=True)):
    yield from itertools.islice(_climb(convex), 1, None)


def _climb(curves: Sequence[Sequence[CurvePoint]]) -> Iterator[list[CurvePoint]]:
  def rung(i: int, level: int) -> tuple[float, int, int]:
    lower, upper = curves[i][level - 1], curves[i][level]
    return (upper.flops - lower.flops) / (upper.saved_bytes - lower.saved_bytes), i, level

  points = [curve[0] for curve in curves]
  yield list(points)
  queue = [rung(i, 1) for i, curve in enumerate(curves) if len(curve) > 1]
  heapq.heapify(queue)
  while queue:
    _, i, level = heapq.heappop(queue)
    points[i] = curves[i][level]
    yield list(points)
    if level + 1 < len(curves[i]):
      heapq.heappush(queue, rung(i, level + 1))


def tradeoffs(curves: Sequence[Sequence[CurvePoint]]) -> list[tuple[CurvePoint, ...]]:
  """Of all ways to choose one point of every curve, those that no other beats in bytes and FLOPs, without what repeats
  nearly as much as one of fewer bytes.
  """
  front = [(0, 0.0, tuple[CurvePoint, ...]())]
  for curve in curves:
    ways = [
      (num_bytes + point.saved_bytes, flops + point.flops, (*chosen, point))
      for num_bytes, flops, chosen in front
      for point in curve
    ]
    front, last = [], math.inf
    for way in sorted(ways, key=lambda way: way[:2]):
      if way[1] < (1 - _NEARLY) * last:
        front.append(way)
        last = way[1]
  return [chosen for _, _, chosen in front]


class Form(enum.Enum):
  """Which of the values that spare about as much is saved: before or after a rotary embedding, a cast, a sum.

  How much memory the rest of a backward pass takes depends on it in ways that only the compiler knows, so a search has
  one curve of each. What is not a product is made again but for `EVERY_OP`: XLA mostly fuses it into what reads it.
  """

  EVERY_OP = "every op"
  LAST = "products, the value made last"
  FIRST = "products, the value made first"


def save_curve(
  graph: ForwardGraph,
  start: int,
  stop: int,
  form: Form = Form.EVERY_OP,
  max_points: int = 16,
  *,
  is_stacked: bool = False,
) -> list[CurvePoint]:
  """Choices for one segment, from nothing saved to not wrapped at all: bytes rise, FLOPs fall.

  Each repeats the least that its bytes allow, of what the form counts. What spares less than a thousandth of the
  segment is left out. With `is_stacked`, a loop around stacks what is not wrapped (`ForwardGraph.stacked_bytes`).
  """
  region = SavingRegion(graph, start, stop)
  points = region.points(form, max_points)
  residual_bytes = graph.stacked_bytes() if is_stacked else graph.residual_bytes()
  bare, everything = points[0].flops, int(residual_bytes[start:stop].sum())
  if not bare or not everything:
    return points[:1]
  kept = points[:1]
  for point in points[1:]:
    if point.saved_bytes < everything and point.flops <= kept[-1].flops - MIN_SHARE * bare:
      while kept and kept[-1].saved_bytes >= point.saved_bytes:  # of two values by one name, say
        kept.pop()
      kept.append(point)
  return [*kept, CurvePoint(everything, 0.0, False, ())]


class SavingRegion:
  """A segment as `_core.save_frontier` is told of it: the ops, and what they read and make, in numbers of its own."""

  def __init__(self, graph: ForwardGraph, start: int, stop: int):
    ops = [op for position in range(start, stop) for op in graph.ops[position]]
    self._positions = [position for position in range(start, stop) for _ in graph.ops[position]]
    self._graph, self._ops, self._values = graph, ops, [value for op in ops for value in op.outputs]
    self._local = local = {value: i for i, value in enumerate(self._values)}
    self._inputs = [[local[value] for value in op.inputs if value in local] for op in ops]
    self._outputs = [[local[value] for value in op.outputs] for op in ops]
    self._flops = np.array([op.flops for op in ops], np.float64)
    moved = [sum(graph.value_bytes[value] for value in (*op.inputs, *op.outputs)) for op in ops]
    self._is_product = self._flops > _PRODUCT_FLOPS_PER_BYTE * np.array(moved, np.float64)
    self._wanted = [local[value] for value in self._values if graph.is_wanted(value, stop)]
    carried = ((local.get(start), local.get(end)) for start, end in graph.carried.items())
    self._carried = {start: end for start, end in carried if start is not None and end is not None}  # to the next step
    self._maker = {value: op for op, made in enumerate(self._outputs) for value in made}
    named = ((value, graph.named[value]) for value in self._values)
    self._parts = [(value, parts(name)) for value, name in named if name is not None]

  def choice(self, saved: Iterable[Value]) -> CurvePoint:
    """Under a checkpoint that saves these values, without those that nothing reads then."""
    return self.point(self._known_as(saved))

  def num_bytes(self, saved: Value) -> int:
    """What a checkpoint takes to save a value."""
    return sum(self._graph.value_bytes[value] for value in self._known_as([saved]))

  def repeated_at(self, saved: Iterable[Value]) -> set[int]:
    """The positions that a checkpoint repeats which saves these values."""
    *_, repeated = self._run_again(self._known_as(saved))
    return {self._positions[i] for i in repeated}

  def inputs(self) -> set[int]:
    """The values made outside that a checkpoint keeps which saves nothing: what it repeats reads them."""
    *_, repeated = self._run_again(())
    return {value for op in repeated for value in self._ops[op].inputs if value not in self._local}

  def _known_as(self, saved: Iterable[Value]) -> Iterator[int]:
    wanted = frozenset(saved)
    return (value for value, named in self._parts if wanted.issuperset(named))

  def points(self, form: Form, max_points: int) -> list[CurvePoint]:
    """The frontier, with the FLOPs of all that is repeated."""
    graph = self._graph
    weight = {Form.EVERY_OP: 1.0, Form.LAST: _OTHER_OPS, Form.FIRST: 0.0}[form]
    # What has no bytes of its own is a view of an input: there is nothing to save.
    sizes = [graph.value_bytes[value] or -1 if graph.named[value] is not None else -1 for value in self._values]
    found = _core.save_frontier(
      np.where(self._is_product, self._flops, weight * self._flops),
      *csr(self._inputs),
      *csr(self._outputs),
      np.array(sizes, np.int64),
      np.array(self._wanted, np.int32),
      max_sets=max_points,
      is_early=form is Form.FIRST,
    )
    return [self.point(self._values[i] for i in saved) for saved, *_ in found]

  def point(self, saved: Iterable[int]) -> CurvePoint:
    """With these values of the graph saved, as far as they are read."""
    graph = self._graph
    is_saved, is_needed, repeated = self._run_again(saved)
    kept = [value for i, value in enumerate(self._values) if is_needed[i] and is_saved[i]]
    flops = sum(self._flops[op] for op in repeated)
    names = in_order({part for value in kept for part in parts(graph.name_of(value))})
    return CurvePoint(sum(graph.value_bytes[value] for value in kept), float(flops), True, names)

  def _run_again(self, saved: Iterable[int]) -> tuple[list[bool], list[bool], list[int]]:
    """With these values of the graph saved: whether each of its values is, and is read by the backward pass or by what
    it repeats; and the ops that it repeats, the last first.
    """
    is_saved, is_needed = ([False] * len(self._values) for _ in range(2))
    repeated = set[int]()
    for value in saved:
      is_saved[self._local[value]] = True
    waiting = list(self._wanted)
    while waiting:
      i = waiting.pop()
      if is_needed[i]:
        continue
      is_needed[i] = True
      if is_saved[i]:
        continue
      if i in self._carried:
        waiting.append(self._carried[i])
      if (op := self._maker[i]) not in repeated:
        repeated.add(op)
        waiting += self._inputs[op]
    return is_saved, is_needed, sorted(repeated, reverse=True)


def _convex(points: Sequence[CurvePoint]) -> list[CurvePoint]:
  """The points on the lower convex hull, by rising bytes."""
  hull: list[CurvePoint] = []
  for point in points:
    if hull and point.flops >= hull[-1].flops:
      continue
    while len(hull) > 1 and not _is_left_turn(hull[-2], hull[-1], point):
      hull.pop()
    hull.append(point)
  return hull


def _thinned(hull: Sequence[CurvePoint]) -> list[CurvePoint]:
  """The first and the last point, and those between that lie apart."""
  if not hull:
    return []
  apart = _LEAST_STEP * (hull[-1].saved_bytes - hull[0].saved_bytes)
  thin = [hull[0]]
  for point in hull[1:-1]:
    if min(point.saved_bytes - thin[-1].saved_bytes, hull[-1].saved_bytes - point.saved_bytes) >= apart:
      thin.append(point)
  return thin + list(hull[1:][-1:])


def _is_left_turn(a: CurvePoint, b: CurvePoint, c: CurvePoint) -> bool:
  """True when b lies below the line from a to c."""
  return (b.flops - a.flops) * (c.saved_bytes - a.saved_bytes) < (c.flops - a.flops) * (b.saved_bytes - a.saved_bytes)
