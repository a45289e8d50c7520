"""A scheduled HLO module as the planners see it, and the memory that XLA will give it.

Both work on the bytes of an ``HloModuleProto`` at POST_SCHEDULER (what the hook receives) or later; the rules stand in
``xla_pass/bridge/hlo_program.h`` and ``xla_pass/buffers/heap.h``.
"""

import dataclasses
import enum

import numpy as np

from coopjax import _core
from coopjax.errors import InvalidProgramError
from coopjax.program.cost import CPU, Roofline
from coopjax.program.step_program import StepProgram


class AllocationKind(enum.IntEnum):
  """What owns the memory that a buffer lies in."""

  TEMPORARY = 0
  PARAMETER = 1
  CONSTANT = 2
  OUTPUT = 3
  TUPLE = 4


@dataclasses.dataclass(frozen=True, eq=False)
class HeapResult:
  """Memory of a scheduled module, predicted without XLA: what the buffer assignment of its platform does.

  Only the device's main memory counts: not a TPU's vector memory, nor the host's.

  The arrays have one row per buffer, in the order of XLA's value ids. Times are positions in the flattened schedule, in
  which a loop's or call's instructions stand once, right before the loop or call.

  Attributes:
    temp_bytes: ``memory_analysis().temp_size_in_bytes``, fragmentation included.
    argument_bytes: of the entry parameters.
    output_bytes: of the results, donated ones included.
    alias_bytes: of the parameters whose memory a result takes over.
    heap_bytes: of the simulated heap alone: temporaries without the pointer tables of tuples.
    peak_live_bytes: what the heap would need if nothing were lost to fragmentation.
    least_temp_bytes: no packing of these buffers takes less: offsets are aligned, and tuples have tables.
    buffer_instruction_ids: instruction that defines each buffer, int64.
    buffer_shape_indices: element of the instruction's result, ``()`` for an array.
    buffer_bytes: int64.
    buffer_offsets: start inside the allocation, int64; all temporaries share one allocation.
    buffer_allocations: number of the allocation, int32.
    buffer_kinds: ``AllocationKind`` of the allocation, uint8. A temporary value may lie in an ``OUTPUT`` or
      ``PARAMETER`` allocation that is unused at the time.
    buffer_starts: first time at which the buffer is live, int32.
    buffer_ends: first time at which it no longer is, int32.
  """

  temp_bytes: int
  argument_bytes: int
  output_bytes: int
  alias_bytes: int
  heap_bytes: int
  peak_live_bytes: int
  least_temp_bytes: int
  buffer_instruction_ids: np.ndarray
  buffer_shape_indices: tuple[tuple[int, ...], ...]
  buffer_bytes: np.ndarray
  buffer_offsets: np.ndarray
  buffer_allocations: np.ndarray
  buffer_kinds: np.ndarray
  buffer_starts: np.ndarray
  buffer_ends: np.ndarray

  @property
  def resident_bytes(self) -> int:
    """Arguments and results, what is donated once: all but the temporaries."""
    return self.argument_bytes + self.output_bytes - self.alias_bytes

  @property
  def total_bytes(self) -> int:
    """Everything that the program holds while it runs."""
    return self.temp_bytes + self.resident_bytes

  @property
  def fragmentation(self) -> float:
    """Share of the heap's need that is lost between buffers: ``(heap - peak live) / heap``."""
    return (self.heap_bytes - self.peak_live_bytes) / self.heap_bytes if self.heap_bytes else 0.0


def parse_module(module_bytes: bytes) -> _core.HloModule:
  """Parses a serialized ``HloModuleProto`` with a schedule, once for all that is asked of it.

  Raises:
    coopjax.errors.InvalidProgramError: the bytes are not such a module.
  """
  try:
    return _core.HloModule(bytes(module_bytes))
  except ValueError as error:
    raise InvalidProgramError(str(error)) from None


def read_step_program(
  module: bytes | _core.HloModule,
  roofline: Roofline | None = None,
  computation_id: int | None = None,
  *,
  kept_scope: str = "",
) -> tuple[StepProgram, np.ndarray]:
  """Reads a computation of a scheduled module.

  Args:
    module: a serialized ``HloModuleProto`` with a schedule, or a parsed one.
    roofline: the target that gives ops their modelled seconds; a CPU by default.
    computation_id: HLO id of a computation that a loop, a conditional or a call runs; by default the entry. Costs are
      those of all its runs, as far as trip counts are known.
    kept_scope: ops with this name in their scope can't be recomputed; by default all are as XLA has them.

  Returns:
    The program, and the HLO instruction id of each op, int64 ``[num_ops]``.

  Raises:
    coopjax.errors.InvalidProgramError: the bytes are not such a module.
  """
  module = parse_module(module) if isinstance(module, bytes) else module
  speeds = roofline or CPU
  try:
    fields, op_instruction_ids = _core.read_step_program(
      module,
      speeds.flops_per_s,
      speeds.transcendentals_per_s,
      speeds.bytes_per_s,
      speeds.op_overhead_s,
      computation_id,
      kept_scope,
    )
  except ValueError as error:
    raise InvalidProgramError(str(error)) from None
  return program_of(fields), op_instruction_ids


def program_of(fields: "_core.ProgramFields") -> StepProgram:
  """A computation as the core tells of it."""
  program = StepProgram(**fields)
  return dataclasses.replace(
    program, op_can_recompute=program.op_can_recompute.astype(bool), may_share=program.may_share.reshape(-1, 3)
  )


def predict_memory(module: bytes | _core.HloModule) -> HeapResult:
  """Predicts the memory that XLA will give a scheduled module; what it was compiled for shows in its instructions.

  On TPU a module at POST_SCHEDULER does not know of vector memory yet, so the compiled program may take less.

  Args:
    module: a serialized ``HloModuleProto`` with a schedule, or a parsed one.

  Raises:
    coopjax.errors.InvalidProgramError: the bytes are not such a module.
  """
  module = parse_module(module) if isinstance(module, bytes) else module
  try:
    return HeapResult(**_core.predict_memory(module))
  except ValueError as error:
    raise InvalidProgramError(str(error)) from None
