"""What every program of the process passes: JAX's compile, its cache's door, the first run, the export.

JAX has no public place for this. Its HLO hooks see what is compiled, not what the persistent compilation cache gave;
and a processes' agreement is needed for both, before the program runs.
"""

# pyright: reportPrivateImportUsage=false

import dataclasses
import functools
import io
import re
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np
from jax._src import checkify, compiler, config
from jax._src.export import _export
from jax._src.interpreters import mlir, pxla

from coopjax.compat.asked import Asked, compiled_here, watch_stages

_POINTERS = re.compile(r'(@CustomSPMDPartitioning\([^\n]*?backend_config = )"[^"]*"')  # differ between processes
_WITHOUT_CHECKS = mlir.LoweringParameters(override_lowering_rules=((checkify.check_p, lambda *_, **__: []),))


@dataclasses.dataclass(frozen=True, eq=False)
class ProgramToCompile:
  """A program on its way to XLA, or to the persistent compilation cache."""

  _module: Any
  _devices: np.ndarray
  _callbacks: Any
  _compile: Callable[[Any, Any], Any]

  @functools.cached_property
  def bytecode(self) -> bytes:
    """It, as MLIR writes it: the text of attributes stands there as it is."""
    written = io.BytesIO()
    self._module.operation.write_bytecode(file=written)
    return written.getvalue()

  @property
  def name(self) -> str:
    """Of its module."""
    return self._module.operation.attributes["sym_name"].value

  def text(self) -> str:
    """The program and the devices that it is for: the same in every process that compiles it."""
    return f"{_text_of(self._module)}\n{[device.id for device in self._devices.flat]}"

  @property
  def platform(self) -> str:
    """Of its devices: "cpu", "gpu" or "tpu"."""
    return self._devices.flat[0].platform

  @property
  def num_devices(self) -> int:
    """That it is for."""
    return self._devices.size

  def processes(self) -> tuple[int, ...]:
    """Of its devices, ascending."""
    return tuple(sorted({device.process_index for device in self._devices.flat}))

  @functools.cached_property
  def asked(self) -> Asked | None:
    """What JAX may have been asked for it, where it is compiled; None where that is not known."""
    return compiled_here()

  def is_of(self, lowered: jax.stages.Lowered) -> bool:
    """Whether it is what was lowered: the same module, or another that reads the same."""
    module = lowered.compiler_ir("stablehlo")
    return module is self._module or _text_of(module) == _text_of(self._module)

  def compile(self) -> Any:
    """The executable, from the cache or made by XLA."""
    return self._compile(self._module, self._callbacks)

  def replaced(self, lowered: jax.stages.Lowered) -> "ProgramToCompile | None":
    """What can be compiled in its place, from the same function lowered anew; None where JAX would see a difference.

    JAX goes on with what it knows of this program: its arguments, those that are donated, its results and shardings.
    The functions in Python that the module calls back are kept for good.
    """
    module, known = lowered.compiler_ir("stablehlo"), lowered._lowering.compile_args
    if lowered._lowering.const_args or _signature(module) != _signature(self._module):
      return None
    _called_back.append(known["keepalive"])
    return dataclasses.replace(self, _module=module, _callbacks=known["host_callbacks"])


def lower_unchecked(jitted: jax.stages.Wrapped, *avals: Any) -> jax.stages.Lowered:
  """A jitted function, lowered to be looked at: without its `checkify.check`s, which only `checkify` around can lower.

  They have no results, so nothing else is missing.
  """
  if config.xla_runtime_errors.value:  # they are lowered as they will be
    return jitted.lower(*avals)
  return jitted.trace(*avals).lower(_private_parameters=_WITHOUT_CHECKS)


def _text_of(module: Any) -> str:
  return _POINTERS.sub(r'\1""', module.operation.get_asm(enable_debug_info=False))


def _signature(module: Any) -> tuple[str, ...]:
  """What the entry of a module takes, with the names of that, and gives."""
  (main,) = (each for each in module.body.operations if each.operation.attributes["sym_name"].value == "main")
  attributes = main.operation.attributes
  types = [str(attributes[name]) for name in ("function_type", "arg_attrs", "res_attrs") if name in attributes]
  return (*types, *(str(argument.location) for argument in main.arguments))


class CompileWatcher(Protocol):
  """Who is asked about all programs of the process."""

  def around(self, program: ProgramToCompile) -> Any:
    """Has the executable made, by the cache or by XLA, and returns it."""
    ...

  def may_keep(self) -> bool:
    """Whether what this thread has just compiled may be put into the persistent compilation cache."""
    ...

  def exported(self, name: str, program: bytes) -> None:
    """Told of a program that `jax.export` has written."""
    ...

  def before_run(self, executable: Any) -> None:
    """Called before a run that goes through Python, as the first one of every executable does; may raise."""
    ...


_watchers: list[CompileWatcher] = []
_called_back: list[Any] = []


def watch_compiles(watcher: CompileWatcher) -> None:
  """Asks a watcher about all programs from now on; the one watcher of the process."""
  if _watchers:
    return
  _watchers.append(watcher)
  watch_stages()
  compile_it, write, run = compiler.compile_or_get_cached, compiler._cache_write, pxla.ExecuteReplicated.__call__
  export = _export._export_lowered

  @functools.wraps(compile_it)
  def compile_or_get_cached(backend, computation, devices, options, host_callbacks, *args, **kwargs):
    compiled = lambda module, callbacks: compile_it(backend, module, devices, options, callbacks, *args, **kwargs)
    return watcher.around(ProgramToCompile(computation, devices, host_callbacks, compiled))

  @functools.wraps(write)
  def cache_write(*args, **kwargs):
    if watcher.may_keep():
      write(*args, **kwargs)

  @functools.wraps(run)
  def call(self, *args):
    watcher.before_run(self.xla_executable)
    return run(self, *args)

  @functools.wraps(export)
  def export_lowered(*args, **kwargs):
    exported = export(*args, **kwargs)
    watcher.exported(exported.fun_name, exported.mlir_module_serialized)
    return exported

  _export._export_lowered = export_lowered
  compiler.compile_or_get_cached, compiler._cache_write = compile_or_get_cached, cache_write
  pxla.ExecuteReplicated.__call__ = call


def module_bytes_of(executable: Any) -> bytes:
  """The module that a loaded executable runs, a serialized ``HloModuleProto``."""
  return executable.hlo_modules()[0].as_serialized_hlo_module_proto()


def instructions_of(executable: Any) -> str:
  """The instructions of a loaded executable in their order, without what tells of source files or of tuning."""
  # jaxlib has no stub for its printer.
  from jaxlib import _hlo  # pyright: ignore[reportAttributeAccessIssue]

  options = _hlo.HloPrintOptions()
  options.print_metadata = options.print_backend_config = False
  return executable.hlo_modules()[0].to_string(options)


def temp_bytes_of(executable: Any) -> int:
  """Temporaries of a loaded executable."""
  return executable.get_compiled_memory_stats().temp_size_in_bytes


def resident_bytes_of(executable: Any) -> int:
  """Arguments + outputs - aliased bytes of a loaded executable."""
  return executable.get_compiled_memory_stats().argument_size_in_bytes + results_bytes_of(executable)


def results_bytes_of(executable: Any) -> int:
  """Outputs - aliased bytes of a loaded executable."""
  stats = executable.get_compiled_memory_stats()
  return stats.output_size_in_bytes - stats.alias_size_in_bytes
