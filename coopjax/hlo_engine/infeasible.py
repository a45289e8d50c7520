"""What forces a compiled program over its budget: the op at the peak, in a loop's body too, and what is live there."""

import dataclasses

import numpy as np

from coopjax import _core
from coopjax.errors import BudgetInfeasibleError, InvalidProgramError
from coopjax.program import explain
from coopjax.xla.module import AllocationKind, parse_module, predict_memory, read_step_program


def why_infeasible(
  module_bytes: bytes,
  headline: str,
  *,
  schedule: np.ndarray | None = None,
  budget_bytes: int,
  smallest_bytes: int,
) -> BudgetInfeasibleError:
  """The error that a missed budget deserves.

  Args:
    module_bytes: the scheduled module.
    headline: what was asked and what was reached.
    schedule: the smallest that was found of the module's entry computation; its own by default.
    budget_bytes: what was asked.
    smallest_bytes: what was reached.
  """
  module = parse_module(module_bytes)
  program, _ = read_step_program(module)
  schedule = program.schedule if schedule is None else schedule
  op, _ = explain.largest_at_peak(program, schedule)
  inside = peak_inside(module, program.op_names[op]) if program.op_workspace_bytes[op] else None
  bound_program = dataclasses.replace(program, op_workspace_bytes=_core.least_workspaces(module))
  return explain.infeasible(
    program,
    schedule,
    headline,
    budget_bytes=budget_bytes,
    smallest_bytes=smallest_bytes,
    inside=inside,
    bound_program=bound_program,
  )


def peak_inside(module: _core.HloModule, name: str) -> explain.Inside | None:
  """The peak of what lives only inside a loop, call or conditional; None where it holds nothing of its own.

  Args:
    module: the scheduled module.
    name: of an instruction of its entry computation.
  """
  try:
    heap, facts = predict_memory(module), _core.inspect_module(module)
  except (InvalidProgramError, ValueError):
    return None
  computations, stop = facts["computations"], facts["names"].index(name)
  start = stop  # what an instruction calls stands right before it
  while start > 0 and computations[start - 1] != computations[-1]:
    start -= 1
  is_temporary = heap.buffer_kinds == AllocationKind.TEMPORARY
  buffers = np.flatnonzero(is_temporary & (heap.buffer_starts >= start) & (heap.buffer_ends <= stop))
  if not buffers.size:
    return None
  change = np.zeros(stop - start + 1, np.int64)
  np.add.at(change, heap.buffer_starts[buffers] - start, heap.buffer_bytes[buffers])
  np.subtract.at(change, heap.buffer_ends[buffers] - start, heap.buffer_bytes[buffers])
  peak = start + int(np.cumsum(change).argmax())
  live = [int(i) for i in buffers if heap.buffer_starts[i] <= peak < heap.buffer_ends[i]]
  time_of = {int(instruction): time for time, instruction in enumerate(facts["instruction_ids"])}
  makers = {i: time_of[int(heap.buffer_instruction_ids[i])] for i in live}
  return explain.Inside(
    f"{facts['names'][peak]} {facts['sources'][peak]}".rstrip(),
    sum(int(heap.buffer_bytes[i]) for i in live),
    tuple(
      explain.Live(
        int(heap.buffer_bytes[i]),
        facts["buffer_types"][i].partition("{")[0],
        facts["names"][makers[i]],
        facts["sources"][makers[i]],
      )
      for i in live
    ),
  )
