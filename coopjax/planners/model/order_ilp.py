"""MODeL's lifetime ILP: the order with the least peak of live bytes, without recomputes (Steiner et al., ICML 2023).

The paper has binaries C[e, t] (tensor e is created at timestep t) and P[e, t] (preserved at t). Here creation is kept
as its running sum over time and per op, since all outputs of an op are created together: ``ran[o, t]`` = op o has run
by timestep t, so that C[e, t] = ran[o, t] - ran[o, t - 1]. With it the constraints of the paper read

- created once: ``ran`` never falls, is 0 before ASAP and 1 from ALAP on;
- C[out, t] <= P[in, t]: ``ran[o, t] <= ran[p, t - 1]`` for every predecessor p, control edges included;
- created or preserved, C + P: ``live[e, t] >= ran[producer, t] - ran[reader, t - 1]`` for every last reader.

It is the same set of orders with a tighter relaxation (precedence alone is totally unimodular), and ``live`` need not
be an integer. A value with one last reader needs no variable at all: the difference goes into the memory row. Variables
exist only in the spans [ASAP, ALAP]: between the last ALAP of a producer and the largest ASAP of its readers the value
is live whatever happens, a constant (the paper's forced activations and constant preservation in gaps).

Several ops may share a timestep; their bytes count together, so an order read off a solution never has a larger peak
than the solution. With ``min(ceil(1.01 x longest path), ops)`` timesteps, the paper's choice, some orders can't be
expressed and the solver's bound holds for the others only; with one timestep per op it holds for all.

In-place pairs and shared buffers follow ``xla_pass/program/step_program.h``, except that among shares which exclude
each other the solver picks the best, not the first: its bound stays a bound, and the peak is counted anew by the
caller.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from coopjax.planners.milp import Milp, MilpBuilder
from coopjax.planners.model.graph import OrderGraph, OrderShare, OrderValue

_HORIZON_SLACK = 1.01
# The peak in units of the objective: enough for any gap asked for, few enough for the solver's tolerances.
_MOST_UNITS = 10_000
_ROUNDING = 1e-9


def pruned_horizon(graph: OrderGraph) -> int:
  """Timesteps of the paper: the longest path and 1% more, at most one per op."""
  longest = int(_asap(graph).max(initial=-1)) + 1
  return min(math.ceil(_HORIZON_SLACK * longest), graph.num_ops)


def _asap(graph: OrderGraph) -> np.ndarray:
  level = np.zeros(graph.num_ops, np.int64)
  for op, predecessors in enumerate(graph.predecessors):
    level[op] = max((level[before] + 1 for before in predecessors), default=0)
  return level


class OrderIlp:
  """The ILP of one graph, and the way between its solutions and orders.

  Attributes:
    horizon: number of timesteps.
    unit_bytes: bytes per unit of the objective.
  """

  def __init__(self, graph: OrderGraph, horizon: int, least_bytes: int, most_bytes: int):
    """Lays out the variables.

    Args:
      graph: what to order, at least one op.
      horizon: timesteps, at least the longest path.
      least_bytes: a proven lower bound on the peak.
      most_bytes: the largest peak of interest; orders above it are infeasible.
    """
    self.horizon = horizon
    self._graph = graph
    self._asap = _asap(graph)
    self._alap = np.full(graph.num_ops, horizon - 1, np.int64)
    for op in reversed(range(graph.num_ops)):
      for before in graph.predecessors[op]:
        self._alap[before] = min(self._alap[before], self._alap[op] - 1)
    sizes = [graph.held_bytes, *graph.workspace, *(entry.size for entry in graph.values)]
    common = math.gcd(*sizes) or 1
    self.unit_bytes = common if most_bytes <= common * _MOST_UNITS else most_bytes / _MOST_UNITS
    self._limits = least_bytes / self.unit_bytes, most_bytes / self.unit_bytes
    # The peak is column 0; then `ran` of each op from its ASAP to before its ALAP.
    self._column = 1 + np.concatenate([[0], np.cumsum(self._alap - self._asap)])
    self._shares = _acting_shares(graph)

  @property
  def num_entries(self) -> int:
    """About how many coefficients the problem has, known before it is built."""
    num_ran = int(self._column[-1])
    spans = sum(
      int(self._alap[reader] + 1 - self._earliest(entry))
      for entry in self._graph.values
      for reader in entry.last_readers
      if len(entry.last_readers) > 1
    )
    return 3 * spans + num_ran * 5

  def build(self) -> Milp:
    """The problem. Columns: the peak, ``ran`` by op and timestep, then ``live`` and shares. Memory rows come last."""
    builder = MilpBuilder()
    builder.variables(1, lower=self._limits[0], upper=self._limits[1], cost=1.0, is_integer=False)
    builder.variables(int(self._column[-1]) - 1)
    memory = _Rows()
    held = np.full(self.horizon, self._graph.held_bytes, float)
    for op, workspace in enumerate(self._graph.workspace):
      self._add_created(memory, held, op, workspace)
    self._live = [self._add_value(builder, memory, held, entry) for entry in self._graph.values]
    self._shared = self._add_shares(builder, memory, held)
    every = np.arange(self.horizon)
    memory.add(every, np.zeros(self.horizon, np.int64), -self.unit_bytes)
    self._precedence_rows(builder)
    memory.build(builder, upper=-held, scale=1 / self.unit_bytes)
    self._problem = builder.build()
    return self._problem

  def start_of(self, order: np.ndarray) -> np.ndarray | None:
    """The solution for ``order`` (local ids) in the problem built last; None if its peak is above ``most_bytes``.

    Where there are fewer timesteps than ops, ops that do not wait for each other share one.
    """
    x = np.zeros(self._problem.num_variables)
    steps = np.zeros(self._graph.num_ops, np.int64)
    latest, stride = -1, int(self.horizon == self._graph.num_ops)
    for op in np.asarray(order).tolist():
      earliest = max((steps[before] + 1 for before in self._graph.predecessors[op]), default=0)
      latest = steps[op] = min(max(earliest, latest + stride, 0), self._alap[op])
    for op, step in enumerate(steps.tolist()):
      x[self._column[op] + max(step - self._asap[op], 0) : self._column[op + 1]] = 1
    for entry, (first, times) in zip(self._graph.values, self._live):
      made = steps[entry.producer] if entry.producer >= 0 else 0
      last = max((steps[reader] for reader in entry.last_readers), default=0)
      x[first : first + len(times)] = (times >= made) & (times <= last)
    self._start_shares(x, steps)
    over = (self._problem.row_activity(x) - self._problem.row_upper)[-self.horizon :]
    peak = max(float(over.max()), self._limits[0])
    x[0] = min(peak, self._limits[1])
    return x if peak <= self._limits[1] * (1 + _ROUNDING) else None

  def orders_of(self, x: np.ndarray) -> list[np.ndarray]:
    """Orders (local ids) that a solution stands for: they differ where ops share a timestep."""
    columns = np.append(0, np.cumsum(np.round(x[1 : self._column[-1]])))
    steps = self._alap - (columns[self._column[1:] - 1] - columns[self._column[:-1] - 1]).astype(np.int64)
    growth = np.zeros(self._graph.num_ops)
    for entry in self._graph.values:
      if entry.producer >= 0:
        growth[entry.producer] += entry.size
      for reader in (*entry.last_readers, entry.overwriter):
        if reader >= 0:
          growth[reader] -= entry.size
    every = np.arange(self._graph.num_ops)
    return [np.lexsort((every, steps)), np.lexsort((every, growth, steps))]

  def _earliest(self, entry: OrderValue) -> int:
    return int(self._asap[entry.producer]) if entry.producer >= 0 else 0

  def _ran(self, op: int, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns of ``ran[op, times]``, -1 where it is the constant beside it."""
    is_variable = (times >= self._asap[op]) & (times < self._alap[op])
    columns = np.where(is_variable, self._column[op] + times - self._asap[op], -1)
    return columns, (times >= self._alap[op]).astype(float)

  def _add_ran(self, rows: "_Rows", held: np.ndarray, op: int, shift: int, size: float) -> None:
    """``size`` bytes at every timestep from ``shift`` after the op."""
    if size == 0:
      return
    times = np.arange(self._asap[op], self._alap[op])
    rows.add(times + shift, self._column[op] + times - self._asap[op], size)
    held[self._alap[op] + shift :] += size

  def _add_created(self, rows: "_Rows", held: np.ndarray, op: int, size: float) -> None:
    """``size`` bytes at the op's own timestep."""
    self._add_ran(rows, held, op, 0, size)
    self._add_ran(rows, held, op, 1, -size)

  def _add_value(
    self,
    builder: MilpBuilder,
    memory: "_Rows",
    held: np.ndarray,
    entry: OrderValue,
  ) -> tuple[int, np.ndarray]:
    """Bytes of one value; returns the first column of its ``live`` and the timesteps these stand for."""
    if len(entry.last_readers) > 1:
      return self._add_live(builder, memory, held, entry)
    if entry.producer >= 0:
      self._add_ran(memory, held, entry.producer, 0, entry.size)
    else:
      held += entry.size
    if entry.overwriter >= 0:
      self._add_ran(memory, held, entry.overwriter, 0, -entry.size)
    elif not entry.outlives:
      last = entry.last_readers[0] if entry.last_readers else entry.producer
      self._add_ran(memory, held, last, 1, -entry.size)
    return 0, np.empty(0, np.int64)

  def _add_live(
    self,
    builder: MilpBuilder,
    memory: "_Rows",
    held: np.ndarray,
    entry: OrderValue,
  ) -> tuple[int, np.ndarray]:
    readers = list(entry.last_readers)
    certain = int(self._alap[entry.producer]) if entry.producer >= 0 else 0, int(self._asap[readers].max()) + 1
    times = np.arange(self._earliest(entry), int(self._alap[readers].max()) + 1)
    if certain[0] < certain[1]:
      held[certain[0] : certain[1]] += entry.size
      times = times[(times < certain[0]) | (times >= certain[1])]
    first = builder.variables(len(times), is_integer=False)
    columns = first + np.arange(len(times))
    memory.add(times, columns, entry.size)
    made, is_made = (
      self._ran(entry.producer, times) if entry.producer >= 0 else (np.full(len(times), -1), np.ones(len(times)))
    )
    for reader in readers:
      read, is_read = self._ran(reader, times - 1)
      matters = np.flatnonzero((is_read == 0) & ((made >= 0) | (is_made > 0)))
      rows = _Rows()
      rows.add(np.arange(len(matters)), columns[matters], 1.0)
      rows.add_some(made[matters], -1.0)
      rows.add_some(read[matters], 1.0)
      rows.build(builder, lower=is_made[matters])
    return first, times

  def _add_shares(self, builder: MilpBuilder, memory: "_Rows", held: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Bytes that shares take off; returns the first column of each share and its timesteps."""
    shared = []
    for share, is_certain in self._shares:
      entry = self._graph.values[share.value]
      if is_certain:
        self._add_created(memory, held, share.op, -entry.size)
        shared.append((0, np.empty(0, np.int64)))
        continue
      times = np.arange(self._asap[share.op], self._alap[share.op] + 1)
      first = builder.variables(len(times), is_integer=False)
      shared.append((first, times))
      memory.add(times, first + np.arange(len(times)), -entry.size)
      for reader in entry.last_readers:
        if reader != share.op:
          read, is_read = self._ran(reader, times - 1)
          rows = _Rows()
          rows.add(np.arange(len(times)), first + np.arange(len(times)), -1.0)
          rows.add_some(read, 1.0)
          rows.build(builder, lower=-is_read)
    self._exclude(builder, shared)
    return shared

  def _exclude(self, builder: MilpBuilder, shared: list[tuple[int, np.ndarray]]) -> None:
    """At the op's timestep a value gives its buffer to one output, and an output takes one; else none."""
    groups: dict[tuple, list[int]] = {}
    for index, (share, is_certain) in enumerate(self._shares):
      if not is_certain:
        groups.setdefault((share.op, "value", share.value), []).append(index)
        groups.setdefault((share.op, "output", share.output), []).append(index)
    for (op, *_), members in groups.items():
      times = shared[members[0]][1]
      now, has_run = self._ran(op, times)
      before, had_run = self._ran(op, times - 1)
      rows = _Rows()
      for index in members:
        rows.add(np.arange(len(times)), shared[index][0] + np.arange(len(times)), 1.0)
      rows.add_some(now, -1.0)
      rows.add_some(before, 1.0)
      rows.build(builder, upper=has_run - had_run)

  def _start_shares(self, x: np.ndarray, steps: np.ndarray) -> None:
    taken = set()
    for (share, is_certain), (first, times) in zip(self._shares, self._shared):
      others = [steps[reader] for reader in self._graph.values[share.value].last_readers if reader != share.op]
      claims = {(share.op, "value", share.value), (share.op, "output", share.output)}
      if not is_certain and not claims & taken and max(others, default=-1) < steps[share.op]:
        taken |= claims
        x[first + steps[share.op] - times[0]] = 1

  def _precedence_rows(self, builder: MilpBuilder) -> None:
    rows, count, limits = _Rows(), 0, []
    for op, predecessors in enumerate(self._graph.predecessors):
      times = np.arange(self._asap[op], self._alap[op])
      if len(times) > 1:
        rows.add(count + np.arange(len(times) - 1), self._column[op] + np.arange(len(times) - 1), 1.0)
        rows.add(count + np.arange(len(times) - 1), self._column[op] + np.arange(1, len(times)), -1.0)
        limits.append(np.zeros(len(times) - 1))
        count += len(times) - 1
      for before in predecessors:
        columns, has_run = self._ran(before, times - 1)
        waits = np.flatnonzero(has_run == 0)
        rows.add(count + np.arange(len(waits)), self._column[op] + waits, 1.0)
        rows.add(count + np.arange(len(waits)), columns[waits], -1.0)
        limits.append(np.zeros(len(waits)))
        count += len(waits)
    rows.build(builder, upper=np.concatenate([np.empty(0), *limits]))


def _acting_shares(graph: OrderGraph) -> list[tuple[OrderShare, bool]]:
  """Shares that may act, each with whether it acts in every order; what a certain one excludes is left out."""
  acting: list[tuple[OrderShare, bool]] = []
  claimed: dict[tuple, bool] = {}
  for share in graph.shares:
    claims = (share.op, "value", share.value), (share.op, "output", share.output)
    if any(claimed.get(claim, False) for claim in claims):
      continue
    is_certain = len(graph.values[share.value].last_readers) == 1 and not any(claim in claimed for claim in claims)
    claimed |= dict.fromkeys(claims, is_certain)
    acting.append((share, is_certain))
  return acting


class _Rows:
  """Rows collected as (row, column, coefficient)."""

  def __init__(self) -> None:
    self._parts: list[tuple[np.ndarray, ...]] = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]

  def add(self, rows: np.ndarray, columns: np.ndarray, coefficient: float) -> None:
    self._parts.append((rows, columns, np.full(len(rows), float(coefficient))))

  def add_some(self, columns: np.ndarray, coefficient: float) -> None:
    """One entry per row from row 0 on, except where the column is -1."""
    rows = np.flatnonzero(columns >= 0)
    self.add(rows, columns[rows], coefficient)

  def build(
    self,
    builder: MilpBuilder,
    *,
    lower: ArrayLike = -np.inf,
    upper: ArrayLike = np.inf,
    scale: float = 1.0,
  ) -> None:
    """Adds them; there are as many as there are limits. Entries of one column in one row add up."""
    count = next(np.size(limits) for limits in (lower, upper) if np.ndim(limits))
    rows, columns, values = (np.concatenate([part[i] for part in self._parts]) for i in range(3))
    width = int(columns.max(initial=0)) + 1
    keys, inverse = np.unique(rows * width + columns, return_inverse=True)
    sums = np.bincount(inverse, weights=values, minlength=len(keys)) * scale
    kept = sums != 0
    keys, sums = keys[kept], sums[kept]
    starts = np.concatenate([[0], np.cumsum(np.bincount(keys // width, minlength=count))])
    builder.rows(starts, keys % width, sums, np.multiply(lower, scale), np.multiply(upper, scale))
