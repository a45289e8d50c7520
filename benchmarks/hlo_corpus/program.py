"""What a program of the corpus is, and how its scheduled module is got at."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend import xla as jax_xla
from jax.sharding import AxisType, Mesh, NamedSharding

NUM_DEVICES = 8
_STAGE = jax_xla.PipelineStage.POST_SCHEDULER


@dataclasses.dataclass(frozen=True)
class Program:
  """What is compiled, and what it runs on.

  Attributes:
    fn: takes `args`.
    args: pytrees of NumPy arrays.
    donated: positions of the donated arguments.
    specs: for a program of 8 devices, one pytree of `PartitionSpec`s per argument; None for a program of one.
  """

  fn: Callable[..., Any]
  args: tuple[Any, ...]
  donated: tuple[int, ...] = ()
  specs: tuple[Any, ...] | None = None

  def lower(self) -> jax.stages.Lowered:
    """The program before XLA, new each time: no cache knows it."""
    shardings = {}
    if self.specs is not None:
      shardings["in_shardings"] = jax.tree.map(lambda spec: NamedSharding(mesh(), spec), self.specs)
    return jax.jit(lambda *args: self.fn(*args), donate_argnums=self.donated, **shardings).lower(*self.args)


PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(make: Callable[[], Program]) -> Callable[[], Program]:
  """Puts what `make` makes into the corpus, under its name."""
  PROGRAMS[make.__name__] = make
  return make


def names(num_devices: int = NUM_DEVICES) -> list[str]:
  """The programs that so many devices can compile."""
  return [name for name in PROGRAMS if num_devices >= NUM_DEVICES or not name.startswith("sharded_")]


def use_virtual_devices() -> None:
  """Makes this process's CPU 8 devices, which the ``sharded_`` programs need; before JAX is first used."""
  jax.config.update("jax_num_cpu_devices", NUM_DEVICES)


@functools.cache
def mesh() -> Mesh:
  """The 8 devices, 4 for data by 2 for the model."""
  if jax.device_count() < NUM_DEVICES:
    raise RuntimeError(f"{jax.device_count()} devices, {NUM_DEVICES} wanted: call use_virtual_devices() first")
  return jax.make_mesh((4, 2), ("data", "model"), (AxisType.Auto,) * 2)


def capture(name: str) -> bytes:
  """The program's module at POST_SCHEDULER, a serialized ``HloModuleProto``; nothing is compiled any further."""
  lowered, modules = PROGRAMS[name]().lower(), []

  def keep(module: bytes) -> None:
    modules.append(bytes(module))
    raise _CapturedError

  with _hook(keep), contextlib.suppress(jax.errors.JaxRuntimeError):
    lowered.compile()
  (module,) = modules
  return module


def compile_rewritten(name: str, rewrite: Callable[[bytes], bytes | None]) -> jax.stages.Compiled:
  """The program, compiled with what `rewrite` makes of its scheduled module; None leaves the module as it is."""
  lowered = PROGRAMS[name]().lower()
  with _hook(lambda module: rewrite(bytes(module))):
    return lowered.compile()


class _CapturedError(Exception):
  """Ends a compile whose module was all that was wanted."""


@contextlib.contextmanager
def _hook(callback: Callable[[bytes], bytes | None]) -> Iterator[None]:
  jax_xla.register_hlo_module_transformation(callback, name="corpus", stage=_STAGE, platforms="cpu")
  try:
    yield
  finally:
    jax_xla.clear_hlo_module_transformation("corpus", stage=_STAGE, platforms="cpu")


def normal(*shape: int, scale: float = 0.1, seed: int = 0) -> np.ndarray:
  """The same normal numbers each time."""
  return (scale * np.random.default_rng([seed, *shape]).standard_normal(shape)).astype(np.float32)


def integers(bound: int, *shape: int) -> np.ndarray:
  """The same numbers of [0, bound) each time."""
  return np.random.default_rng(shape).integers(0, bound, shape, np.int32)


def step(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
  """One step of gradient descent."""

  def descend(params, *batch):
    value, gradients = jax.value_and_grad(loss)(params, *batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

  return descend
