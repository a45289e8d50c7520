"""Ops of an order problem that some best order runs side by side, made one: what lets the lifetime ILP fit.

MODeL makes its ILP smaller by edges that cost little (``control_edges.py``). What is done here costs nothing: the least
peak of all orders stays what it is. An exchange argument each:

- ``later`` joins ``earlier``, the one op that it waits for: run right after it, ``later`` stands no higher than
  ``earlier`` does, and when it is done no more is live than before it. Wherever an order has it, moving it up to
  ``earlier`` raises nothing. So are weights updated as soon as their gradient is there.
- ``earlier`` joins ``later``, the one op that waits for it: it makes at least as much as it could free, and stands no
  higher than ``later`` right after it. Moving it down to ``later`` raises nothing. So are broadcasts made late.

Bytes that an op frees count where it does so in every order, i.e. where it is a value's only last reader; those that it
frees in some orders count where they make the argument harder. What an op shares counts likewise: where it is the one
that stands lower, only what it shares for certain, where it stands higher, all that it might.

Before that, values too small to matter are left out (``without_small``): of no bytes, their ops join any.

A pair whose step could not be written as that of one op is left alone. Rounds of one pass over the ops each, as a pair
that was made one may find another partner; O(rounds x (ops x edges / 64 + values)).
"""

import dataclasses
import graphlib
import itertools

from coopjax.planners.model.graph import OrderGraph, OrderShare, OrderValue, maximal, reduced


@dataclasses.dataclass(frozen=True, eq=False)
class Contraction:
  """A smaller order problem with the same least peak.

  Attributes:
    graph: the problem; its ``ops`` are those whose place in an order is their group's.
    members: per op of ``graph``, local ids in the problem that was made smaller, in the order in which they run.
    anchors: per op of ``graph``, the member whose place in an order is the group's.
  """

  graph: OrderGraph
  members: tuple[tuple[int, ...], ...]
  anchors: tuple[int, ...]


def without_small(graph: OrderGraph, most_bytes: int) -> OrderGraph:
  """The graph without its smallest values and workspaces, of ``most_bytes`` together at most.

  The peak of every order falls by as much at most and never rises: a bound stays one.
  """
  sizes = sorted([*graph.workspace, *(entry.size for entry in graph.values)])
  least = next((size for size, total in zip(sizes, itertools.accumulate(sizes)) if total > most_bytes), most_bytes + 1)
  kept = [index for index, entry in enumerate(graph.values) if entry.size >= least]
  index_of = {index: place for place, index in enumerate(kept)}
  return dataclasses.replace(
    graph,
    workspace=tuple(size if size >= least else 0 for size in graph.workspace),
    values=tuple(graph.values[index] for index in kept),
    shares=tuple(
      dataclasses.replace(share, value=index_of[share.value]) for share in graph.shares if share.value in index_of
    ),
  )


def contracted(graph: OrderGraph) -> Contraction:
  """Joins ops until no pair is left that may be."""
  contraction = Contraction(graph, tuple((op,) for op in range(graph.num_ops)), tuple(range(graph.num_ops)))
  while True:
    joined = _Pass(contraction.graph).run()
    if not joined:
      return contraction
    contraction = _applied(contraction, joined)


@dataclasses.dataclass(frozen=True)
class _Join:
  """Two ops that become one of ``workspace`` bytes; ``is_up`` if it is ``later`` that moves."""

  earlier: int
  later: int
  is_up: bool
  workspace: int

  @property
  def anchor(self) -> int:
    return self.earlier if self.is_up else self.later


class _Pass:
  """Finds pairs, of which each op is in one at most."""

  def __init__(self, graph: OrderGraph):
    count = graph.num_ops
    self._graph = graph
    self._successors: list[list[int]] = [[] for _ in range(count)]
    for op, predecessors in enumerate(graph.predecessors):
      for before in predecessors:
        self._successors[before].append(op)
    # Bytes, per op: of its outputs; of those that it overwrites; of those that it frees in every order, and of all that
    # it may free; of those among them that it makes itself.
    self._made, self._overwritten, self._freed, self._held = ([0] * count for _ in range(4))
    self._dead = [0] * count  # of its outputs that nobody reads
    self._outputs: list[list[OrderValue]] = [[] for _ in range(count)]
    self._shared: list[list[tuple[OrderShare, bool]]] = [[] for _ in range(count)]
    for entry in graph.values:
      self._count(entry)
    self._count_shares()

  def _count(self, entry: OrderValue) -> None:
    if entry.producer >= 0:
      self._made[entry.producer] += entry.size
      self._outputs[entry.producer].append(entry)
    if entry.overwriter >= 0:
      self._overwritten[entry.overwriter] += entry.size
    elif not entry.outlives and not entry.last_readers:
      self._freed[entry.producer] += entry.size
      self._dead[entry.producer] += entry.size
    elif len(entry.last_readers) == 1:
      self._freed[entry.last_readers[0]] += entry.size
    for reader in entry.last_readers:
      self._held[reader] += entry.size

  def _count_shares(self) -> None:
    """Each share with whether it acts in every order."""
    claims: dict[tuple, int] = {}
    for share in self._graph.shares:
      for key in (share.op, "value", share.value), (share.op, "output", share.output):
        claims[key] = claims.get(key, 0) + 1
    for share in self._graph.shares:
      is_alone = (
        claims[share.op, "value", share.value] == 1
        and claims[share.op, "output", share.output] == 1
        and len(self._graph.values[share.value].last_readers) == 1
      )
      self._shared[share.op].append((share, is_alone))

  def _shared_bytes(self, op: int, *, certain: bool) -> int:
    values = {share.value for share, is_sure in self._shared[op] if is_sure or not certain}
    return sum(self._graph.values[value].size for value in values)

  def _fall(self, op: int) -> int:
    """Bytes that the op's step stands above what is live when it is done, at least: what it shares it frees, too."""
    shared = {share.value for share, _ in self._shared[op]}
    sizes = [self._graph.values[value].size for value in shared]
    sure = [self._graph.values[value].size for value in shared if len(self._graph.values[value].last_readers) == 1]
    return self._graph.workspace[op] + max(self._freed[op] - sum(sizes), self._freed[op] - sum(sure))

  def run(self) -> list[_Join]:
    taken, joined = bytearray(self._graph.num_ops), []
    for op, predecessors in enumerate(self._graph.predecessors):
      for before in predecessors:
        if taken[op] or taken[before]:
          continue
        join = self._up(before, op) if len(predecessors) == 1 else None
        if join is None and len(self._successors[before]) == 1:
          join = self._down(before, op)
        if join is not None:
          taken[op] = taken[before] = 1
          joined.append(join)
    return joined

  def _up(self, earlier: int, later: int) -> _Join | None:
    made, overwritten = self._made[later], self._overwritten[later]
    if made > overwritten + self._freed[later]:
      return None
    above = made + self._graph.workspace[later] - overwritten - self._shared_bytes(later, certain=True)
    if above > self._fall(earlier):
      return None
    workspace = self._made[earlier] + self._graph.workspace[earlier] - self._lasting(earlier, later)
    return _Join(earlier, later, True, workspace) if workspace >= 0 else None

  def _down(self, earlier: int, later: int) -> _Join | None:
    held, freed = self._held[earlier], self._freed[earlier] - self._dead[earlier]
    if held != freed or self._made[earlier] - self._dead[earlier] < held + self._overwritten[earlier]:
      return None
    if any(self._graph.values[share.value].producer == earlier for share, _ in self._shared[later]):
      return None
    above = self._made[later] + self._graph.workspace[later] - self._overwritten[later]
    above -= self._shared_bytes(later, certain=False) + self._freed[earlier]
    is_nothing = not (self._made[earlier] or held or self._overwritten[earlier] or self._graph.workspace[earlier])
    if self._graph.workspace[earlier] > above and not (is_nothing and self._graph.predecessors[earlier]):
      return None
    inside = sum(entry.size for entry in self._outputs[earlier] if entry.overwriter == later)
    workspace = self._made[earlier] + self._made[later] + self._graph.workspace[later]
    workspace -= self._freed[earlier] + inside + self._lasting(earlier, later)
    return _Join(earlier, later, False, workspace) if workspace >= 0 else None

  def _lasting(self, earlier: int, later: int) -> int:
    """Bytes that the two make and that are live when both are done."""
    outputs, group = (*self._outputs[earlier], *self._outputs[later]), {earlier, later}
    return sum(entry.size for entry in outputs if not _is_inside(entry, group))


def _is_inside(entry: OrderValue, group: set[int]) -> bool:
  """Whether a value that the group makes is dead when the group is done."""
  return not entry.outlives and {*entry.last_readers, *([entry.overwriter] * (entry.overwriter >= 0))} <= group


def _applied(contraction: Contraction, joined: list[_Join]) -> Contraction:
  """The contraction with more ops made one."""
  graph = contraction.graph
  join_of = {op: join for join in joined for op in (join.earlier, join.later)}
  anchor_of = [join_of[op].anchor if op in join_of else op for op in range(graph.num_ops)]
  edges: dict[int, set[int]] = {anchor: set() for anchor in anchor_of}
  for op, predecessors in enumerate(graph.predecessors):
    edges[anchor_of[op]] |= {anchor_of[before] for before in predecessors} - {anchor_of[op]}
  kept = _sorted(edges)
  local = {anchor: index for index, anchor in enumerate(kept)}
  predecessors, ancestors = reduced([[local[before] for before in edges[anchor]] for anchor in kept])
  renamed = [local[anchor] for anchor in anchor_of]
  values, index_of = _renamed(graph, join_of, renamed, ancestors)
  shares = (
    OrderShare(renamed[share.op], index_of[share.value], share.output)
    for share in graph.shares
    if anchor_of[share.op] == share.op and share.value in index_of
  )
  groups = [(join_of[op].earlier, join_of[op].later) if op in join_of else (op,) for op in kept]
  return Contraction(
    OrderGraph(
      ops=tuple(graph.ops[op] for op in kept),
      predecessors=predecessors,
      ancestors=tuple(ancestors),
      workspace=tuple(join_of[op].workspace if op in join_of else graph.workspace[op] for op in kept),
      values=tuple(values),
      shares=tuple(share for share in shares if share.op in values[share.value].last_readers),
      held_bytes=graph.held_bytes,
    ),
    members=tuple(tuple(member for op in group for member in contraction.members[op]) for group in groups),
    anchors=tuple(contraction.anchors[op] for op in kept),
  )


def _sorted(edges: dict[int, set[int]]) -> list[int]:
  """Groups after those that they wait for."""
  return list(graphlib.TopologicalSorter({op: sorted(before) for op, before in sorted(edges.items())}).static_order())


def _renamed(
  graph: OrderGraph, join_of: dict[int, _Join], renamed: list[int], ancestors: list[int]
) -> tuple[list[OrderValue], dict[int, int]]:
  """What is left of the values, and the new index of each that is left."""
  values: list[OrderValue] = []
  index_of: dict[int, int] = {}
  for index, entry in enumerate(graph.values):
    join = join_of.get(entry.producer)
    if join is not None and _is_inside(entry, {join.earlier, join.later}):
      continue
    readers = {renamed[reader] for reader in entry.last_readers}
    overwriter = entry.overwriter
    if overwriter >= 0 and (join := join_of.get(overwriter)) is not None and join.is_up and overwriter == join.later:
      # Still there while `earlier` runs, which the group's bytes are about.
      readers, overwriter = {renamed[overwriter]}, -1
    index_of[index] = len(values)
    values.append(
      dataclasses.replace(
        entry,
        producer=renamed[entry.producer] if entry.producer >= 0 else -1,
        last_readers=maximal(sorted(readers), ancestors),
        overwriter=renamed[overwriter] if overwriter >= 0 else -1,
      )
    )
  return values, index_of
