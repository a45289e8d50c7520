"""XLA's own buffer assignment: which buffer of a compiled program lies where, and how large its temporaries are.

The bytes come from ``compiled.memory_analysis().serialized_buffer_assignment_proto`` (CPU) or from a dump
(``*.after_optimizations.hlo.pb``, an ``HloProto``; every backend).
"""

import dataclasses

from coopjax import _core


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
  def _from_fields(cls, fields: dict) -> "BufferAssignment":
    return cls(tuple(LogicalBuffer(*row) for row in fields["logical_buffers"]),
               tuple(Allocation(*row) for row in fields["allocations"]))

  @property
  def temp_bytes(self) -> int:
    """``memory_analysis().temp_size_in_bytes``."""
    return sum(allocation.bytes for allocation in self.allocations if allocation.is_temporary)
