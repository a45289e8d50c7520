"""Judges a schedule by the rules of ``xla_pass/program/step_program.h``, trusting nobody.

Shares no code with any planner, with ``liveness.py`` or with the C++ core, and is written for obviousness: each rule is
one pass over plain lists. O(steps x fan-in).
"""

import dataclasses
import enum
import itertools
import math
from collections.abc import Sequence

import numpy as np

from coopjax.program.step_program import CONSTANT, OUTPUT, PARAMETER, TEMPORARY, StepProgram


class Rule(enum.Enum):
  """What a schedule can violate."""

  UNKNOWN_OP = "a step that is not an op of the program"
  MISSING_OP = "an op that never runs"
  FORBIDDEN_REPEAT = "an op that runs twice and may not"
  READ_BEFORE_MADE = "a value that is read or overwritten before it is made"
  READ_AFTER_OVERWRITE = "a value that is read after its storage was overwritten"
  CONTROL_ORDER = "an op that first runs before its control predecessor"
  OVER_BUDGET = "more live bytes than the budget"
  WRONG_PEAK = "a peak other than the one claimed"
  WRONG_COST = "a recompute cost other than the one claimed"
  WRONG_PLACEMENT = "a placement that is missing, or of something that is not made there"
  OUTSIDE_ARENA = "a placement outside the arena"
  MISALIGNED = "a placement off the alignment"
  NOT_IN_PLACE = "a value that overwrites another and lies elsewhere"
  OVERLAP = "two values in the same bytes at the same time"


@dataclasses.dataclass(frozen=True)
class Violation:
  """One broken rule: where, and the numbers that show it."""

  rule: Rule
  step: int
  detail: str

  def __str__(self) -> str:
    where = f"step {self.step}: " if self.step >= 0 else ""
    return f"{where}{self.rule.value}: {self.detail}"


@dataclasses.dataclass(frozen=True)
class Report:
  """The verdict.

  Attributes:
    violations: what is wrong, in the order it was found; empty for a valid schedule.
    peak_live_bytes: largest live bytes over the steps; 0 when the order itself is broken.
    peak_step: the first step that reaches it.
    recompute_cost_s: modelled seconds of the repeats.
    recompute_flops: floating-point operations of the repeats.
  """

  violations: tuple[Violation, ...]
  peak_live_bytes: int = 0
  peak_step: int = -1
  recompute_cost_s: float = 0.0
  recompute_flops: float = 0.0

  @property
  def is_valid(self) -> bool:
    return not self.violations

  def __str__(self) -> str:
    return "valid" if self.is_valid else "\n".join(map(str, self.violations))


def validate(
  program: StepProgram,
  schedule: Sequence[int] | np.ndarray,
  *,
  budget_bytes: int | None = None,
  claimed_peak_bytes: int | None = None,
  claimed_cost_s: float | None = None,
  placements: Sequence[tuple[int, int, int]] | np.ndarray | None = None,
  arena_bytes: int | None = None,
  alignment_bytes: int = 1,
) -> Report:
  """Checks data order, pinned values, overwrites, control, live bytes, cost and, where given, addresses.

  Args:
    program: a well-formed program.
    schedule: op ids, repeats allowed.
    budget_bytes: limit on live temporary bytes.
    claimed_peak_bytes: what the planner says the peak is.
    claimed_cost_s: what the planner says the repeats cost.
    placements: ``(value, step of production, offset)`` of every production of a temporary value.
    arena_bytes: size of the arena that the placements lie in.
    alignment_bytes: every offset must be a multiple of it.

  Returns:
    The verdict, with every violation found; costs and bytes are counted here.
  """
  ops = _ops(program)
  steps = np.asarray(schedule, np.int64).tolist()
  violations = _check_order(program, ops, steps)
  if violations:
    return Report(tuple(violations))
  buffers = _buffers(program, ops, steps)
  change = [0] * (len(steps) + 1)  # of the bytes in buffers, from the step before
  for buffer in buffers:
    change[buffer.start] += buffer.size
    change[buffer.end] -= buffer.size
  live = [held + ops[op].workspace_bytes for held, op in zip(itertools.accumulate(change), steps)]
  peak = max(live, default=0)
  seen, repeats = set(), []
  for op in steps:
    if op in seen:
      repeats.append(op)
    seen.add(op)
  cost_s = math.fsum(float(program.op_cost_s[op]) for op in repeats)
  if budget_bytes is not None and peak > budget_bytes:
    violations.append(Violation(Rule.OVER_BUDGET, live.index(peak), f"{peak} > {budget_bytes}"))
  if claimed_peak_bytes is not None and peak != claimed_peak_bytes:
    violations.append(Violation(Rule.WRONG_PEAK, -1, f"{peak}, not {claimed_peak_bytes}"))
  if claimed_cost_s is not None and not math.isclose(cost_s, claimed_cost_s, rel_tol=1e-9, abs_tol=1e-15):
    violations.append(Violation(Rule.WRONG_COST, -1, f"{cost_s}, not {claimed_cost_s}"))
  if placements is not None:
    violations += _check_placements(buffers, placements, arena_bytes, alignment_bytes)
    violations += _check_in_place(program, ops, steps, placements)
  return Report(
    tuple(violations),
    peak,
    live.index(peak) if live else -1,
    cost_s,
    math.fsum(float(program.op_flops[op]) for op in repeats),
  )


@dataclasses.dataclass(slots=True)
class _Op:
  """One op with plain lists."""

  inputs: list[int]
  outputs: list[int]
  control: list[int]
  workspace_bytes: int
  overwrites: list[int]
  may_repeat: bool


def _ops(program: StepProgram) -> list[_Op]:
  kinds, in_place_of = program.value_kind.tolist(), program.value_in_place_of.tolist()
  ops = []
  for inputs, outputs, control, workspace_bytes, can_recompute in zip(
    _rows(program.op_inputs),
    _rows(program.op_outputs),
    _rows(program.op_control),
    program.op_workspace_bytes.tolist(),
    program.op_can_recompute.tolist(),
  ):
    overwrites = [in_place_of[output] for output in outputs if in_place_of[output] >= 0]
    makes_output = OUTPUT in [kinds[output] for output in outputs]
    spoils_input = [value for value in overwrites if kinds[value] != TEMPORARY]
    may_repeat = bool(can_recompute) and not (makes_output or spoils_input)
    ops.append(_Op(inputs, outputs, control, workspace_bytes, overwrites, may_repeat))
  return ops


def _rows(csr: tuple[np.ndarray, np.ndarray]) -> list[list[int]]:
  offsets, items = csr[0].tolist(), csr[1].tolist()
  return [items[start:end] for start, end in itertools.pairwise(offsets)]


def _check_order(program: StepProgram, ops: list[_Op], steps: list[int]) -> list[Violation]:
  found = []
  readable = set(np.flatnonzero(np.isin(program.value_kind, (PARAMETER, CONSTANT))).tolist())
  overwritten, ran = set(), set()
  for step, op_id in enumerate(steps):
    if not 0 <= op_id < len(ops):
      found.append(Violation(Rule.UNKNOWN_OP, step, f"op {op_id} of {program.num_ops}"))
      continue
    op = ops[op_id]
    if op_id in ran and not op.may_repeat:
      found.append(Violation(Rule.FORBIDDEN_REPEAT, step, f"op {op_id}"))
    for value in dict.fromkeys(op.inputs + op.overwrites):
      if value not in readable:
        rule = Rule.READ_AFTER_OVERWRITE if value in overwritten else Rule.READ_BEFORE_MADE
        found.append(Violation(rule, step, f"value {value}, by op {op_id}"))
    found += [
      Violation(Rule.CONTROL_ORDER, step, f"op {op_id} before op {before}")
      for before in op.control
      if before not in ran
    ]
    readable.difference_update(op.overwrites)
    overwritten.update(op.overwrites)
    readable.update(op.outputs)
    overwritten.difference_update(op.outputs)
    ran.add(op_id)
  found += [Violation(Rule.MISSING_OP, -1, f"op {op}") for op in range(program.num_ops) if op not in ran]
  return found


@dataclasses.dataclass(slots=True)
class _Buffer:
  """One production of a temporary value, live on steps [start, end)."""

  value: int
  size: int
  start: int
  end: int
  heir: int = -1  # value that takes the storage over at `end`


def _buffers(program: StepProgram, ops: list[_Op], steps: list[int]) -> list[_Buffer]:
  kinds, sizes = program.value_kind.tolist(), program.value_bytes.tolist()
  buffers, latest = [], {}
  for step, op in enumerate(steps):
    for value in ops[op].inputs:
      if value in latest:
        latest[value].end = step + 1
    for value in ops[op].outputs:
      if kinds[value] == TEMPORARY:
        latest[value] = _Buffer(value, sizes[value], step, step + 1)
        buffers.append(latest[value])
  _pass_on(program, ops, steps, buffers)
  return buffers


def _pass_on(program: StepProgram, ops: list[_Op], steps: list[int], buffers: list[_Buffer]) -> None:
  """Ends a step early what is overwritten, or read for the last time where an output may take its buffer over."""
  shares = {}
  for op, given, taker in np.asarray(program.may_share).reshape(-1, 3).tolist():
    shares.setdefault(op, []).append((given, taker))
  in_place_of = program.value_in_place_of.tolist()
  givers = {given for pairs in shares.values() for given, _ in pairs}.union(in_place_of)
  dying = {
    (buffer.end - 1, buffer.value): buffer
    for buffer in buffers
    if buffer.value in givers and buffer.end - 1 > buffer.start
  }
  for step, op in enumerate(steps):
    if not ops[op].overwrites and op not in shares:
      continue
    heirs = set()
    for output in ops[op].outputs:
      base = in_place_of[output]
      if base >= 0:
        heirs.add(output)
        if (step, base) in dying:
          _inherit(dying.pop((step, base)), step, output)
    for given, taker in shares.get(op, ()):
      if (step, given) in dying and taker not in heirs:
        heirs.add(taker)
        _inherit(dying.pop((step, given)), step, taker)


def _inherit(buffer: _Buffer, step: int, heir: int) -> None:
  buffer.end, buffer.heir = step, heir


def _check_in_place(
  program: StepProgram,
  ops: list[_Op],
  steps: list[int],
  placements: Sequence[tuple[int, int, int]] | np.ndarray,
) -> list[Violation]:
  """Who overwrites a value of at least its size lies where that lay."""
  found, latest = [], {}  # step of production, per value
  offsets: dict[tuple[int, int | None], int] = {
    (int(value), int(step)): int(offset) for value, step, offset in placements
  }
  sizes, in_place_of = program.value_bytes.tolist(), program.value_in_place_of.tolist()
  for step, op in enumerate(steps):
    for output in ops[op].outputs:
      latest[output] = step
      over = in_place_of[output]
      if over < 0 or not 0 < sizes[output] <= sizes[over]:
        continue
      ours, theirs = offsets.get((output, step)), offsets.get((over, latest.get(over)))
      if ours is not None and theirs is not None and ours != theirs:
        found.append(Violation(Rule.NOT_IN_PLACE, step, f"value {output} at {ours}, value {over} at {theirs}"))
  return found


def _check_placements(
  buffers: list[_Buffer],
  placements: Sequence[tuple[int, int, int]] | np.ndarray,
  arena_bytes: int | None,
  alignment_bytes: int,
) -> list[Violation]:
  found = []
  offsets = {(int(value), int(step)): int(offset) for value, step, offset in placements}
  placed = []
  for buffer in buffers:
    offset = offsets.pop((buffer.value, buffer.start), None)
    if offset is None:
      found.append(Violation(Rule.WRONG_PLACEMENT, buffer.start, f"value {buffer.value} has none"))
    elif buffer.size > 0:
      placed.append((buffer, offset))
  found += [Violation(Rule.WRONG_PLACEMENT, step, f"value {value}") for value, step in offsets]
  for buffer, offset in placed:
    end = offset + buffer.size
    if offset < 0 or (arena_bytes is not None and end > arena_bytes):
      detail = f"value {buffer.value} at [{offset}, {end}) of {arena_bytes}"
      found.append(Violation(Rule.OUTSIDE_ARENA, buffer.start, detail))
    if offset % alignment_bytes:
      found.append(Violation(Rule.MISALIGNED, buffer.start, f"value {buffer.value} at {offset}"))
  active = []
  for buffer, offset in sorted(placed, key=lambda item: item[0].start):
    active = [(other, at) for other, at in active if other.end > buffer.start]
    for other, at in active:
      if at < offset + buffer.size and offset < at + other.size:
        detail = f"value {other.value} at {at} (+{other.size}) and value {buffer.value} at {offset} (+{buffer.size})"
        found.append(Violation(Rule.OVERLAP, buffer.start, detail))
    active.append((buffer, offset))
  return found
