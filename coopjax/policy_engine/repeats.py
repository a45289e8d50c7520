"""Where a region repeats itself: the blocks of an unrolled model, found in its forward graph.

A block is what comes again, op by op with the same FLOPs and bytes, right behind itself. Of all stretches that do so,
the one with the most residual bytes counts first, in its shortest period; then those on either side of it (the stages
of a network, an encoder and a decoder), small ones where their blocks are made as those found. The stretch may begin
anywhere in a block, so the boundaries are put where the fewest bytes cross them. Where that finds little (of a U-Net,
each level has sizes of its own), a block is what comes again primitive by primitive. What most of a block repeats in
turn (the layers of a tower that is called twice) are the blocks.

O(gaps * positions), a gap being the distance between an op and the next one like it: a block needs one op that it does
not have twice.
"""

import collections
import itertools
from collections.abc import Hashable, Sequence

import numpy as np

from coopjax.policy_engine.forward_graph import ForwardGraph

_LEAST_SHARE = 1 / 8  # of the region's residual bytes: a stretch with fewer is not looked for, but
_NEXT_SHARE = 1 / 32  # where its blocks are made of the same primitives as one that is found: a network's last stage
_LITTLE = 1 / 2  # of them, in all stretches
_MOST = 3 / 4  # of a block's


def repeated_blocks(graph: ForwardGraph, as_by_hand: bool = False) -> tuple[int, ...]:
  """Boundaries of the blocks that a region repeats, in order; none where it repeats nothing that counts.

  Each stretch gives both of its ends and all boundaries between.

  Args:
    graph: of the region.
    as_by_hand: of boundaries next to each other that as many bytes cross the last, behind an activation, as people have
      it, which keeps least while a block is differentiated alone; else the first, which keeps least in longer segments.
      Of those that lie apart, behind attention and behind a layer, the ones that leave most at the stretch's ends that
      is made as a block is: of the first layer, a part may have no gradient.
  """
  residuals = np.concatenate([[0], np.cumsum(graph.residual_bytes())])
  same = [tuple((op.flops, *(graph.value_bytes[value] for value in op.outputs)) for op in ops) for ops in graph.ops]
  found = _stretches(graph, residuals, same, as_by_hand)
  if sum(residuals[blocks[-1]] - residuals[blocks[0]] for blocks in found) < _LITTLE * residuals[-1]:
    found = _stretches(graph, residuals, graph.primitives, as_by_hand) or found
  return tuple(sorted({boundary for blocks in found for boundary in blocks}))


def _stretches(
  graph: ForwardGraph, residuals: np.ndarray, kinds: Sequence[Hashable], as_by_hand: bool
) -> list[list[int]]:
  """The boundaries of each stretch whose positions come again by these kinds; `residuals` are the bytes before each."""
  numbers: dict[Hashable, int] = {}
  keys = np.array([numbers.setdefault(kind, len(numbers)) for kind in kinds])
  crossed, known = graph.crossed_bytes(), set[frozenset]()

  def made_of(start: int, period: int) -> frozenset:
    return frozenset(collections.Counter(graph.primitives[start : start + period]).items())

  def num_made_alike(blocks: list[int], period: int) -> int:
    """Pieces as long as a block, next to a stretch, that are made of what its blocks are made of."""
    kind, starts = made_of(blocks[0], period), (blocks[0] - period, blocks[-1])
    return sum(0 <= start <= graph.num_positions - period and made_of(start, period) == kind for start in starts)

  def is_mostly(one: int, other: int, period: int) -> bool:
    return (keys[one : one + period] == keys[other : other + period]).mean() >= _MOST

  def is_repetitive(start: int, stop: int) -> bool:
    found, of_all = _longest(keys, residuals, start, stop), _held(residuals, start, stop)
    return found is not None and _held(residuals, *found[:2]) >= max(_LEAST_SHARE, _MOST * of_all)

  stretches, pieces = list[list[int]](), [(0, graph.num_positions)]
  while pieces:
    start, stop = pieces.pop()
    found = _longest(keys, residuals, start, stop) if _held(residuals, start, stop) >= _NEXT_SHARE else None
    if found is None:
      continue
    is_known = made_of(found[0], found[2]) in known
    if _held(residuals, *found[:2]) < (_NEXT_SHARE if is_known else _LEAST_SHARE):
      continue
    first, last, period = found
    num_blocks = (last - first) // period
    starts = range(first, last - num_blocks * period + 1)
    # The first layer, a part of which may have no gradient, is a block, too.
    behind_it = [at for at in starts if at - period >= start and is_mostly(at - period, at, period)]
    inner = np.array(behind_it or starts)[:, None] + period * np.arange(num_blocks + 1)
    passed = crossed[inner].sum(axis=1)
    ties = np.flatnonzero(passed == passed.min()).tolist()
    at = ties[0]
    if as_by_hand:
      lasts = [tie for tie, following in itertools.zip_longest(ties, ties[1:]) if following != tie + 1]
      at = max(lasts, key=lambda tie: num_made_alike(inner[tie].tolist(), period)) if len(lasts) > 1 else lasts[0]
    blocks = inner[at].tolist()
    if behind_it:
      blocks.insert(0, blocks[0] - period)
    pieces += [(start, blocks[0]), (blocks[-1], stop)]
    if is_repetitive(*blocks[:2]):
      pieces += itertools.pairwise(blocks)
    else:
      stretches.append(blocks)
      known.add(made_of(first, period))
  return stretches


def _held(residuals: np.ndarray, start: int, stop: int) -> float:
  """The share of all residual bytes that a piece makes; 0 where there are none."""
  return (residuals[stop] - residuals[start]) / max(1, residuals[-1])


def _longest(keys: np.ndarray, residuals: np.ndarray, start: int, stop: int) -> tuple[int, int, int] | None:
  """The stretch of a piece that repeats itself and has the most residual bytes: its ends and its period."""
  keys = keys[start:stop]
  order = np.argsort(keys, kind="stable")
  gaps = np.diff(order)[np.diff(keys[order]) == 0]
  best, most = None, 0
  for period in np.unique(gaps[2 * gaps <= len(keys)]).tolist():
    differs = np.flatnonzero(np.concatenate([[True], keys[:-period] != keys[period:], [True]]))
    lengths = np.diff(differs) - 1
    firsts = start + differs[:-1]
    lasts = firsts + lengths + period
    num_bytes = residuals[lasts] - residuals[firsts]
    at = int(lengths.argmax())
    if not num_bytes[at] and num_bytes.max() >= _LITTLE * (residuals[stop] - residuals[start]):
      at = int(num_bytes.argmax())  # the longest is of what has no gradient
    if lengths[at] >= period and num_bytes[at] > most:
      best, most = (int(firsts[at]), int(lasts[at]), period), num_bytes[at]
  return best
