"""Where to cut a region into segments.

A wrapped segment keeps its inputs and the values saved by name, and repeats the rest of its forward work when its
cotangents arrive. With cuts c_0 < ... < c_k the backward pass holds at most

    max_i ( sum_{j<i} (out_j + saved_j) + residuals_i )

bytes: `out_j` of the values that leave segment j (each counted once, where it is made), `saved_j` of those saved in
it, and every residual of the one segment being differentiated. The last segment is never wrapped: its recompute
would follow its forward at once.

`cut` minimizes sum(out_j) under a limit on residuals_i, for a ladder of limits: the classic O(m^2) dynamic program
over m candidate positions (Griewank and Walther, "Revolve", 2000, treat uniform chains; Chen et al., "Training Deep
Nets with Sublinear Memory Cost", 2016, search the same limit greedily). What each keeps inside, `save_curves` says;
below sum(out_j), `nesting` goes.
"""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from coopjax.policy_engine.forward_graph import ForwardGraph
from coopjax.policy_engine.repeats import repeated_blocks
from coopjax.policy_engine.save_curves import SavingRegion

_MAX_CUTS = 256
_LIMIT_RATIO = 1.25  # of one limit to the next, from the smallest up: one layer more in a model moves none of them
_PART_OF_A_BLOCK = 0.1  # of a region's FLOPs: what is less is no block of its own
_MAX_SHARES = 6  # the whole, halves, thirds ... are limits, too: few segments had better be even


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
  out = out_bytes(graph, positions)
  is_allowed, is_block = _allowed(positions, alone), np.isin(positions, blocks)
  steps = inside[np.arange(len(positions) - 1), np.arange(1, len(positions))]
  total = int(residuals[-1])
  smallest = max(1, int(steps.max(initial=1)), total // 512)
  found: dict[tuple[int, ...], None] = {}
  num_limits = int(np.ceil(np.log(max(total, smallest) / smallest) / np.log(_LIMIT_RATIO)))
  limits = [*(smallest * np.ceil(_LIMIT_RATIO ** np.arange(num_limits))), *(total / np.arange(1, _MAX_SHARES + 1))]
  for limit in sorted(limit for limit in limits if limit >= smallest) or [smallest]:
    found[_shortest_chain(positions, inside <= limit + 1e-6 * limit, out, is_allowed, is_block)] = None
  if blocks:
    kept = np.flatnonzero(is_block | np.isin(positions, list(_forced_cuts(graph, alone))))
    part = np.ix_(kept, kept)
    pieces = np.flatnonzero(is_block[kept[:-1]] & is_block[kept[1:]])
    limit = inside[part][pieces, pieces + 1].max(initial=0)  # none is whole where each holds an effect
    found[_shortest_chain(positions[kept], inside[part] <= limit, out[part], is_allowed[part], is_block[kept])] = None
  return list(found)


def between_blocks(graph: ForwardGraph, handed_on: Iterable[tuple[int, int]]) -> tuple[int, ...]:
  """Where no more passes than the region is handed on: between attention and feed-forward part of a layer, where people
  put checkpoints of their own.

  Args:
    graph: the region, of a turn of a loop.
    handed_on: bytes of what one turn hands on to the next, and the last position that reads it.

  Returns:
    Bounds of the blocks from 0 on; behind the last one is at most a little that is no block: what a turn tells of its
    result.
  """
  passed = graph.crossed_bytes()
  for num_bytes, last_read in handed_on:
    passed[: last_read + 1] += num_bytes
  flops = np.concatenate([[0.0], np.cumsum(graph.flops)])
  least = _PART_OF_A_BLOCK * flops[-1]
  bounds = [0]
  for position in (*np.flatnonzero(passed[:-1] <= passed[0]).tolist(), graph.num_positions):
    if flops[position] - flops[bounds[-1]] >= least > 0:
      bounds.append(position)
  return tuple(bounds)


def _forced_cuts(graph: ForwardGraph, alone: frozenset[int]) -> frozenset[int]:
  return frozenset({0, graph.num_positions} | alone | {position + 1 for position in alone})


def _candidate_cuts(graph: ForwardGraph, alone: frozenset[int], blocks: Sequence[int]) -> np.ndarray:
  """Every position in small regions; else those between blocks, and the cheapest to cross in each of equal shares of
  residual bytes.
  """
  num = graph.num_positions
  forced = {*_forced_cuts(graph, alone), *blocks}
  if num <= _MAX_CUTS:
    return np.arange(num + 1)
  crossed = graph.crossed_bytes()
  share = np.concatenate([[0], np.cumsum(graph.residual_bytes() + 1)])
  bucket = (share * (_MAX_CUTS - 1)) // share[-1]
  best = {int(b): int(min(np.flatnonzero(bucket == b), key=crossed.__getitem__)) for b in np.unique(bucket)}
  return np.array(sorted(forced | set(best.values())))


def out_bytes(graph: ForwardGraph, positions: np.ndarray) -> np.ndarray:
  """``[i, j]``: bytes made in ``[positions[i], positions[j])`` that a later position reads."""
  num = len(positions)
  made, read, num_bytes = graph.crossing.T
  last_row = np.searchsorted(positions, made, side="right")  # rows that start at or before `made`
  first = np.searchsorted(positions, made + 1)  # columns that end behind `made` ...
  last = np.searchsorted(positions, read, side="right")  # ... and at or before `read`
  difference = np.zeros((num + 1, num + 1), np.int64)
  np.add.at(difference[0], first, num_bytes)
  np.subtract.at(difference[0], last, num_bytes)
  np.subtract.at(difference, (last_row, first), num_bytes)
  np.add.at(difference, (last_row, last), num_bytes)
  return np.cumsum(np.cumsum(difference, axis=0), axis=1)[:num, :num]


def _allowed(positions: np.ndarray, alone: frozenset[int]) -> np.ndarray:
  """``[i, j]``: a segment may span these cuts without swallowing a position that must stand alone."""
  before = np.array([sum(position < p for position in alone) for p in positions], np.int64)
  holds = before[None, :] - before[:, None]
  length = positions[None, :] - positions[:, None]
  return (length > 0) & ((holds == 0) | (length == 1))


def _shortest_chain(
  positions: np.ndarray, fits: np.ndarray, out: np.ndarray, is_allowed: np.ndarray, is_block: np.ndarray
) -> tuple[int, ...]:
  """Boundaries of the segmentation with the fewest bytes between segments; fewer segments break ties, then cuts between
  blocks.
  """
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
  made, read, num_bytes = graph.crossing.T
  segment = np.searchsorted(bounds, made, side="right") - 1
  leaves = read >= np.array(bounds)[segment + 1]
  return np.bincount(segment[leaves], num_bytes[leaves], len(bounds) - 1).astype(np.int64)


def kept_between(graph: ForwardGraph, bounds: Sequence[int], is_wrapped: Sequence[bool]) -> np.ndarray:
  """As `bytes_between` where some segments are wrapped and others are not: what is read later for the backward pass.

  A sum over all layers' outputs, say, leaves each of them, and nobody needs it again. What segments keep that are not
  wrapped is not counted a second time.
  """
  roots = set[int]()
  segment_of = np.searchsorted(bounds, graph.value_position, side="right") - 1
  for (start, stop), wrapped in zip(itertools.pairwise(bounds), is_wrapped, strict=True):
    roots |= {graph.value_root[value] for value in SavingRegion(graph, start, stop).inputs()} if wrapped else set()
  for value in graph.residuals:
    segment = segment_of[value]
    if is_wrapped[segment] and not graph.is_wanted(value, bounds[segment + 1]):
      roots.add(graph.value_root[value])
  kept = np.zeros(len(bounds) - 1, np.int64)
  for root in roots - {-1}:
    if is_wrapped[segment_of[root]] or root not in graph.kept_roots:
      kept[segment_of[root]] += graph.value_bytes[root]
  return kept
