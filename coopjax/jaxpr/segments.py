"""Where to cut a region into segments, and what to save inside each.

A wrapped segment keeps its inputs and the values saved by name, and repeats the rest of its forward work when its
cotangents arrive. With cuts c_0 < ... < c_k the backward pass holds at most

    max_i ( sum_{j<i} (out_j + saved_j) + residuals_i )

bytes: `out_j` of the values that leave segment j (each counted once, where it is made), `saved_j` of those saved in
it, and every residual of the one segment being differentiated. The last segment is never wrapped: its recompute
would follow its forward at once.

`cut` minimizes sum(out_j) under a limit on residuals_i, for a ladder of limits: the classic O(m^2) dynamic program
over m candidate positions (Griewank and Walther, "Revolve", 2000, treat uniform chains; Chen et al., "Training Deep
Nets with Sublinear Memory Cost", 2016, search the same limit greedily). `save_curve` then trades bytes against
recompute inside one segment: values in order of FLOPs spared per byte, chains of recomputed ancestors included;
`climb` goes up the curves of all segments together. Weakness: a value whose saving pays only together with another
one's is not found.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import heapq
import itertools

import numpy as np

from coopjax.jaxpr.repeats import repeated_blocks
from coopjax.jaxpr.residuals import ForwardGraph, ForwardOp, Value

_MAX_CUTS = 256
_LIMIT_RATIO = 1.25  # of one limit to the next, from the smallest up: one layer more in a model moves none of them
_MAX_SHARES = 6  # the whole, halves, thirds ... are limits, too: few segments had better be even
_MAX_CANDIDATES = 64
_MAX_POINTS = 8
_MANY_CURVES = 8
_LEAST_STEP = 1 / 8  # of a curve's bytes
_MIN_SHARE = 1e-3  # of a segment's FLOPs: what spares less is not worth a saved value


@dataclasses.dataclass(frozen=True)
class Segment:
  """Positions ``[start, stop)`` of a region.

  Attributes:
    is_wrapped: runs under `jax.checkpoint`; otherwise as the user wrote it.
    saved: the values that the checkpoint keeps besides its inputs.
    offloaded: those that it keeps in the host's memory: made in the segment, before it, or (position -1) carried into
      the step of a scan.
  """

  start: int
  stop: int
  is_wrapped: bool = False
  saved: tuple[Value, ...] = ()
  offloaded: tuple[Value, ...] = ()


@dataclasses.dataclass(frozen=True)
class CurvePoint:
  """One choice for a segment.

  Attributes:
    saved_bytes: kept on the device beyond the segment's inputs; negative where some of these are offloaded.
    flops: repeated in the backward pass, and what could be computed while it waits for the host.
    is_wrapped: as in `Segment`.
    saved: as in `Segment`.
    offloaded: as in `Segment`.
    waiting_flops: the part of `flops` that is waiting.
  """

  saved_bytes: int
  flops: float
  is_wrapped: bool
  saved: tuple[Value, ...]
  offloaded: tuple[Value, ...] = ()
  waiting_flops: float = 0.0


def cut(graph: ForwardGraph, alone: frozenset[int] = frozenset()) -> list[tuple[int, ...]]:
  """Segmentations of a region, from one segment to the finest useful one.

  Args:
    graph: the region.
    alone: positions that must stand in a segment of their own (loops with a policy of their own, side effects).

  Returns:
    Distinct tuples of boundaries ``(0, ..., num_positions)``, one of them with every block of a repetitive region in a
    segment of its own.
  """
  blocks = repeated_blocks(graph)
  positions = _candidate_cuts(graph, alone, blocks)
  residuals = np.concatenate([[0], np.cumsum(graph.residual_bytes())])[positions]
  inside = residuals[None, :] - residuals[:, None]
  out = _out_bytes(graph, positions)
  is_allowed, is_block = _allowed(positions, alone), np.isin(positions, blocks)
  steps = inside[np.arange(len(positions) - 1), np.arange(1, len(positions))]
  total = int(residuals[-1])
  smallest = max(1, int(steps.max(initial=1)), total // 512)
  found: dict[tuple[int, ...], None] = {}
  num_limits = int(np.ceil(np.log(max(total, smallest) / smallest) / np.log(_LIMIT_RATIO)))
  limits = [*(smallest * np.ceil(_LIMIT_RATIO**np.arange(num_limits))), *(total / np.arange(1, _MAX_SHARES + 1))]
  for limit in sorted(limit for limit in limits if limit >= smallest) or [smallest]:
    found[_shortest_chain(positions, inside <= limit + 1e-6 * limit, out, is_allowed, is_block)] = None
  if blocks:
    kept = np.flatnonzero(is_block | np.isin(positions, list(_forced_cuts(graph, alone))))
    part = np.ix_(kept, kept)
    pieces = np.flatnonzero(is_block[kept[:-1]] & is_block[kept[1:]])
    limit = inside[part][pieces, pieces + 1].max()
    found[_shortest_chain(positions[kept], inside[part] <= limit, out[part], is_allowed[part], is_block[kept])] = None
  return list(found)


def _forced_cuts(graph: ForwardGraph, alone: frozenset[int]) -> frozenset[int]:
  return frozenset({0, graph.num_positions} | alone | {position + 1 for position in alone})


def _candidate_cuts(graph: ForwardGraph, alone: frozenset[int], blocks: Sequence[int]) -> np.ndarray:
  """Every position in small regions; else those between blocks, and the cheapest to cross in each of equal shares of
  residual bytes."""
  num = graph.num_positions
  forced = {*_forced_cuts(graph, alone), *blocks}
  if num <= _MAX_CUTS:
    return np.arange(num + 1)
  crossed = graph.crossed_bytes()
  share = np.concatenate([[0], np.cumsum(graph.residual_bytes() + 1)])
  bucket = (share * (_MAX_CUTS - 1)) // share[-1]
  best = {int(b): int(min(np.flatnonzero(bucket == b), key=crossed.__getitem__)) for b in np.unique(bucket)}
  return np.array(sorted(forced | set(best.values())))


def _out_bytes(graph: ForwardGraph, positions: np.ndarray) -> np.ndarray:
  """``[i, j]``: bytes made in ``[positions[i], positions[j])`` that a later position reads."""
  num = len(positions)
  difference = np.zeros((num + 1, num + 1), np.int64)
  for made, read, num_bytes in graph.crossing:
    last_row = np.searchsorted(positions, made, side="right")  # rows that start at or before `made`
    first = np.searchsorted(positions, made + 1)               # columns that end behind `made` ...
    last = np.searchsorted(positions, read, side="right")      # ... and at or before `read`
    if first < last:
      difference[0, first] += num_bytes
      difference[0, last] -= num_bytes
      difference[last_row, first] -= num_bytes
      difference[last_row, last] += num_bytes
  return np.cumsum(np.cumsum(difference, axis=0), axis=1)[:num, :num]


def _allowed(positions: np.ndarray, alone: frozenset[int]) -> np.ndarray:
  """``[i, j]``: a segment may span these cuts without swallowing a position that must stand alone."""
  before = np.array([sum(position < p for position in alone) for p in positions], np.int64)
  holds = before[None, :] - before[:, None]
  length = positions[None, :] - positions[:, None]
  return (length > 0) & ((holds == 0) | (length == 1))


def _shortest_chain(positions: np.ndarray, fits: np.ndarray, out: np.ndarray, is_allowed: np.ndarray,
                    is_block: np.ndarray) -> tuple[int, ...]:
  """Boundaries of the segmentation with the fewest bytes between segments; fewer segments break ties, then cuts between
  blocks."""
  num = len(positions)
  length = out.astype(np.float64)
  length[:, -1] = 0.0
  length += 1 / (2 * num)  # all of it less than a byte
  adjacent = np.eye(num, k=1, dtype=bool)
  length[~(is_allowed & (fits | adjacent))] = np.inf
  best, origin = np.full(num, np.inf), np.zeros(num, np.int64)
  best[0] = 0.0
  for j in range(1, num):
    through = best[:j] + length[:j, j]
    nearest = np.flatnonzero(through == through.min())
    origin[j] = int(nearest[is_block[nearest].argmax()])
    best[j] = through[origin[j]]
  chain = [num - 1]
  while chain[-1] > 0:
    chain.append(int(origin[chain[-1]]))
  return tuple(int(positions[i]) for i in reversed(chain))


def bytes_between(graph: ForwardGraph, bounds: Sequence[int]) -> np.ndarray:
  """Per segment, the bytes made in it that a later one reads."""
  out = np.zeros(len(bounds) - 1, np.int64)
  for made, read, num_bytes in graph.crossing:
    segment = int(np.searchsorted(bounds, made, side="right")) - 1
    if read >= bounds[segment + 1]:
      out[segment] += num_bytes
  return out


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

  def num_bytes(self, value: int) -> int:
    """What keeping it takes."""
    return self.graph.value_bytes[value]

  def gain(self, value: int) -> float:
    """FLOPs that keeping it would spare now."""
    return self.repeated.spared(value)

  def keep(self, value: int) -> None:
    """Keeps it."""
    self.repeated.save(value)
    self._saved.append(self.graph.named[value])
    self.saved_bytes += self.num_bytes(value)

  def point(self) -> CurvePoint:
    """As things stand."""
    return CurvePoint(self.saved_bytes, self.flops, True, tuple(sorted(self._saved)))


def save_curve(graph: ForwardGraph, start: int, stop: int, limit_bytes: int | None = None,
               choices: Choices | None = None) -> list[CurvePoint]:
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
    flops, reasons, outputs = self._without(value)
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
    while len(hull) > 1 and not _is_left_turn(*hull[-2:], point):
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
