"""Live ranges and live bytes of a schedule, in numpy; the rules are those of ``xla_pass/program/step_program.h``."""

import numpy as np

from coopjax.program.step_program import OUTPUT, TEMPORARY, StepProgram


def live_ranges(program: StepProgram, schedule: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The live range of every production of every value, half-open.

  Args:
    program: the program.
    schedule: op ids, repeats allowed; must be valid.

  Returns:
    ``(values, starts, ends)``, int arrays with one entry per production, by start. Outputs end with the schedule;
    parameters and constants have no range. O(ops + uses).
  """
  values, starts, ends = [], [], []
  latest = np.full(program.num_values, -1)
  overwritten = {
    int(value): int(program.value_in_place_of[value]) for value in np.flatnonzero(program.value_in_place_of >= 0)
  }
  shares: dict[int, list[tuple[int, int]]] = {}
  for op, given, taker in program.may_share.tolist():
    in_place = {overwritten.get(int(output)) for output in program.outputs(op)}
    if program.value_kind[given] == TEMPORARY and given not in in_place and taker not in overwritten:
      shares.setdefault(op, []).append((given, taker))
  passed_on = []  # (step, range of the input, output), settled in order once all reads are known
  for step, op in enumerate(np.asarray(schedule).tolist()):
    inputs, outputs = program.inputs(op).tolist(), program.outputs(op).tolist()
    for value in inputs:
      if latest[value] >= 0:
        ends[latest[value]] = step + 1
    passed_on += [(step, int(latest[overwritten[output]]), None) for output in outputs if output in overwritten]
    passed_on += [(step, int(latest[given]), taker) for given, taker in shares.get(op, ())]
    for value in outputs:
      latest[value] = len(values)
      values.append(value)
      starts.append(step)
      ends.append(step + 1)
  taken = set()
  for step, given, taker in passed_on:
    if given >= 0 and ends[given] == step + 1 and (step, taker) not in taken:
      ends[given] = step
      if taker is not None:
        taken.add((step, taker))
  values, starts, ends = (np.array(column, np.int64) for column in (values, starts, ends))
  ends[program.value_kind[values] == OUTPUT] = len(schedule)
  return values, starts, ends


def live_bytes(program: StepProgram, schedule: np.ndarray) -> np.ndarray:
  """Bytes that count against the budget at each step, int64 ``[steps]``."""
  values, starts, ends = live_ranges(program, schedule)
  sizes = np.where(program.value_kind[values] == TEMPORARY, program.value_bytes[values], 0)
  change = np.zeros(len(schedule) + 1, np.int64)
  np.add.at(change, starts, sizes)
  np.subtract.at(change, ends, sizes)
  return np.cumsum(change[:-1]) + program.op_workspace_bytes[schedule]
