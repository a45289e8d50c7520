"""Compiles a function for abstract arguments, from anywhere, for any target, and reads what the compiler says of it."""

import contextlib
import dataclasses
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from coopjax import compat
from coopjax.budget import format_bytes
from coopjax.errors import CompileMemoryError, InvalidProgramError
from coopjax.memory_profile import MemoryProfile, totals_of
from coopjax.program import liveness
from coopjax.xla import standing, targets
from coopjax.xla.buffer_assignment import BufferAssignment, Sizes, module_of_hlo_proto
from coopjax.xla.module import parse_module, predict_memory, read_step_program
from coopjax.xla.targets import Target

_jit = jax.jit  # JAX's own, whatever the name stands for by then (`coopjax.launching`)
# What is compiled here is looked at, never run: XLA makes the same module of it, and LLVM, half of a compile, no fast
# code. JAX's switch does not reach XLA:TPU's rematerialization: with this, no value is large enough for it.
_PLANNING: dict[str, dict[str, Any]] = {
  "cpu": {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True},
  "tpu": {"xla_tpu_rematerialization_min_size_in_bytes": 2**50},
}
# Goes on where a program needs more memory than the device has.
_ANY_SIZE = {"tpu": {"xla_tpu_no_crash_on_oom": True}}
_UNTUNED = {"gpu": {"xla_gpu_autotune_level": 0}}  # most of the way to a schedule, which kernels hardly matter for
_TPU_SCHEDULER_PERCENT = 95  # XLA's default: of the memory of a device, what a schedule aims at
_NEARLY = 0.9  # of what a draft says: what a program takes in any case
_DESCRIBES_WITHIN = 0.01  # of the temporaries: a prediction that is off by no more describes the compiled program


@dataclasses.dataclass(frozen=True)
class OversizedProgram:
  """A program that XLA scheduled and assigned buffers to, without an executable: it does not fit the device, or nobody
  wants to run it.

  Attributes:
    sizes: of its buffer assignment.
    module_bytes: the scheduled module, a serialized ``HloModuleProto``.
    is_draft: of a program that was to go no further, and may fit: what a budget counts of it, `as_counted` says.
  """

  sizes: Sizes
  module_bytes: bytes = dataclasses.field(repr=False)
  is_draft: bool = False

  @classmethod
  def as_predicted(cls, module_bytes: bytes) -> "OversizedProgram":
    """Of a module that only reached its schedule, with the buffer assignment that XLA:CPU would make, to the byte."""
    memory = predict_memory(module_bytes)
    return cls(Sizes(memory.temp_bytes, memory.argument_bytes, memory.output_bytes, memory.alias_bytes), module_bytes)

  def as_analysed(self) -> "OversizedProgram":
    """A draft with what the memory analysis of its program will say, where our reading of the module says it."""
    with contextlib.suppress(InvalidProgramError):
      return self.as_predicted(self.module_bytes)
    return dataclasses.replace(self, is_draft=False)

  def as_allocated(self, device: Target) -> "OversizedProgram":
    """A draft with the heap that its program will have: packed as tightly only where the device has no more."""
    with contextlib.suppress(InvalidProgramError):
      sizes = self.sizes._replace(temp_size_in_bytes=predict_memory(self.module_bytes).heap_bytes)
      if _total_bytes(sizes) <= device.memory_bytes:
        return dataclasses.replace(self, sizes=sizes, is_draft=False)
    return dataclasses.replace(self, is_draft=False)

  def memory_analysis(self) -> Sizes:
    """The sizes, under the name that compiled programs have for them."""
    return self.sizes


class BoundProgram(Protocol):
  """A program with its arguments in it, which lowers itself."""

  def lower(self) -> jax.stages.Lowered:
    """It, lowered with its own jit."""
    ...


type Compilable = Callable[..., Any] | BoundProgram


def compile_abstract(
  fn: Compilable, avals: Sequence[jax.ShapeDtypeStruct], target: Target | None = None
) -> jax.stages.Compiled:
  """Compiles `fn` for positional arguments of these types without running it.

  It may be called while JAX is tracing something else (inside a jitted or differentiated function); `fn` then must
  not close over that trace's values. Named axes in scope (of a `vmap`, of a `shard_map`) are bound: the program is
  what one device runs. XLA's own rematerialization is off, passes that the user has disabled stay disabled.

  Args:
    fn: a function of positional arrays, or a program that has them in it; what lowers itself does so, with a jit of its
      own.
    avals: one per argument; a sharding on one is obeyed, over the target's devices if there is a target.
    target: what to compile for; None for the default backend.

  Raises:
    CompileMemoryError: the program does not fit the device.
    MissingWheelError: the target's compiler is not installed.
  """
  compiled = _compile(_lower(fn, avals, target), fn, target)
  if not fits(compiled, target):  # XLA:GPU compiles it all the same
    total_bytes = _total_bytes(compiled.memory_analysis())
    raise _memory_error(fn, target, f"arguments, outputs and temporaries take {format_bytes(total_bytes)}")
  return compiled


def fits(compiled: jax.stages.Compiled | OversizedProgram, target: Target | None) -> bool:
  """Whether a program has an executable, and what it holds fits the target's memory; CPUs swap."""
  if isinstance(compiled, OversizedProgram):
    return False
  if target is None or target.platform != "gpu":
    return True  # XLA:TPU makes no executable of what its buffers do not fit
  return _total_bytes(compiled.memory_analysis()) <= target.memory_bytes


def compile_trial(
  fn: Compilable,
  avals: Sequence[jax.ShapeDtypeStruct],
  target: Target | None = None,
  *,
  draft_above: int | None = None,
  to_schedule: bool = False,
) -> jax.stages.Compiled | OversizedProgram:
  """Compiles as `compile_abstract`, but a program that does not fit the device is a result, too, with its sizes.

  Args:
    fn: as for `compile_abstract`.
    avals: as for `compile_abstract`.
    target: as for `compile_abstract`.
    draft_above: bytes that the program holds in any case, its arguments and outputs for one: where the target's
      compiler `makes_drafts`, it goes only as far as buffers are assigned, less than a tenth of the work.
    to_schedule: nothing is wanted of what follows its schedule. A GPU that is not there tunes no kernels for it.
  """
  lowered, device = _lower(fn, avals, target), targets.running() if target is None else target
  if draft_above is None or not makes_drafts(device):
    is_untuned = to_schedule and not device.is_running
    return _tried(lowered, fn, target, _UNTUNED.get(device.platform) if is_untuned else None)
  drafted = _tried(lowered, fn, target, _draft_options(device, draft_above))
  nearly_all = int(_NEARLY * _total_bytes(drafted.memory_analysis()))
  if (
    isinstance(drafted, OversizedProgram) and nearly_all > 2 * draft_above
  ):  # what it fuses goes by the device's memory
    drafted = _tried(lowered, fn, target, _draft_options(device, nearly_all))
  return drafted


def compile_draft(
  fn: Compilable, avals: Sequence[jax.ShapeDtypeStruct], target: Target | None = None
) -> jax.stages.Compiled | OversizedProgram:
  """Compiles as `compile_trial`, where the target's compiler `makes_drafts`, no further than buffers are assigned."""
  return compile_trial(fn, avals, target, draft_above=1)


def _tried(
  lowered: jax.stages.Lowered, fn: Compilable, target: Target | None, options: dict[str, Any] | None = None
) -> jax.stages.Compiled | OversizedProgram:
  """The compiled program; of one that is too large for the device, what the compiler dumped before it gave up."""
  if _platform(target) not in _ANY_SIZE:
    return _compile(lowered, fn, target, options)
  with tempfile.TemporaryDirectory() as directory:
    try:
      dumping = {"xla_dump_to": directory, "xla_dump_hlo_as_proto": True}
      return _compile(lowered, fn, target, {**(options or {}), **dumping})
    except CompileMemoryError:
      dumps = [path.read_bytes() for path in pathlib.Path(directory).glob("*.after_optimizations.hlo.pb")]
      if not dumps:
        raise
  largest = max(dumps, key=len)
  sizes = BufferAssignment.from_hlo_proto(largest).sizes()
  return OversizedProgram(sizes, module_of_hlo_proto(largest), is_draft=options is not None)


def makes_drafts(target: Target | None) -> bool:
  """Whether a target's compiler can be had to stop where it has assigned buffers."""
  return _platform(target) in _ANY_SIZE


def _draft_options(device: Target, above_bytes: int) -> dict[str, Any]:
  """For XLA:TPU to find that a device has no more memory than that, once it has assigned buffers: what follows, nearly
  all of a compile, is left out. Its scheduler is told of as much as there is.
  """
  mib = max(1, above_bytes // 2**20)
  percent = _TPU_SCHEDULER_PERCENT * (device.memory_bytes // 2**20) // mib
  return {"xla_tpu_max_hbm_size_mib": mib, "xla_tpu_scheduler_percent_shared_memory_limit": percent}


def compile_scheduled(fn: Compilable, avals: Sequence[jax.ShapeDtypeStruct], target: Target | None = None) -> None:
  """Compiles until XLA has scheduled the program, at least: for a hook that looks at it, whatever its size."""
  _compile(_lower(fn, avals, target), fn, target, _ANY_SIZE.get(_platform(target)))


def module_of(compiled: jax.stages.Compiled | OversizedProgram) -> bytes:
  """The scheduled module that a compiled program runs, a serialized ``HloModuleProto``."""
  if isinstance(compiled, OversizedProgram):
    return compiled.module_bytes
  executable = compiled.runtime_executable()
  assert executable is not None  # XLA's backends all show it
  return compat.module_bytes_of(executable)


def temp_bytes_of(compiled: jax.stages.Compiled | OversizedProgram) -> int:
  """Temporaries of a compiled program."""
  sizes = compiled.memory_analysis()
  assert sizes is not None  # XLA's backends all tell them
  return sizes.temp_size_in_bytes


def num_devices(compiled: jax.stages.Compiled | OversizedProgram) -> int:
  """That a compiled program runs on; one where a program that does not fit its device has no executable to ask."""
  if isinstance(compiled, OversizedProgram):
    return 1
  shardings = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
  return max((sharding.num_devices for sharding in shardings), default=1)


def as_counted(
  compiled: jax.stages.Compiled | OversizedProgram, target: Target | None, *, as_allocated: bool
) -> jax.stages.Compiled | OversizedProgram:
  """A program with the temporaries that a budget counts: those of its memory analysis, or, `as_allocated`, those that
  its buffer assignment holds, of which XLA:TPU's analysis counts more.
  """
  if isinstance(compiled, OversizedProgram):
    if not compiled.is_draft:
      return compiled
    return compiled.as_allocated(target or targets.running()) if as_allocated else compiled.as_analysed()
  if not as_allocated:
    return compiled
  stats: Any = compiled.memory_analysis()
  sizes = Sizes(*(getattr(stats, field) for field in Sizes._fields))
  resident_bytes = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
  return OversizedProgram(
    sizes._replace(temp_size_in_bytes=stats.total_allocation_bytes - resident_bytes), module_of(compiled)
  )


def measure(
  compiled: jax.stages.Compiled | OversizedProgram, target: Target | None = None, *, as_allocated: bool = False
) -> MemoryProfile:
  """Memory of a compiled program: sizes from the compiler's memory analysis, live bytes along its schedule.

  Live bytes are left out where our reading of the module does not arrive at the compiler's temporaries.

  Args:
    compiled: the program.
    target: what it is compiled for, None for the default backend: whose speeds its modelled seconds assume.
    as_allocated: temporaries as `as_counted` has them.
  """
  compiled = as_counted(compiled, target, as_allocated=as_allocated)
  sizes = MemoryProfile(**totals_of(compiled.memory_analysis()))
  try:
    module = parse_module(module_of(compiled))
    predicted = predict_memory(module)
    program, _ = read_step_program(module, (target or targets.running()).roofline)
  except InvalidProgramError:
    return sizes
  sizes = dataclasses.replace(sizes, modelled_s=float(program.op_cost_s.sum()), flops=float(program.op_flops.sum()))
  if abs(predicted.temp_bytes - sizes.temp_bytes) > _DESCRIBES_WITHIN * sizes.temp_bytes:
    return sizes
  live_bytes = tuple(liveness.live_bytes(program, program.schedule).tolist())
  return dataclasses.replace(sizes, peak_live_bytes=predicted.peak_live_bytes, live_bytes=live_bytes)


def _platform(target: Target | None) -> str:
  return jax.default_backend() if target is None else target.platform


def _total_bytes(stats: Any) -> int:
  return (
    stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes - stats.alias_size_in_bytes
  )


def _lower(fn: Compilable, avals: Sequence[jax.ShapeDtypeStruct], target: Target | None) -> jax.stages.Lowered:
  if not callable(fn):
    with compat.no_trace():
      return fn.lower()
  if target is None or target.platform == jax.default_backend() == "cpu":
    fn, avals = compat.bind_axes(fn, avals)
  else:
    fn, avals = compat.bind_axes(fn, avals, target.mesh_like)
    shardings = target.moved([aval.sharding for aval in avals])
    avals = [
      jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=sharding)
      for aval, sharding in zip(avals, shardings, strict=True)
    ]
  with compat.no_trace():
    if (lower := getattr(fn, "lower", None)) is not None:
      return lower(*avals)
    return compat.lower_unchecked(_jit(fn), *avals)


def _compile(
  lowered: jax.stages.Lowered, fn: Compilable, target: Target | None, options: dict[str, Any] | None = None
) -> jax.stages.Compiled:
  without_remat = contextlib.nullcontext() if _platform(target) == "cpu" else compat.without_xla_remat()
  try:
    with compat.no_trace(), without_remat, standing.suspended():
      return lowered.compile(compiler_options={**_PLANNING.get(_platform(target), {}), **(options or {})})
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    raise _memory_error(fn, target, str(error).partition("\n")[0]) from error


def _memory_error(fn: Compilable, target: Target | None, what: str) -> CompileMemoryError:
  device = targets.running() if target is None else target
  error = CompileMemoryError(
    f"{getattr(fn, '__name__', 'the program')} does not fit a device of target {device.name!r}, which has "
    f"{format_bytes(device.memory_bytes)}: {what}",
    memory_bytes=device.memory_bytes,
  )
  error.add_note(
    "try a smaller budget or batch, a total budget (coopjax.Budget.total), more devices with the "
    "arguments sharded over them, or a target with more memory"
  )
  return error
