"""What a schedule means for people: which values are kept or recomputed, and what fills the peak."""

import numpy as np

from coopjax.program import liveness
from coopjax.program.step_program import TEMPORARY, StepProgram


def describe_value(program: StepProgram, value: int) -> str:
  """``f32[8,128] of fusion.12 (model.py:40)``, as far as the program knows these names."""
  producer = program.value_producer[value]
  parts = [program.value_types[value] if program.value_types else f"value {value}"]
  if producer >= 0 and program.op_names:
    parts.append(f"of {program.op_names[producer]}")
  if producer >= 0 and program.op_sources and program.op_sources[producer]:
    parts.append(f"({program.op_sources[producer]})")
  return " ".join(parts)


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
  """Values that a plan had to decide on, largest first: recomputed, or kept across the peak of the given order."""
  peak = int(np.argmax(liveness.live_bytes(program, program.schedule)))
  values, starts, ends = liveness.live_ranges(program, program.schedule)
  across_peak = {int(v) for v, start, end in zip(values, starts, ends) if start < peak < end - 1}
  for op in np.flatnonzero(times_recomputed(program, schedule)):
    across_peak.update(int(value) for value in program.outputs(op))
  decided = [value for value in across_peak if program.value_kind[value] == TEMPORARY and program.value_bytes[value] > 0]
  return sorted(decided, key=lambda value: (-program.value_bytes[value], value))
