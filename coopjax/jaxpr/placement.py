"""How the inputs of a function are spread over devices, as far as a trace can say.

Arrays and `jax.ShapeDtypeStruct`s know their sharding. A tracer knows it over Explicit mesh axes; over Auto axes it
knows the mesh at most, and with ``in_shardings`` on plain arrays not even that: JAX traces a function once for all
shardings over Auto axes, so what is decided in a trace must hold for each of them. There, what one device runs is first
seen by the HLO engine, in the partitioned module.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.core
from jax.sharding import AxisType, NamedSharding

from coopjax import compat, job
from coopjax.errors import PlanMismatchError
from coopjax.jaxpr.batches import Batch, batches_of


@dataclasses.dataclass(frozen=True)
class Placement:
  """Where inputs lie.

  Attributes:
    shardings: per input; None where the trace does not say, or the input has no place of its own.
    mesh: axes that the inputs are spread over, "data=4,model=2" for one; "" where the trace shows none.
    is_known: a compile with `shardings` is what one device will run. If not, it may stand for all devices together, or
      for the gradients of each example by more than is asked.
    is_spread: inputs lie on a mesh, or one is set: the program will be partitioned.
    batches: the `vmap`s around, where the program will be one device's.
    processes: of a job, that the devices belong to and that have to agree on a plan; () for one process's own program,
      or where the trace does not show the devices.
  """

  shardings: tuple[jax.sharding.Sharding | None, ...]
  mesh: str
  is_known: bool
  is_spread: bool
  batches: tuple[Batch, ...]
  processes: tuple[int, ...] = ()

  @property
  def num_devices(self) -> int:
    """That what is compiled with `shardings` runs on."""
    return max((sharding.num_devices for sharding in self.shardings if sharding is not None), default=1)

  def key(self) -> str:
    """Tells placements apart, the mesh and the named axes in scope here included; the same in every process."""
    places = [str(s) for s in self.shardings if not isinstance(s, jax.sharding.SingleDeviceSharding | None)]
    if places:
      places = [str(sharding) for sharding in self.shardings]
    text = repr((places, self.mesh, self.is_known, self.batches, compat.axes_in_scope()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Spread:
  """How the arguments of a whole program are spread over devices: what a plan of it was made for.

  Attributes:
    mesh: as in `Placement`.
    num_devices: that the program runs on.
    shards: ``(path, shape)`` of what one device has of each array that says so itself. One that does not (a NumPy
      array, a tracer, an array that was put nowhere) goes where the program's own jit wants it.
  """

  mesh: str
  num_devices: int
  shards: tuple[tuple[str, tuple[int, ...]], ...]

  @classmethod
  def of(cls, arguments: Any, num_devices: int) -> "Spread":
    """Of ``(args, kwargs)``, for a program compiled for so many devices, or for theirs if that is not known: 1."""
    found = _shards(arguments)
    num_devices = max([num_devices, *(num for _, num, _ in found)])
    shards = tuple((path, shape) for path, _, shape in found) if num_devices > 1 else ()
    return cls(place(jax.tree.leaves(arguments)).mesh, num_devices, shards)

  def check(self, name: str, arguments: Any) -> None:
    """Raises PlanMismatchError where arguments, as far as they tell, are spread otherwise; `name` is the program's."""
    mesh, shards = place(jax.tree.leaves(arguments)).mesh, dict(self.shards)
    on_mesh = f", the mesh {self.mesh}" if self.mesh else ""
    here = f"{self.num_devices} devices{on_mesh}" if self.num_devices > 1 else "one device"
    if mesh and (self.num_devices == 1 or self.mesh not in ("", mesh)):
      raise PlanMismatchError(f"the plan of {name} was made for {here}, and its arguments lie on the mesh {mesh}")
    for path, num_devices, shape in _shards(arguments):
      if num_devices != self.num_devices or shards.get(path, shape) != shape:
        planned = f", {list(shards[path])} of it on each" if path in shards else ""
        raise PlanMismatchError(
          f"the plan of {name} was made for {path} on {here}{planned}; it lies on {num_devices} "
          f"device{'s' * (num_devices > 1)}, {list(shape)} on each"
        )


def _shards(arguments: Any) -> list[tuple[str, int, tuple[int, ...]]]:
  """Path, number of devices and one device's shape of the arrays that were put somewhere."""
  return [
    (path_name(path), sharding.num_devices, sharding.shard_shape(value.shape))
    for path, value in jax.tree_util.tree_flatten_with_path(arguments)[0]
    if not isinstance(value, jax.core.Tracer) and (sharding := own_sharding(value)) is not None
  ]


def path_name(path: Any) -> str:
  """Of a leaf of ``(args, kwargs)``: "args[0]['w']" for one."""
  return ("kwargs" if path[0].idx else "args") + jax.tree_util.keystr(path[1:])


def place(values: Sequence[Any]) -> Placement:
  """Where values lie: arrays, tracers, abstract values or Python scalars."""
  shardings, meshes, seen = [], set(), []
  has_tracers = is_placed = has_auto = False
  for value in values:
    sharding = (
      getattr(jax.typeof(value), "sharding", None) if isinstance(value, jax.core.Tracer) else own_sharding(value)
    )
    seen.append(sharding)
    if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
      meshes.add(_mesh_text(sharding.mesh))
    if isinstance(value, jax.core.Tracer):
      has_tracers = True
      kinds = _kinds(sharding)
      is_placed |= bool(kinds)
      has_auto |= AxisType.Auto in kinds
      sharding = compat.stated_sharding(jax.typeof(value))
      has_auto |= AxisType.Explicit in kinds and sharding is None  # fewer devices here than in the mesh
    shardings.append(sharding)
  is_partitioned = not has_tracers or (not has_auto and (is_placed or compat.is_on_one_device()))
  mesh, current = " and ".join(sorted(meshes - {""})), jax.sharding.get_abstract_mesh()
  is_spread, batches = bool(mesh or _mesh_text(current)), batches_of(values)
  is_known = (jax.device_count() == 1 or is_partitioned) and not batches
  return Placement(
    tuple(shardings),
    mesh,
    is_known,
    is_spread=is_spread,
    batches=() if is_spread else batches,
    processes=job.spanned_by([*seen, jax.sharding.NamedSharding(current, jax.sharding.PartitionSpec())]),
  )


def own_sharding(value: Any) -> jax.sharding.Sharding | None:
  """The sharding of an array that was put somewhere, or of an abstract value."""
  if isinstance(value, jax.ShapeDtypeStruct) or (isinstance(value, jax.Array) and value.committed):
    return value.sharding
  return None


def _kinds(sharding: Any) -> set[AxisType]:
  """How the axes of a tracer's mesh are handled, those of size 1 left out."""
  if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
    return set()
  mesh = sharding.mesh
  return {kind for kind, size in zip(mesh.axis_types, mesh.axis_sizes, strict=True) if size > 1}


def _mesh_text(mesh: Any) -> str:
  """The axes over which a program is still to be partitioned; a `shard_map` has done that for its own."""
  axes = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
  return ",".join(f"{name}={size}" for name, size, kind in axes if size > 1 and kind is not AxisType.Manual)
