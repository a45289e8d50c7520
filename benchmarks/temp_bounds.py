"""Bytes of temporaries that no order of a scheduled module goes below, or no schedule with repeats.

Bounds on live bytes are known: MODeL's on all orders (minimum cuts, `coopjax.planners.model`), and what no schedule
avoids (`_core.lower_bound`). XLA also puts temporaries into the buffers of results, and of donated arguments, while
these hold nothing: so results and donated arguments are made temporaries here, and what all of those take is given away
at the end. A temporary larger than each of those buffers finds no room there, so what such values take alone is a
bound, too.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from coopjax import _core
from coopjax.planners.effort import DEFAULT_STEPS
from coopjax.planners.model.planner import ModelPlanner
from coopjax.program.step_program import OUTPUT, PARAMETER, TEMPORARY, StepProgram, csr
from coopjax.xla.module import parse_module, read_step_program


def of_orders(program: StepProgram) -> int:
  """Live bytes that no order of the program's ops goes below."""
  return ModelPlanner().plan(program, 0, max_steps=DEFAULT_STEPS).counters["bound_bytes"]


def of_schedules(program: StepProgram) -> int:
  """Live bytes that no order goes below, with whatever repeats."""
  return _core.lower_bound(program.core)[0]


def least_temp_bytes(module: bytes, bound: Callable[[StepProgram], int]) -> int:
  """Bytes of temporaries that no order (`of_orders`) or no schedule (`of_schedules`) of a module takes less than."""
  parsed = parse_module(module)
  program, _ = read_step_program(parsed)
  # A branch may use the buffers of its operands, and those of its results, as scratch.
  around = [program.value_bytes[np.r_[program.inputs(op), program.outputs(op)]].sum() for op in range(program.num_ops)]
  is_conditional = np.array([kind == "conditional" for kind in program.op_kinds])
  workspaces = _core.least_workspaces(parsed) - np.where(is_conditional, around, 0)
  whole, standing_bytes = _with_standing_buffers(
    dataclasses.replace(program, op_workspace_bytes=np.maximum(workspaces, 0))
  )
  largest = max(standing_bytes, default=0)
  large = dataclasses.replace(whole, value_bytes=np.where(whole.value_bytes > largest, whole.value_bytes, 0))
  return max(bound(whole) - sum(standing_bytes), bound(large), 0)


def _with_standing_buffers(program: StepProgram) -> tuple[StepProgram, list[int]]:
  """The program with results and donated arguments as temporaries, and the bytes of the buffers that XLA holds for
  them: made by a first op, and read by a last one.
  """
  first, last = program.num_ops, program.num_ops + 1
  place, kind, producer = (
    field.copy() for field in (program.value_in_place_of, program.value_kind, program.value_producer)
  )
  outputs = np.flatnonzero(kind == OUTPUT)
  donated = np.array([v for v in np.unique(place[place >= 0]) if kind[v] == PARAMETER], np.int32)
  roots = set(donated.tolist())
  for value in outputs:
    while place[value] >= 0:
      value = place[value]
    roots.add(int(value))
  # What is overwritten unread is free until then.
  reads = [program.inputs(op).tolist() for op in range(program.num_ops)]
  for value in np.flatnonzero(np.isin(place, donated)):
    if place[value] not in reads[producer[value]]:
      place[value] = -1
  overwritten = set(place.tolist())
  free = [
    (producer[output], value, output)
    for output in outputs
    if place[output] < 0
    for value in reads[producer[output]]
    if kind[value] == TEMPORARY and value not in overwritten
  ]
  kind[outputs] = kind[donated] = TEMPORARY
  producer[donated] = first
  made = [program.outputs(op) for op in range(program.num_ops)]
  waited_for = [program.control(op) for op in range(program.num_ops)]
  padded = {
    name: np.r_[getattr(program, name), np.zeros(2, getattr(program, name).dtype)]
    for name in ("op_cost_s", "op_flops", "op_workspace_bytes", "op_can_recompute")
  }
  standing = dataclasses.replace(
    program,
    op_inputs=csr([*reads, [], [value for value in outputs if value not in overwritten]]),
    op_outputs=csr([*made, donated, []]),
    op_control=csr([*waited_for, [], []]),
    value_producer=producer,
    value_kind=kind,
    value_in_place_of=place,
    may_share=np.r_[program.may_share.reshape(-1, 3), np.array(free, np.int32).reshape(-1, 3)].astype(np.int32),
    schedule=np.r_[first, program.schedule, last].astype(np.int32),
    op_names=(),
    op_kinds=(),
    op_scopes=(),
    op_sources=(),
    **padded,
  )
  return standing, [int(program.value_bytes[value]) for value in roots]
