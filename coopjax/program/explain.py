"""What a schedule means for people: which values are kept or recomputed, and what fills the peak."""

import dataclasses

import numpy as np

from coopjax.budget import format_bytes
from coopjax.errors import BudgetInfeasibleError
from coopjax.program import liveness
from coopjax.program.step_program import TEMPORARY, StepProgram


def largest_at_peak(program: StepProgram, schedule: np.ndarray, top: int = 3) -> tuple[int, list[int]]:
  """The op at the peak of a schedule, and the largest temporary values live there.

  Args:
    program: the program.
    schedule: op ids, repeats allowed.
    top: how many values.

  Returns:
    ``(op, value ids)``, largest first.
  """
  peak = int(np.argmax(liveness.live_bytes(program, schedule)))
  live = {int(value) for value, start, end in zip(*liveness.live_ranges(program, schedule)) if start <= peak < end}
  return int(schedule[peak]), sorted(live, key=lambda value: (-program.value_bytes[value], value))[:top]


def times_recomputed(program: StepProgram, schedule: np.ndarray) -> np.ndarray:
  """How often each op runs beyond its first run, int ``[num_ops]``."""
  return np.bincount(schedule, minlength=program.num_ops) - 1


def decided_values(program: StepProgram, schedule: np.ndarray) -> list[int]:
  """Values that a plan had to decide on, largest first: recomputed, or kept across the peak of the given order.

  An op's scratch, which nothing reads, is no such value.
  """
  peak = int(np.argmax(liveness.live_bytes(program, program.schedule)))
  values, starts, ends = liveness.live_ranges(program, program.schedule)
  across_peak = {int(v) for v, start, end in zip(values, starts, ends) if start < peak < end - 1}
  for op in np.flatnonzero(times_recomputed(program, schedule)):
    across_peak.update(int(value) for value in program.outputs(op))
  is_decided = (program.value_kind == TEMPORARY) & (program.value_bytes > 0)
  is_decided &= np.isin(np.arange(program.num_values), program.op_inputs[1])
  decided = [value for value in across_peak if is_decided[value]]
  return sorted(decided, key=lambda value: (-program.value_bytes[value], value))


@dataclasses.dataclass(frozen=True)
class Live:
  """A value that is live at a peak; its `source` is the user's line, or ""."""

  num_bytes: int
  type: str
  op: str
  source: str

  def __str__(self) -> str:
    parts = self.type, self.op and f"of {self.op}", self.source and f"({self.source})"
    return " ".join(filter(None, parts))


@dataclasses.dataclass(frozen=True)
class Inside:
  """The peak inside a loop, call or conditional: the op there, the bytes live, and the values."""

  op: str
  num_bytes: int
  live: tuple[Live, ...]


def infeasible(
  program: StepProgram,
  schedule: np.ndarray,
  headline: str,
  *,
  budget_bytes: int,
  smallest_bytes: int,
  inside: Inside | None = None,
  bound_program: StepProgram | None = None,
  top: int = 3,
) -> BudgetInfeasibleError:
  """The error that a missed budget deserves.

  Args:
    program: what was planned.
    schedule: the smallest that was found.
    headline: what was asked and what was reached.
    budget_bytes: what was asked.
    smallest_bytes: what was reached.
    inside: the op at the peak, if that is a loop, from within.
    bound_program: the same with the least workspaces that ops may come to have, if those of `program` are not that.
    top: how many values are named.

  Returns:
    An error with the op at the peak (inside the loop there, if most of the bytes are), the largest values live there
    and, where it is the reason, the bound that no schedule gets below.
  """
  from coopjax import _core

  bound_bytes, bound_op = _core.lower_bound((bound_program or program).core)
  op, values = largest_at_peak(program, schedule, top)
  live, name, lines = [_live(program, value) for value in values], _describe_op(program, op), [headline]
  where = name
  if inside is not None:
    if inside.num_bytes > sum(value.num_bytes for value in live):
      name, where = inside.op, f"{inside.op} inside {name}"
    live = sorted((*live, *inside.live), key=lambda value: -value.num_bytes)[:top]
  if budget_bytes < bound_bytes:
    lines.append(
      f"no schedule whatever has fewer than {format_bytes(bound_bytes)} live, scratch in output buffers "
      f"included: {_describe_op(program, bound_op)} needs them around it"
    )
  lines += [
    f"what forces the smallest is {where}; the largest values live there:",
    *(f"  {format_bytes(value.num_bytes):>10}  {value}" for value in live),
  ]
  largest = tuple((value.num_bytes, value.type, value.source) for value in live)
  return BudgetInfeasibleError(
    "\n".join(lines), budget_bytes=budget_bytes, smallest_bytes=smallest_bytes, op=name, largest=largest
  )


def _live(program: StepProgram, value: int) -> Live:
  producer = program.value_producer[value]
  return Live(
    int(program.value_bytes[value]),
    program.value_types[value] if program.value_types else f"value {value}",
    program.op_names[producer] if producer >= 0 and program.op_names else "",
    program.op_sources[producer] if producer >= 0 and program.op_sources else "",
  )


def _describe_op(program: StepProgram, op: int) -> str:
  """Name and the user's line; where XLA made the op without one, of the nearest op before it that has one."""
  name = program.op_names[op] if program.op_names else f"op {op}"
  near = _with_source(program, op) if program.op_sources else None
  if near is None:
    return name
  return (
    f"{name} {program.op_sources[op]}"
    if near == op
    else (f"{name} (of {program.op_names[near]} {program.op_sources[near]})")
  )


def _with_source(program: StepProgram, op: int) -> int | None:
  """The op itself, or the nearest one that leads to it, with a line of the user's; None if none has one."""
  level, seen = [op], {op}
  while level:
    if found := [each for each in level if program.op_sources[each]]:
      return found[0]
    makers = [int(program.value_producer[value]) for each in level for value in program.inputs(each)]
    level = [each for each in dict.fromkeys(makers) if each >= 0 and each not in seen]
    seen.update(level)
  return None
