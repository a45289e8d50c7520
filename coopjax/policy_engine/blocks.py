"""Layers of straight-line code as a person sees them: blocks that a region repeats (`repeats`), or that a function of
the user's makes (`calls`); and the same by twos, threes and so on.
"""

import collections
import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from jax.extend import core

from coopjax.policy_engine import by_hand
from coopjax.policy_engine.calls import repeated_calls
from coopjax.policy_engine.decisions import Value
from coopjax.policy_engine.forward_graph import ForwardGraph
from coopjax.policy_engine.repeats import repeated_blocks
from coopjax.policy_engine.save_curves import CurvePoint, SavingRegion, shifted

_MOSTLY = 3 / 4  # of a block, that the first and the last one have in common with it; and that is as long


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
  """A layer of straight-line code, ``[position, stop)`` of the region; `by_hand.Layer` has the other words. Its names
  come with the values.
  """

  position: int
  stop: int
  names: dict[str, frozenset[Value]]
  graph: ForwardGraph
  kind: int  # blocks that are alike have the same, and choose alike
  known: dict[tuple[int, frozenset[Value]], CurvePoint]  # of all blocks of the graph
  offloading: by_hand.Offloading | None = None

  def saving(self, names: Iterable[str], /) -> CurvePoint:
    """As of `by_hand.Layer`."""
    saved = by_hand.values_of(self.names, names)
    here = frozenset((at - self.position, index) for at, index in saved)
    key = self.kind, here
    if key not in self.known:
      self.known[key] = shifted(self._region.choice(saved), -self.position)
    return shifted(self.known[key], self.position)

  @functools.cached_property
  def _region(self) -> SavingRegion:
    return SavingRegion(self.graph, self.position, self.stop)


def ways_to_tell_blocks(
  jaxpr: core.Jaxpr, graph: ForwardGraph, alone: AbstractSet[int], is_layer: bool = False
) -> Iterator[list[Block]]:
  """The blocks that a region repeats, once for each way to tell them; without those that hold a position which must
  stand alone.

  Args:
    jaxpr: the region.
    graph: of the region.
    alone: positions.
    is_layer: a region most of which does not repeat itself is a block.
  """
  ways, residual_bytes = repeated_calls(jaxpr, graph), graph.residual_bytes()
  held = lambda blocks: sum(residual_bytes[start:stop].sum() for start, stop in blocks)
  pieces = _pieces(graph)
  if is_layer and not alone and 2 * held(pieces) < residual_bytes.sum():
    pieces = [(0, graph.num_positions)]
  for blocks in (pieces, _merged(graph)):
    if not any(_are_much_the_same(blocks, known) for known in ways):
      ways.append(blocks)
  for blocks in ways:
    apart = [block for block in blocks if alone.isdisjoint(range(*block))]
    others = [gap for gap in _large_gaps(apart, residual_bytes) if alone.isdisjoint(range(*gap))]
    for told in filter(None, (apart, others and sorted([*apart, *others]))):
      yield blocks_of(jaxpr, graph, told)


def _are_much_the_same(blocks: Sequence[tuple[int, int]], calls: Sequence[tuple[int, int]]) -> bool:
  """Whether what is told in two ways differs by its ends alone, where people's own functions have them."""
  common = lambda one, other: min(one[1], other[1]) - max(one[0], other[0])
  is_like = lambda one, other: common(one, other) >= _MOSTLY * max(one[1] - one[0], other[1] - other[0])
  return len(blocks) == len(calls) and all(map(is_like, blocks, calls))


def _large_gaps(blocks: Sequence[tuple[int, int]], residual_bytes: np.ndarray) -> list[tuple[int, int]]:
  """What lies between blocks and is about as long and holds as much as one of them does: a model's one attention
  between convolutions is a block to a person, too.
  """
  gaps = [(end, start) for (_, end), (start, _) in itertools.pairwise(blocks) if end < start]
  held = lambda span: residual_bytes[slice(*span)].sum()
  length = lambda span: span[1] - span[0]
  is_as_large = lambda gap: (
    held(gap) >= statistics.median(map(held, blocks))
    and length(gap) >= _MOSTLY * statistics.median(map(length, blocks))
  )
  return list(filter(is_as_large, gaps))


def blocks_of(jaxpr: core.Jaxpr, graph: ForwardGraph, spans: Sequence[tuple[int, int]]) -> list[Block]:
  """These positions ``[start, stop)`` of a region as blocks."""
  named = by_hand.named_values(jaxpr, graph)
  kinds, known = dict[tuple, int](), dict[tuple[int, frozenset[Value]], CurvePoint]()
  return [
    Block(
      start,
      stop,
      {name: frozenset(v for v in values if start <= v[0] < stop) for name, values in named.items()},
      graph,
      kinds.setdefault(graph.signature(start, stop), len(kinds)),
      known,
    )
    for start, stop in spans
  ]


def _pieces(graph: ForwardGraph) -> list[tuple[int, int]]:
  """Where blocks start and stop: those that come again, and what is next to them and much the same (the first, whose
  input is a constant).
  """
  bounds = repeated_blocks(graph, as_by_hand=True)
  pieces = list(itertools.pairwise((0, *bounds, graph.num_positions))) if bounds else []
  lengths = [stop - start for start, stop in pieces]
  made_of = [collections.Counter(graph.primitives[start:stop]) for start, stop in pieces]
  beside = [[j for j in (i - 1, i + 1) if 0 <= j < len(pieces)] for i in range(len(pieces))]
  is_alike = lambda i, j: lengths[i] == lengths[j] and (made_of[i] & made_of[j]).total() >= _MOSTLY * lengths[i]
  again = {i for i, others in enumerate(beside) if any(is_alike(i, j) for j in others)}

  def is_like(i: int, j: int) -> bool:
    return j in again and made_of[j] <= made_of[i] and lengths[i] < 2 * lengths[j]

  blocks = [piece for i, piece in enumerate(pieces) if i in again or any(is_like(i, j) for j in beside[i])]
  made = {graph.primitives[start:stop] for start, stop in blocks}
  return [_without_ends(piece, made, graph) for piece in blocks]


def _merged(graph: ForwardGraph) -> list[tuple[int, int]]:
  """Blocks of what comes again, merged: of a network, a convolution with its norm comes again, and a block has two of
  them and what skips both. They need not lie next to each other (the first of each stage has one more); none where
  nothing is merged.
  """
  bounds, crossed = repeated_blocks(graph, as_by_hand=True), graph.crossed_bytes()
  passed = [0, *crossed[list(bounds)].tolist(), 0]
  # A level of bytes goes on over boundaries that as many cross; what rises to it and falls behind it is no end.
  level = list[int]()
  for i in range(1, len(passed) - 1):
    before = next((each for each in reversed(passed[1:i]) if each != passed[i]), math.inf)
    behind = next((each for each in passed[i + 1 : -1] if each != passed[i]), math.inf)
    if passed[i] < before and passed[i] < behind:
      level.append(bounds[i - 1])
  if len(level) < 2 or len(level) == len(bounds):
    return []
  ends = []
  for end in level:
    while end + 1 < graph.num_positions and crossed[end + 1] == crossed[end]:
      end += 1
    ends.append(end)
  pieces = list(itertools.pairwise(sorted({0, *ends, graph.num_positions})))
  made_of = [collections.Counter(graph.primitives[start:stop]) for start, stop in pieces]

  def is_again(i: int) -> bool:
    others = (made for j, made in enumerate(made_of) if j != i)
    return any((made_of[i] & made).total() >= _MOSTLY * made.total() for made in others)

  blocks = [piece for i, piece in enumerate(pieces) if is_again(i)]
  made = {graph.primitives[start:stop] for start, stop in blocks}
  return [_without_ends(piece, made, graph) for piece in blocks]


def _without_ends(piece: tuple[int, int], made: Iterable[tuple[str, ...]], graph: ForwardGraph) -> tuple[int, int]:
  """The part of the first block that is made as another is, without what a network does before its blocks; of the last,
  without what it does behind them.
  """
  start, stop = piece
  ours = graph.primitives[start:stop]
  if start == 0:
    return stop - _in_common(ours[::-1], [theirs[::-1] for theirs in made]), stop
  return (start, start + _in_common(ours, made)) if stop == graph.num_positions else piece


def _in_common(ours: tuple[str, ...], made: Iterable[tuple[str, ...]]) -> int:
  """How far a block goes as the one does that it follows furthest, or all the way if that is not most of that one."""
  follows = lambda theirs: sum(itertools.takewhile(bool, (a == b for a, b in zip(ours, theirs, strict=False))))
  found = [(common, len(theirs)) for theirs in made if theirs != ours and (common := follows(theirs))]
  common, size = max(found, default=(0, 1))
  return common if common >= _MOSTLY * size else len(ours)


def merged_blocks(
  jaxpr: core.Jaxpr, graph: ForwardGraph, blocks: Sequence[Block]
) -> Iterator[tuple[list[Block], list[by_hand.HandRung]]]:
  """The same blocks by twos, threes and so on, where that comes out even, with products saved in them: what a person
  takes for one block may come again inside of it.
  """
  for groups in grouped(blocks):
    merged = blocks_of(jaxpr, graph, [(group[0].position, group[-1].stop) for group in groups])
    points = {frozenset([name]): by_hand.saving(merged, [name]) for name in sorted(by_hand.PRODUCTS)}
    yield merged, list(by_hand.rungs_of(merged, points))


def grouped(blocks: Sequence[Block]) -> Iterator[list[tuple[Block, ...]]]:
  """Blocks by twos, threes and so on, where that comes out even and those of a group lie next to each other."""
  for size in range(2, len(blocks) // 2 + 1):
    groups = list(itertools.batched(blocks, size))
    if len(groups[-1]) == size and all(a.stop == b.position for group in groups for a, b in itertools.pairwise(group)):
      yield groups
