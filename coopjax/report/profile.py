"""Every buffer of a compiled program with the user's line behind it, from a dump, a module or the program itself."""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from coopjax import _core
from coopjax.errors import DumpError
from coopjax.memory_profile import Buffer, MemoryProfile, Totals, totals_of
from coopjax.planning.remat_plan import RematPlan
from coopjax.program import layers
from coopjax.report import dump, loops
from coopjax.xla.buffer_assignment import Allocation, BufferAssignment
from coopjax.xla.compile import module_of
from coopjax.xla.module import AllocationKind, HeapResult, parse_module, predict_memory, read_step_program

_BACKWARD = "transpose("
_MEMORY = {
  AllocationKind.TEMPORARY: "temporary",
  AllocationKind.PARAMETER: "parameter",
  AllocationKind.CONSTANT: "constant",
  AllocationKind.OUTPUT: "output",
  AllocationKind.TUPLE: "temporary",
}


def inspect(source: Any, module: str | None = None) -> MemoryProfile:
  """Memory of a compiled program, buffer by buffer: what lies there at the peak, and which of your lines made it.

  Args:
    source: a dump directory of ``--xla_dump_to`` or a file in it (``.hlo.pb``, HLO text, ``-buffer-assignment.txt``;
      gzipped too), a ``jax.stages.Compiled`` (of ``eqx.filter_jit`` and ``nnx.jit``, too), or a
      :class:`coopjax.RematPlan` (its compiled totals).
    module: of a directory, the module whose name contains this; the largest by default.

  Returns:
    The profile. Bytes are XLA's; from HLO text without a buffer assignment beside it they are modelled
    (``is_predicted``), exactly so for a CPU.

  Raises:
    coopjax.DumpError: the input holds no compiled program; the message says what was expected and found.

  Example:
    >>> import jax, jax.numpy as jnp, coopjax
    >>> profile = coopjax.inspect(jax.jit(lambda x: jnp.sort(x @ x).sum()).lower(jnp.ones((64, 64))).compile())
    >>> profile.grouped(profile.at_peak(), "dtype")[0].key
    'f32'
  """
  if isinstance(source, RematPlan):
    return source.measured
  compiled = getattr(source, "compiled", source)  # Equinox and NNX wrap what their jits compile
  if isinstance(compiled, jax.stages.Compiled):
    return _of_compiled(compiled)
  if isinstance(source, (str, os.PathLike)):
    return of_dump(dump.read(source, module))
  raise DumpError(
    f"inspect takes a path, a jax.stages.Compiled or a RematPlan, not a {type(source).__name__}: "
    "for a function, give it jax.jit(fn).lower(*args).compile()"
  )


def of_dump(found: dump.Dump) -> MemoryProfile:
  """The profile of a dump that was read."""
  if found.module is None:
    assert found.assignment is not None  # there is no dump with neither
    rows = list(_rows_of_assignment(found.assignment))
    buffers = [_buffer(row, found.types.get(row.id, "")) for row in rows]
    return MemoryProfile(**totals_of(found.assignment.sizes()), name=found.name, buffers=tuple(buffers))
  return _of_module(found.module, found.assignment, found.name)


def _of_compiled(compiled: jax.stages.Compiled) -> MemoryProfile:
  stats = compiled.memory_analysis()
  if stats is None:
    raise DumpError("the backend that compiled this program tells nothing of its memory")
  proto = stats.serialized_buffer_assignment_proto
  profile = _of_module(parse_module(module_of(compiled)), BufferAssignment.from_bytes(proto) if proto else None)
  return dataclasses.replace(profile, **totals_of(stats))


def _of_module(module: _core.HloModule, assignment: BufferAssignment | None, name: str = "") -> MemoryProfile:
  heap, facts = predict_memory(module), _core.inspect_module(module)
  if assignment is None:
    rows = list(_rows_of_heap(heap))
    totals: Totals = {
      "temp_bytes": heap.temp_bytes,
      "argument_bytes": heap.argument_bytes,
      "output_bytes": heap.output_bytes,
      "alias_bytes": heap.alias_bytes,
      "host_bytes": 0,
    }
  else:
    rows, totals = list(_rows_of_assignment(assignment)), totals_of(assignment.sizes())
  buffers = loops.lines_of_stacked(_Describer(heap, facts).buffers(rows), module, facts)
  live_bytes = _live_bytes(buffers, len(facts["names"]))
  profile = MemoryProfile(
    **totals,
    name=name or facts["module_name"],
    buffers=tuple(buffers),
    is_predicted=assignment is None,
    live_bytes=tuple(live_bytes.tolist()),
    peak_live_bytes=int(live_bytes.max(initial=0)),
  )
  return _with_program(profile, module, facts)


class _Row(NamedTuple):
  """One value in memory, from either source."""

  id: int
  instruction_id: int
  name: str
  shape_index: tuple[int, ...]
  num_bytes: int
  allocation: int
  offset: int
  memory_space: int
  memory: str


def _rows_of_heap(heap: HeapResult) -> Iterator[_Row]:
  for i, kind in enumerate(heap.buffer_kinds):
    yield _Row(
      i,
      int(heap.buffer_instruction_ids[i]),
      "",
      heap.buffer_shape_indices[i],
      int(heap.buffer_bytes[i]),
      int(heap.buffer_allocations[i]),
      int(heap.buffer_offsets[i]),
      0,
      _MEMORY[AllocationKind(kind)],
    )


def _rows_of_assignment(assignment: BufferAssignment) -> Iterator[_Row]:
  buffers = {buffer.id: buffer for buffer in assignment.logical_buffers}
  for allocation in assignment.allocations:
    if allocation.is_thread_local:
      continue
    for buffer_id, offset, num_bytes in allocation.assigned:
      buffer = buffers[buffer_id]
      yield _Row(
        buffer_id,
        buffer.instruction_id,
        buffer.instruction_name,
        buffer.shape_index,
        num_bytes,
        allocation.index,
        offset,
        allocation.color,
        _memory_of(allocation),
      )


def _memory_of(allocation: Allocation) -> str:
  if allocation.is_entry_parameter:
    return "parameter"
  if allocation.is_constant:
    return "constant"
  return "output" if allocation.maybe_live_out else "temporary"


def _buffer(row: _Row, type_: str, **facts: Any) -> Buffer:
  index = f"[{','.join(map(str, row.shape_index))}]" if row.shape_index else ""
  kind = facts.pop("kind", row.memory)
  return Buffer(
    name=facts.pop("name", row.name) + index,
    type=type_.partition("{")[0] if type_[:1] != "(" else type_,
    num_bytes=row.num_bytes,
    allocation=row.allocation,
    offset=row.offset,
    memory_space=row.memory_space,
    memory=row.memory,
    kind=kind,
    **facts,
  )


class _Describer:
  """What the module says of the buffers: types, live ranges, lines."""

  def __init__(self, heap: HeapResult, facts: "_core.ModuleFacts"):
    self._heap, self._facts = heap, facts
    self._time_of_id = {int(instruction_id): time for time, instruction_id in enumerate(facts["instruction_ids"])}
    self._time_of_name = {name: time for time, name in enumerate(facts["names"])}
    self._value_of = {
      (int(instruction_id), index): i
      for i, (instruction_id, index) in enumerate(
        zip(heap.buffer_instruction_ids, heap.buffer_shape_indices, strict=True)
      )
    }
    self._end = len(facts["names"])
    self._frames: dict[int, tuple[str, ...]] = {0: ()}  # by id: many buffers come from one line

  def buffers(self, rows: list[_Row]) -> list[Buffer]:
    """The buffers of all rows but those of values that are none of the scheduled program's."""
    found = []
    for row in rows:
      time = self._time_of_id.get(row.instruction_id) if row.instruction_id else self._time_of_name.get(row.name)
      if time is not None:
        found.append(self._describe(row, time))
    return found

  def _describe(self, row: _Row, time: int) -> Buffer:
    facts = self._facts
    value = self._value_of.get((int(facts["instruction_ids"][time]), row.shape_index))
    start, end, type_, padding = -1, -1, "", 0
    if value is not None:
      start, end = int(self._heap.buffer_starts[value]), int(self._heap.buffer_ends[value])
      type_ = facts["buffer_types"][value]
      padding = max(row.num_bytes - int(facts["buffer_unpadded_bytes"][value]), 0)
    return _buffer(
      row,
      type_,
      kind=self._kind(row, time, end),
      name=facts["names"][time],
      padding_bytes=padding,
      start=start,
      end=end,
      op=facts["opcodes"][time],
      scope=facts["scopes"][time],
      source=facts["sources"][time],
      frames=self._stack(int(facts["frame_ids"][time])),
    )

  def _stack(self, frame_id: int) -> tuple[str, ...]:
    """A frame and those that called it, the innermost first; what is traced in a trace has those around once more, as
    XLA notes them, and they are told once.
    """
    if frame_id not in self._frames:
      text, callers = self._facts["frames"][frame_id - 1], self._stack(int(self._facts["frame_callers"][frame_id - 1]))
      self._frames[frame_id] = callers if text.startswith("<frozen ") else _once(text, callers)  # how Python began
    return self._frames[frame_id]

  def _kind(self, row: _Row, time: int, end: int) -> str:
    """Of the value: outputs' and donated parameters' memory serves as scratch, too."""
    if row.memory == "constant" or (row.memory == "parameter" and self._facts["opcodes"][time] == "parameter"):
      return row.memory
    if row.memory != "temporary" and (end < 0 or end >= self._end):
      return "output"
    is_read_late = 0 <= time < end and _BACKWARD in self._facts["scopes"][end - 1]
    return "residual" if is_read_late and _BACKWARD not in self._facts["scopes"][time] else "temporary"


def _once(frame: str, callers: tuple[str, ...]) -> tuple[str, ...]:
  """A frame on its callers, without what comes twice in a row; a frame that calls itself may."""
  frames = (frame, *callers)
  for length in range(2, len(frames) // 2 + 1):
    if frames[:length] == frames[length : 2 * length]:
      return frames[length:]
  return frames


def _live_bytes(buffers: list[Buffer], num_steps: int) -> np.ndarray:
  """Live temporary bytes at each step; a value that takes over a dying operand's memory counts once."""
  change = np.zeros(num_steps + 1, np.int64)
  last_at: dict[tuple[int, int], tuple[int, int]] = {}  # place -> (end, bytes) of the value there last
  timed = [b for b in buffers if b.memory == "temporary" and not b.memory_space and 0 <= b.start < b.end]
  for buffer in sorted(timed, key=lambda b: (b.start, b.end)):
    place = (buffer.allocation, buffer.offset)
    change[buffer.start] += buffer.num_bytes
    change[buffer.end] -= buffer.num_bytes
    end, num_bytes = last_at.get(place, (0, 0))
    if buffer.start < end:  # the one before hands its memory over
      change[buffer.start] -= num_bytes
      change[end] += num_bytes
    last_at[place] = (buffer.end, buffer.num_bytes)
  return np.cumsum(change[:num_steps])


def _with_program(profile: MemoryProfile, module: _core.HloModule, facts: "_core.ModuleFacts") -> MemoryProfile:
  """With the layer of each temporary of the entry, the cost to make it again, and the rank of its bytes by that."""
  program, _ = read_step_program(module)
  entry = facts["computations"][-1]  # its root runs last
  instructions = zip(facts["opcodes"], facts["computations"], facts["scopes"], strict=True)
  paths = [scope for op, computation, scope in instructions if op == "parameter" and computation == entry]
  type_of = {buffer.argument: buffer.type for buffer in profile.arguments}
  arguments = layers.layers_of_arguments(paths, [type_of.get(path, "") for path in paths])
  layer_of = dict(zip(program.op_names, layers.layers_of_ops(program, arguments), strict=True))
  remake_s, _ = _core.remake_costs(program.core, program.schedule)
  cost_s = {program.op_names[op]: float(remake_s[program.outputs(op)].max(initial=0)) for op in range(program.num_ops)}
  costs = {}
  for i, buffer in enumerate(profile.buffers):
    cost = cost_s.get(_op_name(buffer), np.inf)
    if buffer.memory == "temporary" and np.isfinite(cost):
      costs[i] = cost
  ranked = sorted(costs, key=lambda i: (costs[i] / max(profile.buffers[i].num_bytes, 1), i))
  buffers = [
    dataclasses.replace(buffer, made_of_layer=layer) if (layer := layer_of.get(_op_name(buffer))) else buffer
    for buffer in profile.buffers
  ]
  for rank, i in enumerate(ranked):
    buffers[i] = dataclasses.replace(buffers[i], cost_s=costs[i], cost_rank=rank)
  return dataclasses.replace(profile, buffers=tuple(buffers))


def _op_name(buffer: Buffer) -> str:
  return buffer.name.partition("[")[0]
