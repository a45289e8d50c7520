"""Hardware that need not be there: XLA compiles for it ahead of time, and its figures give ops their modelled seconds.

A target is named as ``"cpu"``, ``"gpu:h100"`` (``"gpu:h100:8"`` for eight of them) or ``"tpu:v5e:2x2"`` (generation and
topology). Compiles need the compiler's wheel (``pip install coopjax[tpu-target]`` or ``[gpu-target]``), never a device
or a driver. GPU compiles run without autotuning, so a kernel's workspace can differ from the device's.

The figures are the vendors' published ones of the SXM boards and of the TPU chips, per JAX device (a core of TPU v2 to
v4 and v7x, a chip of the others). Memory is what XLA or libtpu lets a program use. Transcendentals assume one special
function unit per eight lanes (16 a core, GPU) or one 8x128 vector a cycle (TPU), the host link is PCI Express in one
direction, and the seconds to start an op are an order of magnitude. Between devices it is NVLink in one direction, and
on TPUs the two links along one axis of the torus, one direction each.
"""

import dataclasses
import difflib
import functools
import importlib.util
import math
import os
import re
from collections.abc import Sequence
from typing import Any, TypeGuard

import jax

from coopjax.errors import MissingWheelError, UnknownTargetError
from coopjax.program.cost import CPU, Roofline
from coopjax.xla import absent_devices
from coopjax.xla.gpus import Gpu
from coopjax.xla.speeds import SpeedProfile

type Devices = tuple[jax.Device, ...]  # pyright: ignore[reportInvalidTypeForm]  # of jaxlib, which has no types

_GIB = 2**30
_GPU_START_S, _TPU_START_S = 3e-6, 1e-6
_name_of: dict[int, str] = {}  # by the number of a device, which lives as long as the process
_kept_devices: list[Any] = []  # so that those of others do, too


@dataclasses.dataclass(frozen=True)
class Target:
  """A kind of device that programs are compiled and modelled for.

  Attributes:
    name: as `resolve` takes it, with the figures that were measured, if they were.
    platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
    memory_bytes: of one device, as a program may use it.
    roofline: how fast one device is: FLOPs of bfloat16 matrix products (of float32 on a CPU), memory bandwidth.
    host_bytes_per_s: between one device and the host's memory, one direction.
    num_devices: in the topology.
    gpu: what the compiler of a GPU has to know of it.
  """

  name: str
  platform: str
  memory_bytes: int
  roofline: Roofline
  host_bytes_per_s: float
  num_devices: int = 1
  gpu: Gpu | None = dataclasses.field(default=None, repr=False)

  @property
  def flops_per_s(self) -> float:
    """Floating-point operations per second in a large matrix product."""
    return self.roofline.flops_per_s

  @property
  def bytes_per_s(self) -> float:
    """Bytes per second to and from the device's memory."""
    return self.roofline.bytes_per_s

  @property
  def is_running(self) -> bool:
    """Whether the default backend is of this platform."""
    return self.platform == jax.default_backend()

  @functools.cached_property
  def devices(self) -> Devices:
    """Devices to compile for; they run nothing, unless the target is the CPU.

    Raises:
      MissingWheelError: the compiler is not installed.
      UnknownTargetError: the compiler knows no such topology.
    """
    return _devices(resolve(self._plain_name))

  @property
  def _plain_name(self) -> str:
    """Without figures that were measured."""
    return self.name.partition("@")[0]

  def load(self) -> None:
    """Loads the target's compiler, if it is not there yet; raises as `devices`."""
    assert self.devices

  @property
  def sharding(self) -> jax.sharding.Sharding:
    """Of an array on one device: given to the abstract arguments of a program, it makes JAX compile for the target."""
    return jax.sharding.SingleDeviceSharding(self.devices[0])

  def moved(self, shardings: Sequence[jax.sharding.Sharding | None]) -> list[jax.sharding.Sharding | None]:
    """The shardings of a program's arguments over the target's devices: on meshes of the same shapes and axes.

    What lies on devices of such a target stays there, be they another topology's that somebody asked for. Where it
    does, or an argument lies on a mesh, those that name none are left to the compiler; else all are on one device.

    Raises:
      UnknownTargetError: the target has fewer devices than a mesh.
    """
    stays = [any(_target_name(device) == self._plain_name for device in _devices_of(each)) for each in shardings]
    is_any_placed = any(stays) or any(map(_is_spread, shardings))
    return [
      each
      if stay
      else jax.sharding.NamedSharding(self.mesh_like(each.mesh), each.spec, memory_kind=each.memory_kind)
      if _is_spread(each)
      else None
      if is_any_placed
      else self._on_one_device(each)
      for each, stay in zip(shardings, stays, strict=True)
    ]

  def _on_one_device(self, sharding: jax.sharding.Sharding | None) -> jax.sharding.Sharding:
    is_on_host = sharding is not None and sharding.memory_kind == "pinned_host"
    return self.sharding.with_memory_kind("pinned_host") if is_on_host else self.sharding

  def mesh(
    self,
    shape: Sequence[int],
    axis_names: Sequence[str],
    axis_types: Sequence[jax.sharding.AxisType] | None = None,
  ) -> jax.sharding.Mesh:
    """A mesh of the target's devices, as `jax.make_mesh` makes one of those that are there.

    A launch file that is written with it (``jax.set_mesh``, ``in_shardings``, ``shard_map``, shapes with shardings) is
    planned as it stands.

    Raises:
      UnknownTargetError: the target has fewer devices.
      ValueError: two axes have one name, on which XLA would end the process.
    """
    if len(set(axis_names)) < len(axis_names):
      raise ValueError(f"a mesh with axes {', '.join(map(str, axis_names))}: each needs a name of its own")
    size = math.prod(shape)
    if size > len(self.devices):
      axes = dict(zip(axis_names, shape, strict=True))
      raise UnknownTargetError(
        f"target {self.name!r} has {len(self.devices)} devices and the program is for a mesh of {size} ({axes}): "
        "name a larger topology, such as 'tpu:v5e:4x4' or 'gpu:h100:8'"
      )
    types = None if axis_types is None else tuple(axis_types)
    return jax.make_mesh(tuple(shape), tuple(axis_names), types, devices=self.devices[:size])

  def mesh_like(self, like: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> jax.sharding.Mesh:
    """A mesh of the target's devices with the shape and the axes of another; raises as `mesh`."""
    return self.mesh(like.axis_sizes, like.axis_names, like.axis_types)


def of_arguments(arguments: Any) -> str | None:
  """The name of the target on whose devices arguments lie, if they lie on one that is not running here.

  They may be those of a topology that somebody else asked for, as trainers do that compile ahead of time.
  """
  shardings = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arguments))
  names = (_target_name(device) for sharding in shardings for device in _devices_of(sharding))
  return next(filter(None, names), None)


def _target_name(device: Any) -> str | None:
  """Of a device to compile for; None for one that runs here, or that no target is known for."""
  if id(device) not in _name_of and device.platform != jax.default_backend():
    devices = device.client.devices()
    if name := _topology_name(device, devices):
      _kept_devices.extend([device, *devices])
      _name_of.update({id(each): name for each in (device, *devices)})
  return _name_of.get(id(device))


def _topology_name(device: Any, devices: Sequence[Any]) -> str | None:
  """As `resolve` takes it."""
  near = _near(device)
  if near is None:
    return None
  if near.platform == "gpu":
    return f"{near.name}:{len(devices)}"
  sizes = [max(places) + 1 for places in zip(*(each.coords for each in devices))]
  shown = sizes if sizes[2] > 1 or near.name in _CUBES else sizes[:2]
  return f"{near.name}:{'x'.join(map(str, shown))}"


def _devices_of(sharding: Any) -> frozenset[Any]:
  """None of an abstract mesh, which tracers lie on, too."""
  if not isinstance(sharding, jax.sharding.Sharding):
    return frozenset()
  is_abstract = isinstance(sharding, jax.sharding.NamedSharding) and isinstance(
    sharding.mesh, jax.sharding.AbstractMesh
  )
  return frozenset() if is_abstract else frozenset(sharding.device_set)


def _is_spread(sharding: jax.sharding.Sharding | None) -> TypeGuard[jax.sharding.NamedSharding]:
  return isinstance(sharding, jax.sharding.NamedSharding) and sharding.mesh.size > 1


def _gpu(
  name: str,
  gpu: Gpu,
  memory_bytes: int,
  flops_per_s: float,
  bytes_per_s: float,
  host_bytes_per_s: float,
  link_bytes_per_s: float,
) -> Target:
  transcendentals = gpu.cores * gpu.clock_ghz * 1e9 * 16
  return Target(
    f"gpu:{name}",
    "gpu",
    memory_bytes,
    Roofline(flops_per_s, transcendentals, bytes_per_s, _GPU_START_S, link_bytes_per_s),
    host_bytes_per_s,
    1,
    gpu,
  )


def _tpu(
  name: str,
  memory_gib: float,
  flops_per_s: float,
  bytes_per_s: float,
  clock_ghz: float,
  host_bytes_per_s: float,
  link_bytes_per_s: float,
  devices_per_chip: int = 1,
) -> Target:
  roofline = Roofline(flops_per_s, 1024 * clock_ghz * 1e9, bytes_per_s, _TPU_START_S, link_bytes_per_s)
  return Target(f"tpu:{name}", "tpu", int(memory_gib * _GIB), roofline, host_bytes_per_s, devices_per_chip)


# NVIDIA's data sheets and architecture white papers; memory and clocks as the CUDA driver reports them.
_GPUS = {
  "a100": _gpu(
    "a100", Gpu("NVIDIA A100-SXM4-80GB", 8, 108, 64, 1.41, 164, 40), 85_167_243_264, 312e12, 2.03904e12, 31.5e9, 3e11
  ),
  "h100": _gpu(
    "h100", Gpu("NVIDIA H100 80GB HBM3", 9, 132, 128, 1.98, 228, 50), 84_929_347_584, 989e12, 3.35232e12, 63e9, 4.5e11
  ),
  "h200": _gpu("h200", Gpu("NVIDIA H200", 9, 132, 128, 1.98, 228, 50), 150_119_383_040, 989e12, 4.8e12, 63e9, 4.5e11),
}
# Google's documentation of each generation; memory is what libtpu's compiler says is available.
_TPUS = {
  "v2": _tpu("v2", 7.48, 22.5e12, 3.5e11, 0.7, 8e9, 6.2e10, 2),
  "v3": _tpu("v3", 15.48, 61.5e12, 4.5e11, 0.94, 8e9, 8.2e10, 2),
  "v4": _tpu("v4", 15.25, 137.5e12, 6.14e11, 1.05, 8e9, 4.5e10, 2),
  "v5e": _tpu("v5e", 15.75, 197e12, 8.19e11, 1.5, 16e9, 9e10),
  "v5p": _tpu("v5p", 95.73, 459e12, 2.765e12, 3.5, 16e9, 1.8e11),  # two cores of 1.75 GHz as one device
  "v6e": _tpu("v6e", 31.24, 918e12, 1.64e12, 1.75, 32e9, 1.8e11),
  "tpu7x": _tpu("tpu7x", 94.74, 1153.5e12, 3.69e12, 1.9, 32e9, 2e11, 2),
}
NAMES = (
  "cpu",
  *(f"gpu:{name}" for name in _GPUS),
  "tpu:v2:2x2",
  "tpu:v3:2x2",
  "tpu:v4:2x2x1",
  "tpu:v5e:2x2",
  "tpu:v5p:2x2x1",
  "tpu:v6e:2x2",
  "tpu:tpu7x:2x2x1",
)
_GPU_NAME = re.compile(r"gpu:(\w+)(?::([1-9]\d*))?")
_TPU_NAME = re.compile(r"tpu:(\w+):(\d+(?:x\d+){1,2})")
_PROFILE = ".json"
_CUBES = ("tpu:v4", "tpu:v5p", "tpu:tpu7x")  # topologies have three sides
_EXTRAS = {"gpu": "gpu-target", "tpu": "tpu-target"}
_WHEELS = {"gpu": absent_devices.CUDA_PLUGIN, "tpu": "libtpu"}


def resolve(name: str) -> Target:
  """The target of this name; needs no wheel until its devices are asked for.

  Args:
    name: ``"cpu"``, ``"gpu:h100"``, ``"gpu:h100:8"`` or ``"tpu:v5e:2x2"``, in any case; the path of a profile of
      :func:`coopjax.calibrate` (``"speeds.json"``), or one behind such a name: ``"tpu:v5e:2x2@speeds.json"``.

  Raises:
    UnknownTargetError: no such target; the message lists those that are known and suggests the nearest. Or no such
      profile, or one of another kind of device.

  Example:
    >>> target = resolve("tpu:v5e:2x2")
    >>> target.platform, target.num_devices, f"{target.memory_bytes / 2**30:.2f} GiB"
    ('tpu', 4, '15.75 GiB')
  """
  if isinstance(name, str) and ("@" in name or name.endswith(_PROFILE)):
    return _calibrated(name)
  text = name.strip().lower() if isinstance(name, str) else ""
  if text == "cpu":
    return _cpu()
  if (match := _GPU_NAME.fullmatch(text)) and match[1] in _GPUS:
    return dataclasses.replace(_GPUS[match[1]], name=text, num_devices=int(match[2] or 1))
  if (match := _TPU_NAME.fullmatch(text)) and match[1] in _TPUS:
    num_chips = math.prod(map(int, match[2].split("x")))
    return dataclasses.replace(_TPUS[match[1]], name=text, num_devices=num_chips * _TPUS[match[1]].num_devices)
  nearest = [known for known in NAMES if text and known.startswith(text)]
  nearest = nearest or difflib.get_close_matches(text, NAMES, n=1, cutoff=0.3)
  raise UnknownTargetError(
    f"target={name!r} is not known.{f' Did you mean {nearest[0]!r}?' if nearest else ''} Known: {', '.join(NAMES)} "
    "(TPU generations with any topology that libtpu has, GPUs with a number for several: 'gpu:h100:8')"
  )


target = resolve  # its public name


def _calibrated(name: str) -> Target:
  """A device with speeds that were measured; its name has the figures in it, not the file."""
  base, at, figures = name.partition("@")
  if not at:
    base, figures = "", name
  profile = SpeedProfile.load(figures) if figures.endswith(_PROFILE) else SpeedProfile.from_suffix(base, figures)
  device = resolve(base or profile.device)
  if _kind(device.name) != _kind(profile.device):
    raise UnknownTargetError(f"target={name!r}: what was measured there is {profile.device}, not {device.name}")
  profile = SpeedProfile.from_suffix(device.name, profile.suffix)
  return dataclasses.replace(
    device, name=profile.target, roofline=profile.roofline, host_bytes_per_s=profile.host_bytes_per_s
  )


def _kind(name: str) -> list[str]:
  """Platform and generation."""
  return name.split(":")[:2]


@functools.cache
def running() -> Target:
  """The target that the default backend's first device is; an accelerator that is not known has a near one's speed."""
  device = jax.devices()[0]
  if device.platform == "cpu":
    return _cpu()
  near = _near(device) or (_GPUS["a100"] if device.platform == "gpu" else _TPUS["v4"])
  memory_bytes = (device.memory_stats() or {}).get("bytes_limit", near.memory_bytes)
  num_chips = max(jax.device_count() // near.num_devices, 1)
  name = near.name if device.platform == "gpu" else f"{near.name}:1x{num_chips}"
  return dataclasses.replace(near, name=name, memory_bytes=memory_bytes, num_devices=jax.device_count())


def _near(device: Any) -> Target | None:
  """The one that a device is, by its kind, but for how many there are."""
  known = _GPUS if device.platform in ("gpu", "cuda") else _TPUS
  kind = device.device_kind.lower().replace("tpu v5 lite", "v5e").replace("tpu v6 lite", "v6e").replace("tpu v5", "v5p")
  return next((target for name, target in known.items() if name in kind), None)


def check_wheel(target: Target) -> None:
  """Raises MissingWheelError where the target's compiler is not installed."""
  wheel = _WHEELS.get(target.platform)
  if wheel and not target.is_running and not _is_installed(wheel):
    raise MissingWheelError(
      f"target={target.name!r} needs XLA's compiler for it, which is not installed ({wheel}): "
      f"pip install 'coopjax[{_EXTRAS[target.platform]}]'. No device or driver is needed."
    )


def _is_installed(module: str) -> bool:
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError:  # the package around it
    return False


@functools.cache
def _cpu() -> Target:
  memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  return Target("cpu", "cpu", memory_bytes, CPU, CPU.bytes_per_s, 1)


@functools.cache
def _devices(target: Target) -> Devices:
  if target.platform == "cpu":
    return tuple(jax.devices("cpu"))
  check_wheel(target)
  devices = absent_devices.of(target)
  _name_of.update({id(device): target.name for device in devices})
  return devices
