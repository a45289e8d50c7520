"""XLA's own buffer assignment: which buffer of a compiled program lies where, and how large its temporaries are.

The bytes come from ``compiled.memory_analysis().serialized_buffer_assignment_proto`` (CPU) or from a dump
(``*.after_optimizations.hlo.pb``, an ``HloProto``; every backend).
"""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from coopjax import _core
from coopjax.program.step_program import TEMPORARY, StepProgram
from coopjax.xla.module import AllocationKind, HeapResult

_HOST_COLOR = 5  # of allocations in the host's memory


class Sizes(NamedTuple):
  """What ``compiled.memory_analysis()`` says, for a program without an executable."""

  temp_size_in_bytes: int
  argument_size_in_bytes: int
  output_size_in_bytes: int
  alias_size_in_bytes: int
  host_temp_size_in_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class LogicalBuffer:
  """A value that has memory.

  Attributes:
    id: XLA's id.
    bytes: size.
    instruction_id: HLO instruction that defines it, 0 where XLA gives only the name.
    instruction_name: its name, or "" where XLA gives only the id.
    shape_index: element of the instruction's result.
    color: memory space, 0 the device's main memory.
  """

  id: int
  bytes: int
  instruction_id: int
  instruction_name: str
  shape_index: tuple[int, ...]
  color: int


@dataclasses.dataclass(frozen=True)
class Allocation:
  """A piece of memory.

  Attributes:
    index: number of the allocation.
    bytes: size.
    is_thread_local: on the stack of a reducer, comparator or the like.
    is_tuple: a table of pointers.
    is_entry_parameter: belongs to the caller.
    is_constant: part of the executable.
    maybe_live_out: holds a result.
    parameter_number: of an entry parameter, else -1.
    color: memory space.
    assigned: ``(logical buffer id, offset, bytes)`` of what lies in it.
  """

  index: int
  bytes: int
  is_thread_local: bool
  is_tuple: bool
  is_entry_parameter: bool
  is_constant: bool
  maybe_live_out: bool
  parameter_number: int
  color: int
  assigned: tuple[tuple[int, int, int], ...]

  @property
  def is_temporary(self) -> bool:
    """Whether ``temp_size_in_bytes`` counts it."""
    return not (self.is_entry_parameter or self.maybe_live_out or self.is_thread_local or self.is_constant)


@dataclasses.dataclass(frozen=True)
class BufferAssignment:
  """A parsed ``BufferAssignmentProto``.

  Attributes:
    logical_buffers: the values.
    allocations: the memory.
  """

  logical_buffers: tuple[LogicalBuffer, ...]
  allocations: tuple[Allocation, ...]

  @classmethod
  def from_bytes(cls, proto: bytes) -> "BufferAssignment":
    """Reads a serialized ``BufferAssignmentProto``; ``ValueError`` when it is something else."""
    return cls._from_fields(_core.parse_buffer_assignment(bytes(proto), False))

  @classmethod
  def from_hlo_proto(cls, proto: bytes) -> "BufferAssignment":
    """Reads the buffer assignment of a serialized ``HloProto``, as XLA dumps it; empty when it has none."""
    return cls._from_fields(_core.parse_buffer_assignment(bytes(proto), True))

  @classmethod
  def _from_fields(cls, fields: "_core.BufferAssignmentFields") -> "BufferAssignment":
    return cls(
      tuple(LogicalBuffer(*row) for row in fields["logical_buffers"]),
      tuple(Allocation(*row) for row in fields["allocations"]),
    )

  @property
  def temp_bytes(self) -> int:
    """``memory_analysis().temp_size_in_bytes``."""
    return self.sizes().temp_size_in_bytes

  def sizes(self) -> Sizes:
    """Of what lies in the device's main memory, and of temporaries in the host's."""
    main = [allocation for allocation in self.allocations if allocation.color == 0]
    parameters = [allocation for allocation in main if allocation.is_entry_parameter]
    return Sizes(
      temp_size_in_bytes=sum(allocation.bytes for allocation in main if allocation.is_temporary),
      argument_size_in_bytes=sum(allocation.bytes for allocation in parameters),
      output_size_in_bytes=sum(allocation.bytes for allocation in main if allocation.maybe_live_out),
      alias_size_in_bytes=sum(allocation.bytes for allocation in parameters if allocation.maybe_live_out),
      host_temp_size_in_bytes=sum(
        allocation.bytes
        for allocation in self.allocations
        if allocation.color == _HOST_COLOR and allocation.is_temporary
      ),
    )


def module_of_hlo_proto(hlo_proto: bytes) -> bytes:
  """The first field of a serialized ``HloProto``, its module: a tag byte and a varint of its length before it.

  Raises:
    ValueError: the bytes begin with something else, or end too early.
  """
  length, start, shift, byte = 0, 1, 0, 0x80
  if hlo_proto[:1] != b"\n":
    raise ValueError("the bytes are not an HloProto")
  while byte & 0x80 and start < min(len(hlo_proto), 11):
    byte = hlo_proto[start]
    length |= (byte & 0x7F) << shift
    start, shift = start + 1, shift + 7
  if start + length > len(hlo_proto):
    raise ValueError(f"an HloProto that ends after {len(hlo_proto):,} bytes: its module alone has {length:,}")
  return hlo_proto[start : start + length]


def value_offsets(
  program: StepProgram, op_instruction_ids: np.ndarray, heap: BufferAssignment | HeapResult
) -> np.ndarray:
  """Where each value of a program lies among the temporaries.

  Args:
    program: from `read_step_program`.
    op_instruction_ids: from the same.
    heap: the backend's assignment of that module, or a predicted one.

  Returns:
    int64 ``[num_values]``: offsets; -1 for what is no temporary, or lies elsewhere (in an output's memory, say).
  """
  op_of_name = {name: op for op, name in enumerate(program.op_names)}
  op_of_id = {int(instruction_id): op for op, instruction_id in enumerate(op_instruction_ids)}
  places: dict[int, list[tuple[tuple[int, ...], int, int]]] = {}
  for instruction_id, name, shape_index, num_bytes, offset in _temporaries(heap):
    op = op_of_id.get(instruction_id) if instruction_id else op_of_name.get(name)
    if op is not None:
      places.setdefault(op, []).append((shape_index, num_bytes, offset))
  offsets = np.full(program.num_values, -1, np.int64)
  for op, found in places.items():
    queue = sorted(found)
    for value in program.outputs(op):  # in the order of the result's elements; a loop hands some through
      for i, (_, num_bytes, offset) in enumerate(queue):
        if num_bytes == program.value_bytes[value] and program.value_kind[value] == TEMPORARY:
          offsets[value] = offset
          del queue[: i + 1]
          break
  return offsets


def _temporaries(heap: BufferAssignment | HeapResult) -> Iterator[tuple[int, str, tuple[int, ...], int, int]]:
  """``(instruction id, name, element of the result, bytes, offset)`` of every value in the largest temporary piece."""
  if isinstance(heap, HeapResult):
    for i in np.flatnonzero(heap.buffer_kinds == AllocationKind.TEMPORARY):
      yield (
        int(heap.buffer_instruction_ids[i]),
        "",
        tuple(heap.buffer_shape_indices[i]),
        int(heap.buffer_bytes[i]),
        int(heap.buffer_offsets[i]),
      )
    return
  buffers = {buffer.id: buffer for buffer in heap.logical_buffers}
  pieces = [allocation for allocation in heap.allocations if allocation.is_temporary and not allocation.is_tuple]
  for buffer_id, offset, num_bytes in max(pieces, key=lambda piece: piece.bytes).assigned if pieces else ():
    buffer = buffers[buffer_id]
    yield buffer.instruction_id, buffer.instruction_name, buffer.shape_index, num_bytes, offset
