"""What MODeL's order problem is about: ops, precedence, live bytes, and the bytes that no order avoids.

Sets of ops are Python integers used as bit sets: ancestors of all ops cost O(ops x edges / 64).
"""

import dataclasses

import numpy as np

from coopjax import _core
from coopjax.program.step_program import TEMPORARY, StepProgram


@dataclasses.dataclass(frozen=True)
class OrderValue:
  """A value that takes budget while the ops of an :class:`OrderGraph` run; ops are local ids.

  Attributes:
    value: id in the program.
    size: bytes.
    producer: op that makes it; -1: it is there from the start.
    last_readers: readers of which any may come last (no reader runs after another of them in every order); empty for a
      value that is never read, and for one that outlives the graph.
    overwriter: op that ends its range by overwriting it, or -1.
    outlives: whether it is still needed after the last op.
  """

  value: int
  size: int
  producer: int
  last_readers: tuple[int, ...]
  overwriter: int = -1
  outlives: bool = False


@dataclasses.dataclass(frozen=True)
class OrderShare:
  """``op`` may put an output into the buffer of ``values[value]`` if nothing reads that any more.

  Attributes:
    op: local id.
    value: index into ``OrderGraph.values``.
    output: id of the output in the program; shares of one output exclude each other, as do those of one value.
  """

  op: int
  value: int
  output: int


@dataclasses.dataclass(frozen=True, eq=False)
class OrderGraph:
  """Ops to be ordered: a whole program, or a run of consecutive steps of a schedule whose rest stays as it is.

  Attributes:
    ops: program ids by local id; local ids follow the schedule, so they are a valid order.
    predecessors: per op those that must run before it, without what others imply.
    ancestors: per op all that must run before it, as a bit set.
    workspace: per op, bytes.
    values: those whose live range the order changes.
    shares: pairs that may act.
    held_bytes: live throughout, whatever the order.
  """

  ops: tuple[int, ...]
  predecessors: tuple[tuple[int, ...], ...]
  ancestors: tuple[int, ...]
  workspace: tuple[int, ...]
  values: tuple[OrderValue, ...]
  shares: tuple[OrderShare, ...]
  held_bytes: int

  @property
  def num_ops(self) -> int:
    return len(self.ops)

  def is_before(self, first: int, second: int) -> bool:
    """Whether ``first`` precedes ``second`` in every order."""
    return bool(self.ancestors[second] >> first & 1)


def order_graph(program: StepProgram, schedule: np.ndarray, begin: int = 0, end: int | None = None) -> OrderGraph:
  """The ops at steps ``[begin, end)`` of ``schedule``, a valid order without repeats; by default all of them."""
  ops = [int(op) for op in schedule[begin:end]]
  local = {op: index for index, op in enumerate(ops)}
  offsets, items = _core.op_predecessors(program.core)
  edges = [[local[p] for p in items[offsets[op] : offsets[op + 1]].tolist() if p in local] for op in ops]
  predecessors, ancestors = reduced(edges)
  step_of = np.empty(program.num_ops, np.int64)
  step_of[schedule] = np.arange(program.num_ops)
  values, held_bytes = _values(program, _Window(local, ancestors, step_of, begin, begin + len(ops)))
  return OrderGraph(
    ops=tuple(ops),
    predecessors=predecessors,
    ancestors=tuple(ancestors),
    workspace=tuple(int(program.op_workspace_bytes[op]) for op in ops),
    values=tuple(values),
    shares=tuple(_shares(program, local, values, ancestors)),
    held_bytes=held_bytes,
  )


def reduced(edges: list[list[int]]) -> tuple[tuple[tuple[int, ...], ...], list[int]]:
  """Transitive reduction and closure; ids are in a valid order."""
  predecessors, ancestors = [], []
  for row in edges:
    kept, reached = [], 0
    for before in sorted(row, reverse=True):
      if not reached >> before & 1:
        kept.append(before)
        reached |= ancestors[before] | 1 << before
    predecessors.append(tuple(kept))
    ancestors.append(reached)
  return tuple(predecessors), ancestors


@dataclasses.dataclass(frozen=True)
class _Window:
  local: dict[int, int]
  ancestors: list[int]
  step_of: np.ndarray
  begin: int
  end: int


def _values(program: StepProgram, window: _Window) -> tuple[list[OrderValue], int]:
  readers = _readers(program)
  overwriters = {int(v): int(program.value_producer[w]) for w, v in enumerate(program.value_in_place_of) if v >= 0}
  values, held_bytes = [], 0
  takes_budget = (program.value_kind == TEMPORARY) & (program.value_bytes > 0)
  for value in np.flatnonzero(takes_budget).tolist():
    made = int(window.step_of[program.value_producer[value]])
    overwriter = overwriters.get(value, -1)
    ends = [int(window.step_of[op]) for op in (readers[value] if overwriter < 0 else [overwriter])]
    last = max(ends, default=made)
    if made >= window.end or last < window.begin or (made < window.begin and last == made):
      continue
    size, producer = int(program.value_bytes[value]), window.local.get(int(program.value_producer[value]), -1)
    outlives = last >= window.end
    if outlives and producer < 0:
      held_bytes += size
      continue
    if outlives:
      values.append(OrderValue(value, size, producer, (), outlives=True))
    elif overwriter >= 0:
      values.append(OrderValue(value, size, producer, (), overwriter=window.local[overwriter]))
    else:
      inside = [window.local[op] for op in readers[value] if op in window.local]
      values.append(OrderValue(value, size, producer, maximal(inside, window.ancestors)))
  return values, held_bytes


def _readers(program: StepProgram) -> list[list[int]]:
  readers: list[list[int]] = [[] for _ in range(program.num_values)]
  for op in range(program.num_ops):
    for value in program.inputs(op).tolist():
      readers[value].append(op)
  return readers


def maximal(ops: list[int], ancestors: list[int]) -> tuple[int, ...]:
  """Those of ``ops`` that are no ancestor of another of them."""
  covered = 0
  for op in ops:
    covered |= ancestors[op]
  return tuple(op for op in ops if not covered >> op & 1)


def _shares(program: StepProgram, local: dict[int, int], values: list[OrderValue], ancestors: list[int]):
  index_of = {entry.value: index for index, entry in enumerate(values)}
  for op, given, taker in program.may_share.tolist():
    index = index_of.get(given)
    if op not in local or index is None or program.value_in_place_of[taker] >= 0:
      continue
    if local[op] in values[index].last_readers:
      yield OrderShare(local[op], index, taker)


def forced_bytes(graph: OrderGraph) -> np.ndarray:
  """Per op, bytes that are live at its step in every order, int64 ``[num_ops]``.

  A value is forced at an op that runs between its producer and one of its last readers in every order. The most
  bytes that ``shares`` could take off an op are taken off. O(values x ops).
  """
  num_ops = graph.num_ops
  descendants = [0] * num_ops
  for op in reversed(range(num_ops)):
    for before in graph.predecessors[op]:
      descendants[before] |= descendants[op] | 1 << op
  everywhere = (1 << num_ops) - 1
  forced = np.array(graph.workspace, np.int64) + graph.held_bytes
  for entry in graph.values:
    after = everywhere if entry.producer < 0 else descendants[entry.producer]
    before = everywhere if entry.outlives else 0
    for reader in entry.last_readers:
      before |= graph.ancestors[reader] | 1 << reader
    if entry.overwriter >= 0:
      before |= graph.ancestors[entry.overwriter]
    live = after & before | (1 << entry.producer if entry.producer >= 0 else 0)
    forced[_bits(live, num_ops)] += entry.size
  for (op, _), size in _most_shared(graph).items():
    forced[op] -= size
  return forced


def _bits(mask: int, count: int) -> np.ndarray:
  packed = np.frombuffer(mask.to_bytes((count + 7) // 8, "little"), np.uint8)
  return np.unpackbits(packed, count=count, bitorder="little").view(bool)


def _most_shared(graph: OrderGraph) -> dict[tuple[int, int], int]:
  """Per op and output, the most bytes that a share may save there."""
  most: dict[tuple[int, int], int] = {}
  for share in graph.shares:
    key = share.op, share.output
    most[key] = max(most.get(key, 0), graph.values[share.value].size)
  return most
