"""The lines of what loops stack: of a scan's residuals the op in its body that makes them, not the scan itself.

Such a value is an element of what the loop carries. In the body an op writes one turn's share into it, in place, and
that op has the scan's line; what it writes was made by the user's. An element that is carried unchanged into the stack
(a layer's input) has no maker in the body, and keeps the line of the scan.
"""

import dataclasses
from collections.abc import Sequence

from coopjax import _core
from coopjax.errors import InvalidProgramError
from coopjax.memory_profile import Buffer
from coopjax.program.step_program import StepProgram
from coopjax.xla.module import read_step_program

_WRITES = "dynamic_update_slice"  # as JAX calls it, at the end of a scope
_COMPUTATION_BITS = 32  # of an instruction's id, above its number there: XLA's ids of computations


def lines_of_stacked(buffers: Sequence[Buffer], module: _core.HloModule, facts: "_core.ModuleFacts") -> list[Buffer]:
  """Buffers with the line, frames and scope of what is written into them turn by turn, where a loop stacks that."""
  makers, buffer_of = _makers(module, facts), {_op_name(buffer): buffer for buffer in buffers}
  written: dict[tuple[int, int, int], list[tuple[Buffer, Buffer]]] = {}
  for writer in buffers:
    if maker := buffer_of.get(makers.get(_op_name(writer), "")):
      written.setdefault(_place(writer), []).append((writer, maker))
  return [_named(buffer, written.get(_place(buffer), [])) for buffer in buffers]


def _makers(module: _core.HloModule, facts: "_core.ModuleFacts") -> dict[str, str]:
  """Of each op that writes a turn's share of a stack, the op that makes it, by name."""
  bodies = {
    int(instruction_id) >> _COMPUTATION_BITS
    for instruction_id, scope in zip(facts["instruction_ids"], facts["scopes"], strict=True)
    if scope.endswith(_WRITES)
  }
  makers = dict[str, str]()
  for body in bodies - {0}:
    try:
      program, _ = read_step_program(module, computation_id=body)
    except InvalidProgramError:  # one whose costs are not known: its lines stay the scan's
      continue
    for op in range(program.num_ops):
      if program.op_scopes[op].endswith(_WRITES) and (maker := _maker(program, op)) is not None:
        makers[program.op_names[op]] = program.op_names[maker]
  return makers


def _maker(program: StepProgram, op: int) -> int | None:
  """The op that makes most of what an op writes into a value that the loop carries; None where that has no line."""
  inputs = sorted(map(int, program.inputs(op)), key=lambda value: -program.value_bytes[value])
  if not inputs or program.value_producer[inputs[0]] >= 0:
    return None
  made = [int(program.value_producer[value]) for value in inputs[1:2]]
  return next((each for each in made if each >= 0 and program.op_sources[each]), None)


def _named(buffer: Buffer, written: Sequence[tuple[Buffer, Buffer]]) -> Buffer:
  for writer, maker in written:
    is_stack = buffer.op in ("while", "parameter") and writer.start <= buffer.end and buffer.start <= writer.end
    if buffer is writer or is_stack:
      scope = buffer.scope if buffer.is_argument else maker.scope  # an argument's is its name
      return dataclasses.replace(buffer, source=maker.source, frames=maker.frames, scope=scope)
  return buffer


def _place(buffer: Buffer) -> tuple[int, int, int]:
  return buffer.allocation, buffer.offset, buffer.num_bytes


def _op_name(buffer: Buffer) -> str:
  return buffer.name.partition("[")[0]
