"""Devices to compile for that run nothing: XLA's compilers for them, loaded without the hardware that they look for."""

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
from jax.experimental import topologies

from coopjax.errors import UnknownTargetError

if TYPE_CHECKING:
  from coopjax.xla.targets import Target

CUDA_PLUGIN = "jax_plugins.xla_cuda12"
# libtpu looks for a TPU host's metadata when it is loaded, and complains where there is none.
_LIBTPU_ENVIRONMENT = {
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_ACCELERATOR_TYPE": "v5litepod-4",
}


def of(target: "Target") -> tuple[Any, ...]:
  """The devices of a target that is not here, whose compiler is installed.

  Raises:
    UnknownTargetError: the compiler knows no such topology.
  """
  jax.devices()  # of the default backend: it must not be initialized under the environment below
  try:
    if target.platform == "tpu":
      with _environment(_LIBTPU_ENVIRONMENT):
        return tuple(topologies.get_topology_desc(target.name.removeprefix("tpu:"), platform="tpu").devices)
    return _gpu_devices(target)
  except jax.errors.JaxRuntimeError as error:
    raise UnknownTargetError(f"target={target.name!r}: XLA's compiler for it has no such topology ({error})") from error


def _gpu_devices(target: "Target") -> tuple[Any, ...]:
  assert target.gpu is not None  # the target is a GPU
  options = {
    "topology": f"1x1x{target.num_devices}",
    "target_config": target.gpu.config(target.memory_bytes, target.bytes_per_s),
  }
  try:
    return tuple(topologies.get_topology_desc(target.name, platform="cuda", **options).devices)
  except NotImplementedError:  # the plugin looked for CUDA's libraries, which a compiler does not need, and gave up
    with _environment({"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}):
      importlib.import_module(CUDA_PLUGIN).initialize()
    return tuple(topologies.get_topology_desc(target.name, platform="cuda", **options).devices)


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
  """Sets what is not set, and unsets it again."""
  added = {key: value for key, value in variables.items() if key not in os.environ}
  os.environ.update(added)
  try:
    yield
  finally:
    for key in added:
      del os.environ[key]
