"""Meshes and named axes: those in scope here, those that types state, and programs that bind them."""

# pyright: reportPrivateImportUsage=false
# JAX exports none of what this package is there to touch.

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax._src import config, debugging
from jax._src import core as core_internals
from jax._src import mesh as mesh_lib
from jax._src.interpreters import ad, batching, mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo
from jax.extend import core


class AxisScope(NamedTuple):
  """The named axes and the mesh that a trace may refer to: those of the `shard_map`s and `vmap`s around it."""

  axes: core_internals.AxisEnv
  mesh: jax.sharding.AbstractMesh
  checks_varying: bool

  @classmethod
  def here(cls) -> "AxisScope":
    return cls(core_internals.trace_ctx.axis_env, jax.sharding.get_abstract_mesh(), config._check_vma.value)

  @classmethod
  def inside(cls, equation: core.JaxprEqn) -> "AxisScope":
    """In the body of an equation that stands here; of all but a `shard_map`, as here."""
    if equation.primitive.name != "shard_map":
      return cls.here()
    mesh, manual = equation.params["mesh"], equation.params["newly_manual_axes"]
    sizes = [(name, size) for name, size in mesh.shape.items() if name in manual | set(mesh.manual_axes)]
    kinds = dict.fromkeys(manual, jax.sharding.AxisType.Manual)
    axes = core_internals.trace_ctx.axis_env.extend_pure(sizes)
    return cls(axes, mesh.abstract_mesh.update_axis_types(kinds), equation.params["check_vma"])

  @contextlib.contextmanager
  def entered(self) -> Iterator[None]:
    """What is traced inside is traced in this scope; without named axes, in the one that is there."""
    if not self.axes.axis_sizes:
      yield
      return
    before = core_internals.trace_ctx.axis_env
    with contextlib.ExitStack() as inside:
      if self.mesh.manual_axes:
        inside.enter_context(jax.sharding.use_abstract_mesh(self.mesh))
        inside.enter_context(config._check_vma(self.checks_varying))
      inside.callback(core_internals.trace_ctx.set_axis_env, before)
      core_internals.trace_ctx.set_axis_env(self.axes)
      yield


def bind_axes(
  fn: Callable,
  avals: Sequence[jax.ShapeDtypeStruct],
  mesh_like: Callable[[jax.sharding.AbstractMesh], jax.sharding.Mesh | jax.sharding.AbstractMesh] | None = None,
) -> tuple[Callable, Sequence[jax.ShapeDtypeStruct]]:
  """`fn` and its types as a program of its own, for `no_trace`, that binds the named axes which are in scope here.

  Inside a `shard_map` the program is what one device runs, on a mesh of the same shape; the axis of a `vmap` is bound
  by a `vmap` over nothing, inside of which `fn` may bind it to its examples.

  Args:
    fn: a function of positional arrays.
    avals: types of its arguments, with the manual axes that they vary over.
    mesh_like: makes the mesh, from one of the same shape; of devices that are there by default. Without devices
      (`without_manual_axes`) the program has types, and can't be compiled.
  """
  mesh = jax.sharding.get_abstract_mesh()
  manual = frozenset(mesh.manual_axes)
  for name, size in core_internals.trace_ctx.axis_env.axis_sizes.items():
    if name not in manual:
      fn = jax.vmap(fn, in_axes=None, out_axes=0, axis_name=name, axis_size=size)
  if not manual:
    return fn, avals

  def of_device(*inputs):
    outputs = fn(*(vary(value, aval) for value, aval in zip(inputs, avals, strict=True)))
    return jax.tree.map(lambda out: jax.numpy.expand_dims(out, 0), outputs)

  everywhere, nowhere = jax.sharding.PartitionSpec(tuple(mesh.manual_axes)), jax.sharding.PartitionSpec()
  devices = (mesh_like or _devices_of)(mesh)
  bound = jax.shard_map(
    of_device,
    mesh=devices,
    in_specs=nowhere,
    out_specs=everywhere,
    axis_names=manual,
    check_vma=config._check_vma.value,
  )
  sharding = jax.sharding.NamedSharding(devices, nowhere) if mesh_like else None
  return bound, [
    jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=sharding) for aval in avals
  ]


def vary(value: Any, aval: Any) -> Any:
  """The value, cast to vary over the manual mesh axes that a type varies over."""
  missing = aval.manual_axis_type.varying - jax.typeof(value).manual_axis_type.varying if manual_axes(aval) else ()
  return jax.lax.pcast(value, tuple(missing), to="varying") if missing else value


def manual_axes(aval: Any) -> Any:
  """How a type relates to the manual axes of a mesh; None outside of `shard_map`."""
  return getattr(aval, "manual_axis_type", None)


def axes_in_scope() -> str:
  """The mesh and the named axes, with their sizes, that a program traced here may refer to."""
  return f"{jax.sharding.get_abstract_mesh()} {dict(core_internals.trace_ctx.axis_env.axis_sizes)}"


def is_on_one_device() -> bool:
  """Whether what is traced here is one device's program: inside a `shard_map` over all axes of its mesh."""
  mesh = jax.sharding.get_abstract_mesh()
  return not mesh.empty and set(mesh.manual_axes) == set(mesh.axis_names)


def stated_sharding(aval: Any) -> jax.sharding.NamedSharding | None:
  """The sharding over Explicit axes that a type states, on devices of the default backend if it names none.

  None where the type states nothing, inside a `shard_map`, or if there are not enough devices.
  """
  sharding, explicit = getattr(aval, "sharding", None), jax.sharding.AxisType.Explicit
  if not isinstance(sharding, jax.sharding.NamedSharding) or explicit not in sharding.mesh.axis_types:
    return None
  mesh = sharding.mesh
  if isinstance(mesh, jax.sharding.AbstractMesh):
    if mesh.manual_axes or jax.device_count() < mesh.size:
      return None
    mesh = jax.sharding.Mesh(_devices_of(mesh).devices, mesh.axis_names, axis_types=mesh.axis_types)
  return jax.sharding.NamedSharding(mesh, sharding.spec)


def num_shards(equation: core.JaxprEqn) -> int:
  """Devices of a `shard_map` that do different work: the size of the axes that a spec or its body names."""
  params = equation.params
  named = {effect.name for effect in params["jaxpr"].effects if isinstance(effect, core_internals.NamedAxisEffect)}
  for spec in (*params["in_specs"], *params["out_specs"]):
    for names in spec:
      named.update(names if isinstance(names, tuple) else (names,))
  return math.prod(params["mesh"].shape[name] for name in params["newly_manual_axes"] if name in named)


def num_manual_devices(equation: core.JaxprEqn) -> int:
  """Devices along the axes that a `shard_map` makes manual."""
  return math.prod(equation.params["mesh"].shape[name] for name in equation.params["newly_manual_axes"])


_observe_shards_p = core.Primitive("coopjax_observe_shards")
_observe_shards_p.multiple_results = True
_observe_shards_p.def_effectful_abstract_eval(lambda *_, **__: ([], {debugging.debug_effect}))


def observe_shards(value: jax.Array, observer: Callable[[int], None]) -> None:
  """Has the partitioner tell the observer into how many parts it cuts a value of the program that is being traced.

  As `jax.debug.inspect_array_sharding`, whose shardings have names of mesh axes: parts of an axis have none.
  """
  _observe_shards_p.bind(value, observer=observer)


def _lower_observe_shards(context: Any, value: Any, *, observer: Callable[[int], None]) -> list[Any]:
  def tell(sharding: Any) -> None:
    dimensions = sharding.tile_assignment_dimensions()
    is_whole = sharding.is_replicated() or sharding.is_manual() or not dimensions
    observer(1 if is_whole else math.prod(dimensions[: len(value.type.shape)]))

  context.module_context.add_keepalive(tell)
  hlo.CustomCallOp(
    [value.type],
    [value],
    call_target_name=ir.StringAttr.get("InspectSharding"),
    has_side_effect=ir.BoolAttr.get(True),
    api_version=mlir.i32_attr(1),
    called_computations=ir.ArrayAttr.get([]),
    backend_config=ir.StringAttr.get(xla_client.encode_inspect_sharding_callback(tell)),
    operand_layouts=None,
    result_layouts=None,
  )
  return []


mlir.register_lowering(_observe_shards_p, _lower_observe_shards)
ad.primitive_jvps[_observe_shards_p] = lambda primals, _, **params: (_observe_shards_p.bind(*primals, **params), [])
batching.primitive_batchers[_observe_shards_p] = lambda values, _, **params: (
  _observe_shards_p.bind(*values, **params),
  [],
)


def axes_size(equation: core.JaxprEqn, names: Sequence[Any]) -> int:
  """Devices along mesh axes, for an equation inside a `shard_map`; 1 for an axis that is none of a mesh."""
  mesh = equation.ctx.cur_abstract_mesh
  return math.prod(mesh.shape.get(name, 1) for name in names)


def without_manual_axes(mesh: jax.sharding.AbstractMesh) -> jax.sharding.AbstractMesh:
  """The mesh around a `shard_map`: the user's own, if set."""
  current = mesh_lib.get_concrete_mesh()
  if (current.axis_names, current.axis_sizes) == (mesh.axis_names, mesh.axis_sizes):
    return current.abstract_mesh
  return mesh.update_axis_types(dict.fromkeys(mesh.manual_axes, jax.sharding.AxisType.Auto))


def _devices_of(mesh: jax.sharding.AbstractMesh) -> jax.sharding.Mesh:
  """The user's own mesh, if set, else devices of the default backend in the same arrangement."""
  current = mesh_lib.get_concrete_mesh()
  if (current.axis_names, current.axis_sizes) == (mesh.axis_names, mesh.axis_sizes):
    return current
  if jax.device_count() < mesh.size:
    raise ValueError(
      f"coopjax.remat inside a shard_map over {mesh.size} devices: planning compiles for a mesh of that "
      f"size, and there are {jax.device_count()} devices"
    )
  return jax.make_mesh(mesh.axis_sizes, mesh.axis_names, without_manual_axes(mesh).axis_types)
