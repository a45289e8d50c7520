"""What to save inside a segment: bytes against recompute.

`save_curve` trades bytes against recompute inside one segment, exactly: a minimum cut with a knapsack on top, in C++;
`climb` goes up the curves of all segments together.
"""

import dataclasses
import heapq
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from coopjax import _core
from coopjax.policy_engine.decisions import Value
from coopjax.policy_engine.residuals import ForwardGraph

_MANY_CURVES = 8
_LEAST_STEP = 1 / 8  # of a curve's bytes
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
  """

  saved_bytes: int
  flops: float
  is_wrapped: bool
  saved: tuple[Value, ...]
  offloaded: tuple[Value, ...] = ()
  waiting_flops: float = 0.0


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


def save_curve(graph: ForwardGraph, start: int, stop: int) -> list[CurvePoint]:
  """Choices for one segment, from nothing saved to not wrapped at all: bytes rise, FLOPs fall.

  Each repeats the least that its bytes allow. What spares less than a thousandth of the segment is left out.
  """
  values, problem = _saving_problem(graph, start, stop)
  points = [
    CurvePoint(num_bytes, flops, True, tuple(sorted(graph.name_of(values[i]) for i in saved)))
    for saved, num_bytes, flops, _ in _core.save_frontier(*problem)
  ]
  bare, everything = points[0].flops, int(graph.residual_bytes()[start:stop].sum())
  if not bare or not everything:
    return points[:1]
  kept = points[:1]
  for point in points[1:]:
    if point.saved_bytes < everything and point.flops <= kept[-1].flops - MIN_SHARE * bare:
      kept.append(point)
  return [*kept, CurvePoint(everything, 0.0, False, ())]


def _saving_problem(graph: ForwardGraph, start: int, stop: int) -> tuple[list[int], tuple[np.ndarray, ...]]:
  """The segment's values, and the arguments of `_core.save_frontier`, which knows a value by its place among them."""
  ops = [op for position in range(start, stop) for op in graph.ops[position]]
  values = [value for op in ops for value in op.outputs]
  local = {value: i for i, value in enumerate(values)}
  rows = []
  for lists in ([[local[value] for value in op.inputs if value in local] for op in ops], [
    [local[value] for value in op.outputs] for op in ops
  ]):
    rows += [np.cumsum([0, *map(len, lists)], dtype=np.int32), np.array([i for row in lists for i in row], np.int32)]
  # What has no bytes of its own is a view of an input: there is nothing to save.
  sizes = [graph.value_bytes[value] or -1 if graph.named[value] is not None else -1 for value in values]
  wanted = [local[value] for value in values if value in graph.residuals]
  op_cost = np.array([op.flops for op in ops], np.float64)
  return values, (op_cost, *rows, np.array(sizes, np.int64), np.array(wanted, np.int32))


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
