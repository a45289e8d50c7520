"""Compiles a function for abstract arguments, from anywhere, and reads what the compiler says of it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from coopjax import compat
from coopjax.program import liveness
from coopjax.remat_plan import MemoryProfile
from coopjax.xla.program import parse_module, predict_memory, read_step_program


def compile_abstract(fn: Callable[..., Any], avals: Sequence[jax.ShapeDtypeStruct]) -> jax.stages.Compiled:
  """Compiles `fn` for positional arguments of these types without running it.

  It may be called while JAX is tracing something else (inside a jitted or differentiated function); `fn` then must
  not close over that trace's values. Named axes in scope (of a `vmap`, of a `shard_map`) are bound: the program is
  what one device runs.

  Args:
    fn: a function of positional arrays.
    avals: one per argument; a sharding on one is obeyed.
  """
  fn, avals = compat.bind_axes(fn, avals)
  with compat.no_trace():
    return jax.jit(fn).lower(*avals).compile()


def module_of(compiled: jax.stages.Compiled) -> bytes:
  """The scheduled module that a compiled program runs, a serialized ``HloModuleProto``."""
  return compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()


def measure(compiled: jax.stages.Compiled) -> MemoryProfile:
  """Memory of a compiled program: sizes from the compiler's memory analysis, live bytes along its schedule."""
  stats = compiled.memory_analysis()
  module = parse_module(module_of(compiled))
  program, _ = read_step_program(module)
  return MemoryProfile(
      temp_bytes=stats.temp_size_in_bytes, argument_bytes=stats.argument_size_in_bytes,
      output_bytes=stats.output_size_in_bytes, alias_bytes=stats.alias_size_in_bytes,
      peak_live_bytes=predict_memory(module).peak_live_bytes,
      live_bytes=tuple(liveness.live_bytes(program, program.schedule).tolist()))

