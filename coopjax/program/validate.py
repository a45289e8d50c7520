"""Judges a schedule by the rules of ``xla_pass/step_program.h``, trusting nobody.

Shares no code with any planner, with ``liveness.py`` or with the C++ core, and is written for obviousness: each rule is
one pass over plain lists. O(steps x fan-in x log repeats).
"""

import bisect
import dataclasses
import enum
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
  schedule: Sequence[int],
  *,
  budget_bytes: int | None = None,
  claimed_peak_bytes: int | None = None,
  claimed_cost_s: float | None = None,
  placements: Sequence[tuple[int, int, int]] | None = None,
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
  ops = [_Op(program, op) for op in range(program.num_ops)]
  steps = [int(step) for step in schedule]
  violations = _check_order(program, ops, steps)
  if violations:
    return Report(tuple(violations))
  buffers = _buffers(program, ops, steps)
  live = [ops[op].workspace_bytes for op in steps]
  for buffer in buffers:
    for step in range(buffer.start, buffer.end):
      live[step] += buffer.size
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
  return Report(
    tuple(violations), peak, live.index(peak) if live else -1, cost_s,
    math.fsum(float(program.op_flops[op]) for op in repeats),
  )


class _Op:
  """One op with plain lists."""

  def __init__(self, program: StepProgram, op: int):
    self.inputs = [int(value) for value in program.inputs(op)]
    self.outputs = [int(value) for value in program.outputs(op)]
    self.control = [int(before) for before in program.control(op)]
    self.workspace_bytes = int(program.op_workspace_bytes[op])
    self.overwrites = [int(program.value_in_place_of[output]) for output in self.outputs
                       if program.value_in_place_of[output] >= 0]
    makes_output = any(program.value_kind[output] == OUTPUT for output in self.outputs)
    spoils_input = any(program.value_kind[value] != TEMPORARY for value in self.overwrites)
    self.may_repeat = bool(program.op_can_recompute[op]) and not makes_output and not spoils_input


def _check_order(program: StepProgram, ops: list[_Op], steps: list[int]) -> list[Violation]:
  found = []
  readable = {value for value in range(program.num_values)
              if program.value_kind[value] in (PARAMETER, CONSTANT)}
  overwritten, ran = set(), set()
  for step, op in enumerate(steps):
    if not 0 <= op < program.num_ops:
      found.append(Violation(Rule.UNKNOWN_OP, step, f"op {op} of {program.num_ops}"))
      continue
    if op in ran and not ops[op].may_repeat:
      found.append(Violation(Rule.FORBIDDEN_REPEAT, step, f"op {op}"))
    for value in {*ops[op].inputs, *ops[op].overwrites} - readable:
      rule = Rule.READ_AFTER_OVERWRITE if value in overwritten else Rule.READ_BEFORE_MADE
      found.append(Violation(rule, step, f"value {value}, by op {op}"))
    found += [Violation(Rule.CONTROL_ORDER, step, f"op {op} before op {before}")
              for before in ops[op].control if before not in ran]
    readable.difference_update(ops[op].overwrites)
    overwritten.update(ops[op].overwrites)
    readable.update(ops[op].outputs)
    overwritten.difference_update(ops[op].outputs)
    ran.add(op)
  found += [Violation(Rule.MISSING_OP, -1, f"op {op}") for op in range(program.num_ops) if op not in ran]
  return found


@dataclasses.dataclass
class _Buffer:
  """One production of a temporary value, live on steps [start, end)."""

  value: int
  size: int
  start: int
  end: int
  heir: int = -1  # value that takes the storage over at `end`


def _buffers(program: StepProgram, ops: list[_Op], steps: list[int]) -> list[_Buffer]:
  made, read = {}, {}
  for step, op in enumerate(steps):
    for value in ops[op].inputs:
      read.setdefault(value, []).append(step)
    for value in ops[op].outputs:
      made.setdefault(value, []).append(step)
  shares = {}
  for op, given, taker in np.asarray(program.may_share).reshape(-1, 3).tolist():
    shares.setdefault(op, []).append((given, taker))
  buffers, dying = [], {}
  for value, productions in made.items():
    if program.value_kind[value] != TEMPORARY:
      continue
    reads = read.get(value, [])
    for start, following in zip(productions, [*productions[1:], len(steps)]):
      reads_of_it = reads[bisect.bisect_right(reads, start):bisect.bisect_right(reads, following)]
      last = reads_of_it[-1] if reads_of_it else None
      buffer = _Buffer(value, int(program.value_bytes[value]), start, start + 1 if last is None else last + 1)
      buffers.append(buffer)
      if last is not None:
        dying[last, value] = buffer
  for step, op in enumerate(steps):
    heirs = set()
    for output in ops[op].outputs:
      base = int(program.value_in_place_of[output])
      if base >= 0:
        heirs.add(output)
        if (step, base) in dying:
          _inherit(dying.pop((step, base)), step, output)
    for given, taker in shares.get(op, ()):
      if (step, given) in dying and taker not in heirs:
        heirs.add(taker)
        _inherit(dying.pop((step, given)), step, taker)
  return buffers


def _inherit(buffer: _Buffer, step: int, heir: int) -> None:
  buffer.end, buffer.heir = step, heir


def _check_placements(
  buffers: list[_Buffer], placements: Sequence[tuple[int, int, int]], arena_bytes: int | None, alignment_bytes: int,
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
