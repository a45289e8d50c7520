"""Checkpoints around checkpoints: below what the boundaries between segments take.

One level of segments keeps what passes between them for the whole backward pass. A checkpoint around some of them keeps
only its own input; when its turn comes it is run forward once more, and what passes between its pieces is there only
until it is done. Pieces may hold pieces in turn, down to a chain that keeps nothing and starts anew for every segment.
With room for M bytes, the fewest FLOPs to differentiate segments [i, j) whose input is there are

    cost(i, j, M) = min over m of  forward(i, m) + cost(m, j, M - out(i, m)) + cost(i, m, M),
    cost(i, i+1, M) = repeated(i) if inside(i) <= M,

the recursion of Griewank and Walther ("Revolve", 2000, section 2) with bytes and FLOPs of each segment in place of unit
steps. At the top forward(i, m) is free: that is the forward pass. Solved on a grid of bytes for every M at once,
O(segments^3 * grid).

Weaknesses: nothing is saved by name inside (save what fits, and nothing need be nested); what leaves a group counts as
read until the end.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from coopjax.policy_engine.decisions import Segment

MAX_PIECES = 48
_GRID = 128
_LEAST_STEP = 0.03  # of the forward FLOPs, between one nesting and the next
_MAX_REPEATED = 4.0  # times the forward FLOPs: the program to compile is as much longer


@dataclasses.dataclass(frozen=True, eq=False)
class Chain:
  """The segments of a region, as they would be without nesting.

  Attributes:
    bounds: of the segments.
    out_bytes: ``[i, j]``: made in segments [i, j) and read behind them.
    inside_bytes: per segment, held while it is repeated and differentiated.
    forward_flops: per segment, of one run.
    repeated_flops: per segment, of what a checkpoint around it repeats.
    plain_bytes: per segment that is not under a checkpoint, what it keeps; -1 for one that is.
    is_open: the last segment is not under a checkpoint, but could be.
  """

  bounds: tuple[int, ...]
  out_bytes: np.ndarray
  inside_bytes: np.ndarray
  forward_flops: np.ndarray
  repeated_flops: np.ndarray
  plain_bytes: np.ndarray
  is_open: bool

  @property
  def num_segments(self) -> int:
    return len(self.bounds) - 1

  @functools.cached_property
  def at(self) -> dict[int, int]:
    """Segments by the position where they start; their number for the end of the last."""
    return {position: i for i, position in enumerate(self.bounds)}

  def kept_bytes(self, start: int, stop: int) -> int:
    """Of segments [start, stop), once they have run forward."""
    return self._kept_bytes[start][stop]

  @functools.cached_property
  def _kept_bytes(self) -> list[list[int]]:
    plain = np.concatenate([[0], np.cumsum(np.maximum(self.plain_bytes, 0))])
    return (self.out_bytes + (plain - plain[:, np.newaxis])).astype(np.int64).tolist()


@dataclasses.dataclass(frozen=True)
class Nesting:
  """One way to nest a chain.

  Attributes:
    segments: at the top.
    peak_bytes: of the backward pass.
    kept_bytes: when the forward pass ends.
    flops: repeated.
    is_closed: the last segment is under a checkpoint, where it could be without.
  """

  segments: tuple[Segment, ...]
  peak_bytes: int
  kept_bytes: int
  flops: float
  is_closed: bool


def nestings(chain: Chain) -> Iterator[Nesting]:
  """The cheapest nestings from much room to the least that is reasonable; those without a group left out."""
  if 3 <= chain.num_segments <= MAX_PIECES:
    solver = _Solver(chain)
    yield from solver.found(is_closed=False)
    if chain.is_open:
      yield from solver.found(is_closed=True)


def nested_by_hand(chain: Chain, groups: Sequence[tuple[int, int]]) -> Nesting:
  """Groups of segments ``[i, j)`` as people nest them: a checkpoint around each, and around each segment in it, the
  last one, too; the other segments as they are.
  """
  segments, at = list[Segment](), dict(groups)
  start, flops = 0, 0.0
  while start < chain.num_segments:
    stop = at.get(start, start + 1)
    inner = tuple(Segment(chain.bounds[i], chain.bounds[i + 1], True) for i in range(start, stop) if start in at)
    segments.append(Segment(chain.bounds[start], chain.bounds[stop], bool(inner), inner=inner))
    if inner:
      flops += float(chain.forward_flops[start : stop - 1].sum() + chain.repeated_flops[start:stop].sum())
    start = stop
  kept_bytes = sum(_kept_bytes(chain, segment) for segment in segments[:-1])
  return Nesting(tuple(segments), _peak_bytes(chain, segments), kept_bytes, flops, bool(segments[-1].inner))


class _Solver:
  def __init__(self, chain: Chain):
    self._chain = chain
    num = chain.num_segments
    kept_bytes = [[chain.kept_bytes(i, j) for j in range(num + 1)] for i in range(num)]
    before_bytes = np.concatenate([[0], np.cumsum(np.diagonal(kept_bytes, 1))])[:num]
    unit = max(float((before_bytes + chain.inside_bytes).max()) / _GRID, 1.0)
    self._inside = np.ceil(chain.inside_bytes / unit).astype(int)
    self._kept = np.triu(np.ceil(np.array(kept_bytes) / unit), 1).astype(int)
    self._before = np.concatenate([[0.0], np.cumsum(chain.forward_flops)])
    self._is_plain = chain.plain_bytes >= 0
    if chain.is_open:
      self._is_plain[-1] = False
    self._cost = np.full((num, num + 1, _GRID + 1), np.inf)  # of what is under a checkpoint, by room
    self._split = np.zeros((num, num + 1, _GRID + 1), int)  # of groups: where the first of their pieces ends
    for start in map(int, np.flatnonzero(~self._is_plain)):
      self._cost[start, start + 1] = self._leaf(start, chain.repeated_flops[start])
    for length in range(2, num + 1):
      self._solve(np.arange(num - length + 1), length)

  def _solve(self, start: np.ndarray, length: int) -> None:
    """The groups of so many segments that begin there; one that holds a segment without a checkpoint costs infinity."""
    stop = start + length
    rows, middle = start[:, np.newaxis], start[:, np.newaxis] + np.arange(1, length)
    first = (self._before[middle] - self._before[rows])[..., np.newaxis] + self._cost[rows, middle]
    cost, choice = _cheapest(first, self._cost[middle, stop[:, np.newaxis]], self._kept[rows, middle])
    self._cost[start, stop], self._split[start, stop] = cost, choice + start[:, np.newaxis] + 1

  def _solve_top(self, end: int) -> tuple[np.ndarray, np.ndarray]:
    """At the top, where segments from `end` on are not under checkpoints: the fewest FLOPs by room, and where the node
    ends that begins at a segment.
    """
    num = self._chain.num_segments
    top, first = np.zeros((num + 1, _GRID + 1)), np.zeros((num, _GRID + 1), int)
    for start in reversed(range(num)):
      is_alone = self._is_plain[start] or start >= end
      stop = np.arange(start + 1, start + 2 if is_alone else end + 1)
      nodes = self._leaf(start, 0.0)[np.newaxis] if is_alone else self._cost[start, stop]
      top[start], choice = _cheapest(nodes, top[stop], np.where(stop < num, self._kept[start, stop], 0))
      first[start] = choice + start + 1
    return top[0], first

  def _leaf(self, segment: int, flops: float) -> np.ndarray:
    return np.where(np.arange(_GRID + 1) >= self._inside[segment], flops, np.inf)

  def found(self, is_closed: bool) -> Iterator[Nesting]:
    end = self._chain.num_segments - (self._chain.is_open and not is_closed)
    flops, first = self._solve_top(end)
    last, limit = None, _MAX_REPEATED * self._before[-1]
    for room in reversed(range(_GRID + 1)):
      if flops[room] > limit:
        return
      is_least = room == 0 or flops[room - 1] > limit
      if last is not None and not is_least and flops[room] - last < _LEAST_STEP * self._before[-1]:
        continue
      last = flops[room]
      segments = tuple(self._nodes(first, room, end))
      if any(segment.inner for segment in segments):
        kept = sum(_kept_bytes(self._chain, segment) for segment in segments[:-1])
        yield Nesting(segments, _peak_bytes(self._chain, segments), kept, float(flops[room]), is_closed)

  def _nodes(self, first: np.ndarray, room: int, end: int) -> Iterator[Segment]:
    start = 0
    while start < self._chain.num_segments:
      stop = int(first[start, room])
      yield self._node(start, stop, room, is_wrapped=not self._is_plain[start] and start < end)
      room -= int(self._kept[start, stop])
      start = stop

  def _node(self, start: int, stop: int, room: int, is_wrapped: bool = True) -> Segment:
    bounds = self._chain.bounds
    pieces = self._pieces(start, stop, room) if stop > start + 1 else ()
    return Segment(bounds[start], bounds[stop], is_wrapped, inner=tuple(pieces))

  def _pieces(self, start: int, stop: int, room: int) -> Iterator[Segment]:
    """Of a group. The last one is repeated with the group."""
    while stop > start + 1:
      middle = int(self._split[start, stop, room])
      yield self._node(start, middle, room)
      room -= int(self._kept[start, middle])
      start = middle
    yield self._node(start, stop, room, is_wrapped=False)


def _peak_bytes(chain: Chain, segments: Sequence[Segment]) -> int:
  held, peak = 0, 0
  for segment in segments:
    inside = _peak_bytes(chain, segment.inner) if segment.inner else int(chain.inside_bytes[chain.at[segment.start]])
    peak = max(peak, held + inside)
    held += _kept_bytes(chain, segment)
  return peak


def _kept_bytes(chain: Chain, segment: Segment) -> int:
  return chain.kept_bytes(chain.at[segment.start], chain.at[segment.stop])


def _cheapest(first: np.ndarray, then: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The least cost by room, and the option with it: `first` with all of the room, `then` without what is kept for it.

  Args:
    first: ``[..., options, rooms]``.
    then: same.
    kept: ``[..., options]``.
  """
  room = np.arange(_GRID + 1) - kept[..., np.newaxis]
  cost = first + np.where(room >= 0, np.take_along_axis(then, np.maximum(room, 0), -1), np.inf)
  option = cost.argmin(-2)
  return np.take_along_axis(cost, option[..., np.newaxis, :], -2)[..., 0, :], option
