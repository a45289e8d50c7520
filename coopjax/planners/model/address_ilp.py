"""MODeL's address ILP: offsets for the live ranges of a fixed schedule (Steiner et al., ICML 2023).

The smallest heap can't be below the peak of live bytes; what it has above is fragmentation. First values are stacked
as a pyramid from offset 0: the longest-lived, then the longest-lived within its span, and so on; these stay where they
are. The others go in by best fit. When the heap is the peak, there is nothing left to solve. Otherwise an integer
program has one offset per value and, for each pair that lives at the same time, one binary that says which lies below;
pairs with disjoint spans need none. It starts from the best packing found, whose heap bounds all offsets.
What is still open, or too large for the ILP, goes to the search of ``xla_pass/packing/search.h``, and from its
packing to the ILP once more, now without the pyramid, which may be what stands in the way.

What shares storage by the rules of ``xla_pass/program/step_program.h`` (an overwriter and what it overwrites, an output
in its input's buffer) shares an offset: one block with a size per live range. An op's workspace is a block of its own
step, so that the heap really suffices; it has no row in the placements.

O(pairs) rows in the ILP.
"""

import dataclasses
import math

import numpy as np

from coopjax.planners.effort import Allowance
from coopjax.planners.milp import Milp, MilpBuilder
from coopjax.planners.milp_solvers import MilpSolver
from coopjax.planners.packing import pack
from coopjax.program import liveness
from coopjax.program.step_program import TEMPORARY, StepProgram

_GAP = 0.001  # the paper's
_SEARCH_EFFORT = 1_000_000_000


@dataclasses.dataclass(frozen=True)
class AddressOptions:
  """How offsets are planned.

  Attributes:
    alignment_bytes: of offsets.
    preplaces: whether the pyramid is stacked first.
    max_entries: coefficients above which the ILP is not tried.
    max_steps: for all of it.
    solver: of the ILP.
  """

  alignment_bytes: int
  preplaces: bool
  max_entries: int
  max_steps: int
  solver: MilpSolver


@dataclasses.dataclass(frozen=True, eq=False)
class Addresses:
  """Where every production lies, and what that took.

  Attributes:
    placements: rows (value, step of production, offset), int64 ``[n, 3]``.
    counters: ``heap_bytes``, ``fragmentation`` (heap over peak), ``address_ilps``, ``address_cut_short``,
      ``address_too_large``.
  """

  placements: np.ndarray
  counters: dict[str, float]


def plan_addresses(program: StepProgram, schedule: np.ndarray, options: AddressOptions) -> Addresses:
  """Offsets of all temporaries of ``schedule``, a valid order without repeats."""
  problem = _problem(program, schedule, options.alignment_bytes)
  counters: dict[str, float] = {"address_ilps": 0, "address_cut_short": 0, "address_too_large": 0}
  fixed = problem.pyramid() if options.preplaces else {}
  allowance = Allowance(options.max_steps)
  packing = problem.pack(fixed, 0)
  for is_fixed, solve in ((True, _solve), (False, _search), (False, _solve)):
    if problem.heap_bytes(packing) > problem.peak_bytes and (fixed or not is_fixed):
      found = solve(
        problem,
        packing,
        fixed if is_fixed else {},
        dataclasses.replace(options, max_steps=allowance.left // 2),
        counters,
      )
      packing = min(packing, found, key=problem.heap_bytes)
  heap = problem.heap_bytes(packing)
  counters |= {"heap_bytes": heap, "fragmentation": (heap - problem.peak_bytes) / heap if heap else 0.0}
  rows = [(value, step, int(packing[block]) if block >= 0 else 0) for value, step, block in problem.productions]
  return Addresses(np.array(rows, np.int64).reshape(-1, 3), counters)


@dataclasses.dataclass(frozen=True, eq=False)
class _Problem:
  """Blocks to be placed. Segments are live ranges; those of one block share its offset.

  Attributes:
    block: of each segment, int64 ``[segments]``, ascending.
    lower: first step of each segment.
    upper: step after the last of each segment.
    size: bytes of each segment.
    productions: (value, step, block) of every production; block -1 for an empty value.
    num_blocks: how many there are.
    alignment: of offsets, bytes.
    peak_bytes: most bytes live at a step.
  """

  block: np.ndarray
  lower: np.ndarray
  upper: np.ndarray
  size: np.ndarray
  productions: list[tuple[int, int, int]]
  num_blocks: int
  alignment: int
  peak_bytes: int

  def segments(self, block: int) -> slice:
    return slice(*np.searchsorted(self.block, [block, block + 1]))

  def align(self, offset):
    """``offset`` rounded up."""
    return -(-offset // self.alignment) * self.alignment

  def heap_bytes(self, packing: np.ndarray) -> int:
    return int((packing[self.block] + self.size).max(initial=0))

  def spans(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First step, step after the last, and largest size of each block."""
    first = np.searchsorted(self.block, np.arange(self.num_blocks))
    if not self.num_blocks:
      return self.lower, self.upper, self.size
    return (
      np.minimum.reduceat(self.lower, first),
      np.maximum.reduceat(self.upper, first),
      np.maximum.reduceat(self.size, first),
    )

  def pyramid(self) -> dict[int, int]:
    """Offsets of the stacked blocks."""
    lower, upper, size = self.spans()
    fixed, base, span = {}, 0, (-1, int(upper.max(initial=0)) + 1)
    for block in np.lexsort((np.arange(self.num_blocks), -size, lower - upper)).tolist():
      if lower[block] >= span[0] and upper[block] <= span[1]:
        fixed[block] = base
        base = int(self.align(base + size[block]))
        span = int(lower[block]), int(upper[block])
    return fixed

  def pack(self, fixed: dict[int, int], effort: int) -> np.ndarray:
    """Offsets by best fit around the ``fixed`` ones, or by search if there is ``effort`` for it."""
    first = np.searchsorted(self.block, np.arange(self.num_blocks))
    offsets = np.full(len(self.block), -1, np.int64)
    offsets[first[list(fixed)]] = list(fixed.values())
    is_first = np.zeros(len(self.block), bool)
    is_first[first] = True
    found = pack(
      self.lower,
      self.upper,
      self.size,
      alignment=self.alignment,
      fixed_offsets=offsets,
      same_offset_as=np.where(is_first, -1, first[self.block]),
      method="search" if effort else "best_fit",
      effort=effort,
    )
    return found.offsets[first]

  def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Blocks that live together: first < second, and how much above the one the other must lie at least.

    Returns:
      ``(first, second, first_height, second_height)``: ``second`` may lie ``first_height`` above ``first``, or
      ``first`` lies ``second_height`` above ``second``.
    """
    together = (self.lower[:, None] < self.upper) & (self.lower < self.upper[:, None])
    one, other = np.nonzero(together & (self.block[:, None] < self.block))
    keys, index = np.unique(self.block[one] * self.num_blocks + self.block[other], return_inverse=True)
    heights = np.zeros((2, len(keys)), np.int64)
    np.maximum.at(heights[0], index, self.align(self.size[one]))
    np.maximum.at(heights[1], index, self.align(self.size[other]))
    return keys // self.num_blocks, keys % self.num_blocks, heights[0], heights[1]


def _problem(program: StepProgram, schedule: np.ndarray, alignment: int) -> _Problem:
  values, starts, ends = liveness.live_ranges(program, schedule)
  kept = program.value_kind[values] == TEMPORARY
  values, starts, ends = values[kept], starts[kept], ends[kept]
  root = _storage(program, schedule, dict(zip(values.tolist(), ends.tolist())))
  has_bytes = program.value_bytes[values] > 0
  roots = {value: root[value] for value in values[has_bytes].tolist()}
  number = {value: index for index, value in enumerate(sorted(set(roots.values())))}
  productions = [
    (value, step, number[roots[value]] if value in roots else -1)
    for value, step in zip(values.tolist(), starts.tolist())
  ]
  rows = [
    (number[roots[value]], lower, upper, int(program.value_bytes[value]))
    for value, lower, upper in zip(values.tolist(), starts.tolist(), ends.tolist())
    if value in roots and lower < upper
  ]
  workspace = program.op_workspace_bytes[schedule]
  rows += [
    (len(number) + index, step, step + 1, int(workspace[step]))
    for index, step in enumerate(np.flatnonzero(workspace).tolist())
  ]
  block, lower, upper, size = np.array(sorted(rows), np.int64).reshape(-1, 4).T
  live = liveness.live_bytes(program, schedule)
  return _Problem(
    block,
    lower,
    upper,
    size,
    productions,
    len(number) + int((workspace > 0).sum()),
    alignment,
    int(live.max(initial=0)),
  )


def _storage(program: StepProgram, schedule: np.ndarray, ends: dict[int, int]) -> dict[int, int]:
  """For each temporary the one whose storage it took over, from first to last hand."""
  step_of = np.empty(program.num_ops, np.int64)
  step_of[schedule] = np.arange(program.num_ops)
  heir_of = {}
  for taker, given in enumerate(program.value_in_place_of.tolist()):
    if given in ends and taker in ends:
      heir_of[taker] = given
  spoken_for = set(heir_of.values())
  for op, given, taker in program.may_share.tolist():
    is_passed_on = ends.get(given) == step_of[op] and given not in spoken_for
    if is_passed_on and program.value_in_place_of[taker] < 0 and taker not in heir_of:
      spoken_for.add(given)
      heir_of[taker] = given
  root = {}
  for value in sorted(ends, key=lambda value: (step_of[program.value_producer[value]], value)):
    heir = heir_of.get(value)
    root[value] = value if heir is None else root[heir]
  return root


def _search(
  problem: _Problem,
  packing: np.ndarray,
  fixed: dict[int, int],
  options: AddressOptions,
  counters: dict[str, float],
) -> np.ndarray:
  del packing, counters
  return problem.pack(fixed, min(options.max_steps, _SEARCH_EFFORT))


def _solve(
  problem: _Problem,
  packing: np.ndarray,
  fixed: dict[int, int],
  options: AddressOptions,
  counters: dict[str, float],
) -> np.ndarray:
  """What the ILP finds, from ``packing`` on; ``packing`` itself if it is too large or the steps too few."""
  pairs = problem.pairs()
  is_free = np.ones(problem.num_blocks, bool)
  is_free[list(fixed)] = False
  kept = is_free[pairs[0]] | is_free[pairs[1]]
  pairs = tuple(column[kept] for column in pairs)
  if 6 * len(pairs[0]) > options.max_entries:
    counters["address_too_large"] += 1
    return packing
  unit = math.gcd(problem.alignment, *problem.align(problem.size).tolist())
  ilp, start = _ilp(problem, packing, fixed, pairs, unit)
  result = options.solver.solve(ilp, max_steps=options.max_steps, relative_gap=_GAP, start=start)
  counters["address_ilps"] += 1
  counters["address_cut_short"] += int(result.status in ("feasible", "cut_short"))
  if result.x is None:
    return packing
  return _settled(problem, result.x[1 : 1 + problem.num_blocks], fixed, pairs)


def _ilp(
  problem: _Problem,
  packing: np.ndarray,
  fixed: dict[int, int],
  pairs: tuple[np.ndarray, ...],
  unit: int,
) -> tuple[Milp, np.ndarray]:
  """Columns: the heap, the offset of each block, whether ``first`` lies below ``second`` for each pair; and a start."""
  first, second, first_height, second_height = pairs
  heap = problem.align(problem.heap_bytes(packing)) // unit
  size = problem.align(problem.spans()[2]) // unit
  lower, upper = np.zeros(problem.num_blocks), heap - size
  lower[list(fixed)] = upper[list(fixed)] = np.array(list(fixed.values()), np.int64) // unit
  builder = MilpBuilder()
  builder.variables(1, lower=min(problem.peak_bytes / unit, heap), upper=heap, cost=1.0, is_integer=False)
  builder.variables(problem.num_blocks, lower=lower, upper=upper, is_integer=False)
  below = builder.variables(len(first)) + np.arange(len(first))
  blocks = np.arange(problem.num_blocks)
  builder.rows(
    2 * np.arange(problem.num_blocks + 1),
    np.stack([0 * blocks, 1 + blocks], 1).ravel(),
    np.tile([1.0, -1.0], problem.num_blocks),
    lower=size,
  )
  for low, high, height, sign in ((first, second, first_height, 1), (second, first, second_height, -1)):
    # Above by its height, or anywhere if the pair lies the other way round: then the offsets' bounds say how far.
    height = height // unit
    slack = upper[low] + height - lower[high]
    columns = np.stack([1 + high, 1 + low, below], 1).ravel()
    values = np.stack([np.ones(len(low)), -np.ones(len(low)), -sign * slack], 1).ravel()
    builder.rows(3 * np.arange(len(low) + 1), columns, values, lower=height - slack if sign > 0 else height)
  start = np.concatenate([[heap], packing // unit, packing[first] < packing[second]]).astype(float)
  return builder.build(), start


def _settled(
  problem: _Problem,
  offsets: np.ndarray,
  fixed: dict[int, int],
  pairs: tuple[np.ndarray, ...],
) -> np.ndarray:
  """Blocks in the order that the solver stacked them, each right above those below it: exact, and no higher."""
  settled = np.full(problem.num_blocks, -1, np.int64)
  settled[list(fixed)] = list(fixed.values())
  neighbours: list[list[tuple[int, int]]] = [[] for _ in range(problem.num_blocks)]
  for first, second, first_height, second_height in zip(*(column.tolist() for column in pairs)):
    neighbours[first].append((second, second_height))
    neighbours[second].append((first, first_height))
  is_below = np.zeros(problem.num_blocks, bool)
  for block in np.argsort(offsets, kind="stable").tolist():
    if block not in fixed:
      below = (settled[other] + height for other, height in neighbours[block] if is_below[other])
      settled[block] = max(below, default=0)
    is_below[block] = True
  return settled
