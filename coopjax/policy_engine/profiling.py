"""The profile of a function from one compile of it with its gradient: see ``coopjax/policy_engine/compiled_profile.py``."""

import jax

from coopjax.errors import InvalidProgramError
from coopjax.policy_engine.compiled_profile import Profile, read_profile
from coopjax.jaxpr.trace import TracedFn
from coopjax.xla.buffer_assignment import BufferAssignment, value_offsets
from coopjax.xla.compile import OversizedProgram, module_of
from coopjax.xla.module import parse_module, predict_memory, read_step_program

_OFFSETS_WITHIN = 0.1  # of the temporaries: offsets of our own packing that is off by more are not XLA's


def profile_of(traced: TracedFn, compiled: jax.stages.Compiled | OversizedProgram) -> Profile | None:
  """What a compile says of the function's values, by the equations that make them.

  Offsets are those of XLA's buffer assignment where the backend shows it (CPU), else of our own packing.

  Args:
    traced: the function.
    compiled: from it with its gradient, ``fn_and_gradient(traced, tagged_fn(traced))``.

  Returns:
    The profile; None for a module whose memory we don't understand.
  """
  stats = compiled.memory_analysis()
  return profile_of_module(traced, module_of(compiled), stats.temp_size_in_bytes,
                           getattr(stats, "serialized_buffer_assignment_proto", b""))


def profile_of_module(traced: TracedFn, module_bytes: bytes, temp_bytes: int | None = None, assignment: bytes = b""
                      ) -> Profile | None:
  """As `profile_of`, from a scheduled module, with XLA's temporaries and buffer assignment as far as they are known."""
  try:
    module = parse_module(module_bytes)
    program, op_instruction_ids = read_step_program(module)
    heap = BufferAssignment.from_bytes(assignment) if assignment else predict_memory(module)
  except InvalidProgramError:
    return None
  temp_bytes = heap.temp_bytes if temp_bytes is None else temp_bytes
  if abs(heap.temp_bytes - temp_bytes) > _OFFSETS_WITHIN * temp_bytes:
    return None
  return read_profile(traced, program, value_offsets(program, op_instruction_ids, heap), temp_bytes)
