"""The MILP that the exact planner refines: an order, with memory watched at a few of its steps.

Stage ``t`` of an order is the t-th op with the repeats right before it. A watched step is ``(stage, slot)``: the run of
the op at position ``slot`` in that stage; ``(t, t)`` is the first run of op ``t``, ``(t, k)`` with ``k < t`` a repeat,
if there is one. Watched steps cut the order into stretches. Per stretch and op, a variable says whether the op is
repeated there; per watched step and value, another whether the value is held across it:

- repeated in a stretch: each input is held across the step before, or repeated there too, or made there anyway;
- held across a step: held across the step before, or made in the stretch between;
- at a watched step the values held across it, what its op reads and makes and its workspace fit the budget.

With every step watched this is Checkmate's frontier-advancing MILP (Jain et al. 2020, eqs. 1 to 5; each op at most once
a stage, in the program's order) without its product terms: a value takes bytes where the variables say it lives. With
fewer it is a relaxation: its optimum bounds Checkmate's, and while only first runs are watched it bounds every schedule
with these first runs, however often and in whatever order ops are repeated between them. Where an input may leave its
buffer to an output, the most favourable choice is allowed.

O(watched x (ops + uses)) variables and rows, of which only those stay whose values a later op can need.
"""

import dataclasses

import numpy as np

from coopjax.planners.milp import Milp, MilpBuilder
from coopjax.program.step_program import OUTPUT, TEMPORARY, StepProgram

Step = tuple[int, int]  # (stage, slot)
_BUDGET_UNITS = 1000.0  # rows of bytes are scaled to this, so that solvers' absolute tolerances mean nothing


class OrderedProgram:
  """A program seen along one order: ops are positions.

  Args:
    program: the program.
    order: its first runs, int32 ``[num_ops]``.
    least_bytes: smaller values count as free, which makes any bound smaller, never wrong.
  """

  def __init__(self, program: StepProgram, order: np.ndarray, least_bytes: int = 0):
    self.program, self.order = program, [int(op) for op in order]
    self.num_ops = len(self.order)
    position = np.full(program.num_ops + 1, -1)  # the last stands for "no producer"
    position[order] = np.arange(self.num_ops)
    self.made_at = position[program.value_producer].tolist()
    self.overwritten_at = [self.num_ops] * program.num_values
    self.sizes = program.value_bytes.tolist()
    for output in np.flatnonzero(program.value_in_place_of >= 0).tolist():
      self.overwritten_at[program.value_in_place_of[output]] = self.made_at[output]
    is_overwritten = np.array(self.overwritten_at, int) < self.num_ops
    self.is_tracked = (
      (program.value_kind == TEMPORARY)
      & (program.value_producer >= 0)
      & ((program.value_bytes > max(least_bytes - 1, 0)) | is_overwritten)
    ).tolist()
    self.inputs = [self._tracked(program.inputs(op)) for op in self.order]
    self.outputs = [self._tracked(program.outputs(op)) for op in self.order]
    self.cost_s = program.op_cost_s[order].tolist()
    self.workspace = program.op_workspace_bytes[order].tolist()
    self.may_repeat = [self._may_repeat(op) for op in self.order]
    # From when on an op can't run again because something that nobody makes anew has been overwritten.
    self.last_chance = [
      min(
        (self.overwritten_at[value] for value in program.inputs(op).tolist() if not self.is_tracked[value]),
        default=self.num_ops,
      )
      for op in self.order
    ]
    self.readers: list[list[int]] = [[] for _ in range(program.num_values)]
    for at, values in enumerate(self.inputs):
      for value in values:
        self.readers[value].append(at)

  def overwritten_by(self, at: int) -> list[int]:
    """Values whose storage the op at position ``at`` takes."""
    bases = (int(self.program.value_in_place_of[output]) for output in self.program.outputs(self.order[at]).tolist())
    return [base for base in bases if base >= 0]

  def shares(self, at: int) -> list[tuple[int, int]]:
    """Pairs (input, output) of the op at ``at`` that may use one buffer."""
    spoilt, heirs = (
      set(self.overwritten_by(at)),
      {output for output in self.outputs[at] if self.program.value_in_place_of[output] >= 0},
    )
    rows = self.program.may_share
    return [
      (given, taker)
      for _, given, taker in rows[rows[:, 0] == self.order[at]].tolist()
      if self.is_tracked[given] and given not in spoilt and taker not in heirs
    ]

  def wanted(self, first: int) -> set[int]:
    """Values made before position ``first`` that an op from there on reads, or that can help to make such a value."""
    found: set[int] = set()
    pending = [value for at in range(first, self.num_ops) for value in self.inputs[at] if self.made_at[value] < first]
    while pending:
      value = pending.pop()
      if value not in found:
        found.add(value)
        if self.may_repeat[self.made_at[value]]:
          pending.extend(self.inputs[self.made_at[value]])
    return found

  def _tracked(self, values: np.ndarray) -> list[int]:
    return [value for value in values.tolist() if self.is_tracked[value]]

  def _may_repeat(self, op: int) -> bool:
    program, outputs = self.program, self.program.outputs(op)
    bases = program.value_in_place_of[outputs]
    return bool(
      program.op_can_recompute[op]
      and (program.value_kind[outputs] != OUTPUT).all()
      and (program.value_kind[bases[bases >= 0]] == TEMPORARY).all()
    )


@dataclasses.dataclass(frozen=True)
class Stretch:
  """The steps after one watched step, up to the next, with that one.

  Attributes:
    first: position of the first op whose first run lies in the stretch.
    end: the watched step, ``(num_ops, num_ops)`` after the last.
    above: ops up to this position have had their turn in the stretch's only stage; -1 elsewhere.
  """

  first: int
  end: Step
  above: int

  @property
  def next_first(self) -> int:
    """``first`` of the next stretch."""
    stage, slot = self.end
    return stage + (slot == stage)


def stretches_of(num_ops: int, watched: list[Step]) -> list[Stretch]:
  """The stretches that sorted watched steps make."""
  stretches, first, above = [], 0, -1
  for stage, slot in [*watched, (num_ops, num_ops)]:
    stretches.append(Stretch(first, (stage, slot), above if first == stage else -1))
    first, above = (stage + 1, -1) if slot == stage else (stage, slot)
  return stretches


class WatchedModel:
  """The MILP of an order, a budget and some watched steps.

  Args:
    ordered: the program along an order.
    budget_bytes: limit at the watched steps.
    watched: sorted.
    least_cost_s: known to be unavoidable.
    most_cost_s: plans that cost more are of no interest.
  """

  def __init__(
    self,
    ordered: OrderedProgram,
    budget_bytes: int,
    watched: list[Step],
    *,
    least_cost_s: float,
    most_cost_s: float,
  ):
    self.ordered, self.stretches = ordered, stretches_of(ordered.num_ops, watched)
    self._scale = _BUDGET_UNITS / max(budget_bytes, 1)
    self._budget = budget_bytes * self._scale
    self._costs: list[float] = []
    self._lower: list[float] = []
    self._rows: list[tuple[list[int], list[float], float]] = []  # columns, values, upper
    self.repeats: list[dict[int, int]] = []  # per stretch: position -> column
    self.runs: list[int] = []  # per watched step: column of "the op runs there"
    self.held: list[dict[int, int]] = [{}]  # per stretch: value -> column of "held when it begins"
    for stretch in self.stretches:
      self._add_stretch(stretch)
    paid = [column for column, cost_s in enumerate(self._costs) if cost_s > 0]
    unit = max((self._costs[column] for column in paid), default=1.0)
    prices = [self._costs[column] / unit for column in paid]
    if np.isfinite(most_cost_s):
      self._rows.append((paid, prices, most_cost_s / unit + 1e-9))
    if paid and least_cost_s > 0:
      self._rows.append((paid, [-price for price in prices], 1e-9 - least_cost_s / unit))

  def build(self) -> Milp:
    """The problem; costs in seconds."""
    builder = MilpBuilder()
    builder.variables(len(self._costs), lower=np.array(self._lower), cost=np.array(self._costs))
    starts = np.cumsum([0] + [len(columns) for columns, _, _ in self._rows])
    builder.rows(
      starts,
      [column for columns, _, _ in self._rows for column in columns],
      [value for _, values, _ in self._rows for value in values],
      upper=[upper for _, _, upper in self._rows],
    )
    return builder.build()

  def _variable(self, cost_s: float = 0.0, lower: float = 0.0) -> int:
    self._costs.append(cost_s)
    self._lower.append(lower)
    return len(self._costs) - 1

  def _at_most(self, column: int, others: list[int]) -> None:
    """``x[column] <= sum of x[others]``."""
    self._rows.append(([column, *others], [1.0] + [-1.0] * len(others), 0.0))

  def _add_stretch(self, stretch: Stretch) -> None:
    ordered, held, stage = self.ordered, self.held[-1], stretch.end[0]
    wanted_after = ordered.wanted(stretch.next_first) if stage < ordered.num_ops else set()
    spoilt = {value for at in range(stretch.first, stage) for value in ordered.overwritten_by(at)}
    repeats = self._add_repeats(stretch, wanted_after & spoilt)
    self.repeats.append(repeats)

    def sources(value: int) -> list[int]:
      return [columns[key] for columns, key in ((held, value), (repeats, ordered.made_at[value])) if key in columns]

    for at, column in repeats.items():
      for value in ordered.inputs[at]:
        if ordered.made_at[value] < stretch.first:
          self._at_most(column, sources(value))
    needed = {value for at in range(stretch.first, stage) for value in ordered.inputs[at]}
    for value in sorted(needed):
      if ordered.made_at[value] < stretch.first:
        columns = sources(value)
        self._rows.append((columns, [-1.0] * len(columns), -1.0))
    if stage < ordered.num_ops:
      self._add_watched(stretch, wanted_after, spoilt, sources)

  def _add_repeats(self, stretch: Stretch, spoilt: set[int]) -> dict[int, int]:
    """A variable per op that may be worth repeating in the stretch; of what is made there, only what is overwritten."""
    ordered, (stage, slot) = self.ordered, stretch.end
    ops = {ordered.made_at[value] for value in ordered.wanted(stretch.first)}
    ops |= {ordered.made_at[value] for value in spoilt if ordered.made_at[value] >= stretch.first}
    if stretch.first == stage:
      ops = {at for at in ops if stretch.above < at < slot}
    return {
      at: self._variable(ordered.cost_s[at])
      for at in sorted(ops)
      if ordered.may_repeat[at] and ordered.last_chance[at] >= stretch.first
    }

  def _add_watched(self, stretch: Stretch, wanted_after: set[int], spoilt: set[int], sources) -> None:
    ordered, (stage, slot) = self.ordered, stretch.end
    is_first_run = slot == stage
    run = self._variable(0.0 if is_first_run else ordered.cost_s[slot], float(is_first_run))
    self.runs.append(run)
    inputs, outputs = set(ordered.inputs[slot]), set(ordered.outputs[slot])
    overwritten = set(ordered.overwritten_by(slot))
    for value in sorted(inputs):
      if ordered.made_at[value] < stretch.first:
        self._at_most(run, sources(value))
    held: dict[int, int] = {}
    run_bytes, bytes_of = ordered.workspace[slot] * self._scale, {}
    for value in sorted(wanted_after | inputs | outputs):
      size = ordered.sizes[value] * self._scale
      if value in wanted_after:
        column = held[value] = self._variable()
        self._bound_held(stretch, value, column, spoilt, sources)
      if value in overwritten:
        if value in held:
          self._rows.append(([held[value], run], [1.0, 1.0], 1.0))
          bytes_of[held[value]] = size
      elif value not in inputs and value not in outputs:
        bytes_of[held[value]] = size
      elif value not in held:
        run_bytes += size
      else:
        live = self._variable()
        self._at_most(held[value], [live])
        self._at_most(run, [live])
        bytes_of[live] = size
    bytes_of |= {run: run_bytes, **self._add_shares(slot, run, held)}
    self._rows.append((list(bytes_of), list(bytes_of.values()), self._budget))
    self.held.append(held)

  def _bound_held(self, stretch: Stretch, value: int, column: int, spoilt: set[int], sources) -> None:
    """What is held across the end of a stretch was there before, or is made in the stretch, its last step included."""
    ordered, slot = self.ordered, stretch.end[1]
    columns = [self.runs[-1]] if value in ordered.outputs[slot] else []
    if value in spoilt:
      repeats = self.repeats[-1]
      self._at_most(column, columns + [repeats[at] for at in [ordered.made_at[value]] if at in repeats])
    elif not stretch.first <= ordered.made_at[value] < stretch.end[0]:
      self._at_most(column, columns + sources(value))

  def _add_shares(self, slot: int, run: int, held: dict[int, int]) -> dict[int, float]:
    """Bytes that inputs which die at the step leave to outputs: at most one pair per input and per output."""
    pairs = [(given, taker, self._variable()) for given, taker in self.ordered.shares(slot)]
    for given, _, column in pairs:
      self._at_most(column, [run])
      if given in held:
        self._rows.append(([column, held[given]], [1.0, 1.0], 1.0))
    for side in (0, 1):
      for value in sorted({pair[side] for pair in pairs}):
        columns = [pair[2] for pair in pairs if pair[side] == value]
        self._rows.append((columns, [1.0] * len(columns), 1.0))
    return {column: -self.ordered.sizes[given] * self._scale for given, _, column in pairs}
