"""What to save inside a segment: bytes against recompute.

`save_curve` trades bytes against recompute inside one segment: values in order of FLOPs spared per byte, chains of
recomputed ancestors included; `climb` goes up the curves of all segments together. Weakness: a value whose saving pays
only together with another one's is not found.
"""

import dataclasses
import heapq
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from coopjax.policy_engine.decisions import Value
from coopjax.policy_engine.residuals import ForwardGraph, ForwardOp

_MAX_CANDIDATES = 64
_MAX_POINTS = 8
_MANY_CURVES = 8
_LEAST_STEP = 1 / 8  # of a curve's bytes
_MIN_SHARE = 1e-3  # of a segment's FLOPs: what spares less is not worth a saved value


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


class Choices:
  """What a segment keeps, one value more at a time; starts with nothing.

  Attributes:
    graph: of the region.
    repeated: what the segment repeats.
    saved_bytes: kept so far.
  """

  def __init__(self, graph: ForwardGraph, start: int, stop: int):
    self.graph = graph
    self.repeated = Repeated(graph, start, stop)
    self.saved_bytes = 0
    self._start, self._stop = start, stop
    self._saved: list[Value] = []
    self._bare = self.repeated.flops

  @property
  def flops(self) -> float:
    """That the segment costs beyond its first run."""
    return self.repeated.flops

  def candidates(self) -> list[int]:
    """What could be kept."""
    return _save_candidates(self.graph, self._start, self._stop, self._bare)

  def num_bytes(self, value: int, /) -> int:
    """What keeping it takes."""
    return self.graph.value_bytes[value]

  def gain(self, value: int, /) -> float:
    """FLOPs that keeping it would spare now."""
    return self.repeated.spared(value)

  def keep(self, value: int, /) -> None:
    """Keeps it."""
    self.repeated.save(value)
    self._saved.append(self.graph.name_of(value))
    self.saved_bytes += self.num_bytes(value)

  def point(self) -> CurvePoint:
    """As things stand."""
    return CurvePoint(self.saved_bytes, self.flops, True, tuple(sorted(self._saved)))


def save_curve(
  graph: ForwardGraph, start: int, stop: int, limit_bytes: int | None = None, choices: Choices | None = None
) -> list[CurvePoint]:
  """Choices for one segment, from nothing saved to not wrapped at all: bytes rise, FLOPs fall.

  With a limit on saved bytes, values that would pass it are left out, and the last choice is the best within it.
  `choices` are those of the segment that may offload, too (`offload.HostTrips`).

  Lazy greedy: a candidate's gain is computed again only when it leads. About 2c gains for c candidates, each of the
  chain of ops that it spares.
  """
  choices = choices or Choices(graph, start, stop)
  bare, everything = choices.flops, int(graph.residual_bytes()[start:stop].sum())
  points = [choices.point()]
  if not bare or not everything:
    return points
  queue = [(-choices.gain(value) / choices.num_bytes(value), value, 0) for value in choices.candidates()]
  heapq.heapify(queue)
  while queue:
    _, value, num_kept = heapq.heappop(queue)
    gain, num_bytes = choices.gain(value), choices.num_bytes(value)
    if gain < _MIN_SHARE * bare or (limit_bytes is not None and choices.saved_bytes + num_bytes > limit_bytes):
      continue
    if num_kept != len(points) - 1:
      heapq.heappush(queue, (-gain / num_bytes, value, len(points) - 1))
      continue
    choices.keep(value)
    points.append(choices.point())
  points = [point for point in points if point.saved_bytes < everything]
  if limit_bytes is not None and limit_bytes < everything:
    return points
  kept = np.unique(np.linspace(0, len(points) - 1, _MAX_POINTS, dtype=int))
  return [*(points[i] for i in kept), CurvePoint(everything, 0.0, False, ())]


class Repeated:
  """The forward ops that a segment repeats in the backward pass, kept up to date as values are saved.

  An op is repeated while an output of its is needed; a value is needed by the backward pass, or by a repeated op.
  """

  def __init__(self, graph: ForwardGraph, start: int, stop: int):
    ops = [op for position in range(start, stop) for op in graph.ops[position]]
    self._producer = {value: op for op in ops for value in op.outputs}
    self._reasons = {value: int(value in graph.residuals) for value in self._producer}
    self._outputs = {}
    self._ops = graph.ops
    self._read: set[int] = set()
    self.flops = 0.0
    for op in reversed(ops):
      self._outputs[op] = sum(self._reasons[value] > 0 for value in op.outputs)
      if self._outputs[op]:
        self.flops += op.flops
        self._read.update(op.inputs)
        for value in self._inputs(op):
          self._reasons[value] += 1

  def _inputs(self, op: ForwardOp) -> set[int]:
    return {value for value in op.inputs if value in self._producer}

  def reads(self, value: int) -> bool:
    """Whether an op that is repeated, as long as nothing is saved, reads a value."""
    return value in self._read

  def flops_at(self, position: int) -> float:
    """FLOPs repeated of one position of the segment."""
    return sum(op.flops for op in self._ops[position] if self._outputs[op])

  def spared(self, value: int) -> float:
    """FLOPs that saving a value would spare, its ancestors' included."""
    flops, _reasons, _outputs = self._without(value)
    return flops

  def save(self, value: int) -> None:
    """Saves a value."""
    flops, reasons, outputs = self._without(value)
    self.flops -= flops
    self._reasons.update(reasons)
    self._outputs.update(outputs)

  def _without(self, value: int) -> tuple[float, dict[int, int], dict[ForwardOp, int]]:
    """What changes when nothing needs a value any more: FLOPs, reasons, needed outputs."""
    if self._reasons[value] <= 0:
      return 0.0, {}, {}
    flops, reasons, outputs = 0.0, {value: 0}, {}
    unneeded = [value]
    while unneeded:
      op = self._producer[unneeded.pop()]
      outputs[op] = outputs.get(op, self._outputs[op]) - 1
      if outputs[op]:
        continue
      flops += op.flops
      for source in self._inputs(op):
        if left := reasons.get(source, self._reasons[source]):  # 0: saved
          reasons[source] = left - 1
          if left == 1:
            unneeded.append(source)
    return flops, reasons, outputs


def _save_candidates(graph: ForwardGraph, start: int, stop: int, bare: float) -> list[int]:
  """Named values with the most FLOPs of their own equation per byte, residuals first among equals."""
  scored = []
  for value, name in enumerate(graph.named):
    if name is None or not start <= name[0] < stop or not graph.value_bytes[value]:
      continue
    flops = graph.flops[name[0]]
    if flops >= _MIN_SHARE * bare:
      scored.append((-flops / graph.value_bytes[value], value not in graph.residuals, value))
  return [value for *_, value in sorted(scored)[:_MAX_CANDIDATES]]


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
