"""The only file that touches private JAX modules or depends on the version of JAX.

Everything here reads or rebuilds jaxprs: source lines, name stacks, equation contexts, sub-jaxprs. The rest of
the project sees plain functions over ``jax.extend.core`` types. Supported: JAX 0.11.2 and newer (there, ``Jaxpr``
and ``ClosedJaxpr`` are one class and a jaxpr carries the values of its constants).
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import itertools
import logging
import os
from typing import Any, NamedTuple

import jax
from jax._src import cache_key, config, effects, linear_util, source_info_util
from jax._src import core as core_internals, mesh as mesh_lib
from jax._src.ad_checkpoint import RematTraced
from jax._src.core import JaxprEqnContext
from jax._src.interpreters import ad, batching, partial_eval
from jax._src.lib import _jax
from jax._src.sharding_impls import UnspecifiedValue
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend import core
from jax.extend.core import primitives

# Primitives whose sub-jaxprs are ordinary JAX code. Others (reducers, scatter's update function, Pallas kernels)
# keep theirs untouched.
_TRANSPARENT = frozenset({
    "jit", "scan", "while", "cond", "remat2", "custom_jvp_call", "custom_vjp_call", "eval_jaxpr", "shard_map",
})
# Where a custom rule hides code that is traced only when somebody differentiates.
_LAZY_RULES = {"custom_jvp_call": "jvp_jaxpr_fun", "custom_vjp_call": "fwd_jaxpr_thunk"}


# A user frame is one of the user's files: neither JAX's nor ours.
source_info_util.register_exclusion(os.path.dirname(__file__) + os.sep)


class SourceLine(NamedTuple):
  """Where the user wrote an equation."""

  file: str
  line: int
  function: str


def source_line(equation: core.JaxprEqn) -> SourceLine | None:
  """The innermost frame of user code behind an equation; None when JAX recorded none."""
  frame = source_info_util.user_frame(equation.source_info.traceback)
  return None if frame is None else SourceLine(frame.file_name, frame.start_line, frame.function_name)


def open_constants(closed: core.ClosedJaxpr) -> core.Jaxpr:
  """The same jaxpr with its constants as leading inputs instead of attached values."""
  return closed.replace(constvars=(), invars=[*closed.constvars, *closed.invars])


def rebuild(jaxpr: core.Jaxpr, equations: Sequence[core.JaxprEqn], outvars: Sequence[Any] | None = None) -> core.Jaxpr:
  """`jaxpr` with other equations (and outputs, if given); argument names and effects are kept."""
  outvars = jaxpr.outvars if outvars is None else list(outvars)
  return jaxpr.replace(eqns=list(equations), outvars=outvars, debug_info=jaxpr.debug_info)


def bind(equation: core.JaxprEqn, values: Sequence[Any]) -> list[Any]:
  """The outputs of one equation for these inputs, under its own source line, name stack and context."""
  primitive, name_stack = equation.primitive, source_info_util.current_name_stack() + equation.source_info.name_stack
  with source_info_util.user_context(equation.source_info.traceback, name_stack=name_stack), equation.ctx.manager:
    outputs = primitive.bind(*values, **primitive.get_bind_params(equation.params))
  return list(outputs) if primitive.multiple_results else [outputs]


def name_scopes(equation: core.JaxprEqn) -> str:
  """The equation's name stack as it will stand in ``op_name``, "jvp(coop3)/block" for one."""
  return str(equation.source_info.name_stack)


def at_call_site(call: core.JaxprEqn, inner: core.JaxprEqn) -> core.JaxprEqn:
  """An equation of a nested jit's jaxpr with the source line that this call of the jit gives it.

  JAX keeps the jaxpr of a jitted function from its first call. If no user frame of the equation lies in the jitted
  function (it is one of JAX's own, `jnp.where` say), its source line is that of the first call, not of this one.
  """
  frames = source_info_util.user_frames(inner.source_info.traceback)
  if any(frame.function_name.rpartition(".")[2] == _call_name(call) for frame in frames):
    return inner
  return inner.replace(source_info=inner.source_info.replace(traceback=call.source_info.traceback))


def _call_name(call: core.JaxprEqn) -> str:
  """Of the called function."""
  return call.params["name"] if "name" in call.params else next(sub_jaxprs(call)).debug_info.func_name


def inlined(call: core.JaxprEqn, inner: core.JaxprEqn, invars: Sequence[Any], outvars: Sequence[Any]) -> core.JaxprEqn:
  """An equation of a call's body as it stands in the caller: other variables, the call's line and name scopes."""
  inner = at_call_site(call, inner)
  name_stack = call.source_info.name_stack
  if call.primitive.name == "jit":
    name_stack = name_stack.extend(f"jit({_call_name(call)})")
  name_stack = name_stack + inner.source_info.name_stack
  return inner.replace(invars=list(invars), outvars=list(outvars),
                       source_info=inner.source_info.replace(name_stack=name_stack))


def pinned_checkpoint(fn: Callable, *, policy: Callable | None, prevent_cse: Any, is_classic: bool = False) -> Callable:
  """`jax.checkpoint` whose recompute waits for its cotangents.

  With both ``jax_remat3`` and ``jax_remat_barrier_no_cotangents`` on, the barrier holds the residuals alone, XLA:CPU
  hoists every recompute to the start of the backward pass and nothing is saved (16-layer decoder, JAX 0.11.2 and
  0.12.0.1: 75 MiB becomes 751). The classic implementation always pins the cotangents, so it is used there. It is used,
  too, where it is asked for: with inputs on the host, ``jax_remat3`` can't linearize (JAX 0.12.0.1).
  """
  def call(*args):
    must_be_classic = is_classic or config.remat_barrier_no_cotangents.value
    with config.remat3(False) if must_be_classic else contextlib.nullcontext():
      return jax.checkpoint(fn, policy=policy, prevent_cse=prevent_cse)(*args)

  return call


def relabel(equation: core.JaxprEqn, scopes: tuple[str, ...], metadata: dict[str, str]) -> core.JaxprEqn:
  """The equation with name scopes put around it and XLA metadata set; its source line stays.

  Args:
    equation: any equation.
    scopes: appended to the equation's name stack, outermost first.
    metadata: merged over the XLA metadata that the equation already carries.
  """
  name_stack = equation.source_info.name_stack
  for scope in scopes:
    name_stack = name_stack.extend(scope)
  context = equation.ctx
  if metadata:
    # The context is interned and immutable; a new one is read off the current configuration.
    with equation.ctx.manager, set_xla_metadata(**metadata):
      context = JaxprEqnContext()
  return equation.replace(source_info=equation.source_info.replace(name_stack=name_stack), ctx=context)


def sub_jaxprs(equation: core.JaxprEqn) -> Iterator[core.Jaxpr]:
  """The jaxprs of ordinary JAX code inside an equation (none for reducers and kernels)."""
  found = []
  map_sub_jaxprs(equation, lambda jaxpr: found.append(jaxpr) or jaxpr, lambda jaxpr: jaxpr)
  return iter(found)


def map_sub_jaxprs(equation: core.JaxprEqn, transform: Callable[[core.Jaxpr], core.Jaxpr],
                   transform_rule: Callable[[core.Jaxpr], core.Jaxpr]) -> core.JaxprEqn:
  """The equation with every sub-jaxpr of ordinary JAX code replaced.

  Args:
    equation: any equation.
    transform: applied to the sub-jaxprs that stand in the equation, in a fixed order.
    transform_rule: applied to the jaxpr of a custom derivative rule, each time JAX asks for it. JAX remembers
      the first trace of a rule together with the XLA metadata of that moment, so the rule has to be relabelled
      on the way out.
  """
  name = equation.primitive.name
  if name == "call_hi_primitive":  # jax.checkpoint under jax_remat3
    prim = equation.params["_prim"]
    if not isinstance(prim, RematTraced):
      return equation
    inner = RematTraced(transform(prim.jaxpr), prim.policy, prim.prevent_cse)
    return equation.replace(params={**equation.params, "_prim": inner})
  if name not in _TRANSPARENT:
    return equation
  params = {key: _map_param(value, transform) for key, value in equation.params.items()}
  if rule := _LAZY_RULES.get(name):
    params[rule] = _wrap_rule(params[rule], transform_rule)
  return equation.replace(params=params)


def _map_param(value: Any, transform: Callable[[core.Jaxpr], core.Jaxpr]) -> Any:
  if isinstance(value, core.Jaxpr):
    return transform(value)
  if isinstance(value, tuple) and any(isinstance(item, core.Jaxpr) for item in value):
    return tuple(transform(item) if isinstance(item, core.Jaxpr) else item for item in value)
  return value


def _wrap_rule(rule: linear_util.WrappedFun, transform_rule) -> linear_util.WrappedFun:
  def relabelled(*args):
    jaxpr, *rest = rule.call_wrapped(*args)
    return (transform_rule(jaxpr), *rest)

  return linear_util.wrap_init(relabelled, debug_info=rule.debug_info)


def is_plain_jit(equation: core.JaxprEqn) -> bool:
  """True for a nested ``jit`` that can be inlined without a loss (donation means nothing inside a program)."""
  if equation.primitive.name != "jit":
    return False
  params = equation.params
  if params["jaxpr"].consts or equation.effects:
    return False
  unspecified = all(isinstance(s, UnspecifiedValue) for s in (*params["in_shardings"], *params["out_shardings"]))
  layouts_open = all(layout is None for layout in (*params["in_layouts"], *params["out_layouts"]))
  return unspecified and layouts_open and not params["compiler_options_kvs"]


def call_body(equation: core.JaxprEqn) -> core.Jaxpr | None:
  """The jaxpr that a call evaluates once, on its own inputs (plain jits, custom derivative rules, checkpoints)."""
  name = equation.primitive.name
  is_call = name in ("remat2", *_LAZY_RULES) or is_plain_jit(equation)
  is_call = is_call or (name == "call_hi_primitive" and isinstance(equation.params["_prim"], RematTraced))
  body = next(sub_jaxprs(equation)) if is_call else None
  return None if body is None or body.consts else body


def scan_slices(equation: core.JaxprEqn) -> Sequence[core.Var]:
  """The variables of a scan's body that hold slices of its inputs; none for other equations."""
  if equation.primitive.name != "scan":
    return ()
  body = equation.params["jaxpr"]
  return [inner for inner, outer in zip(body.invars, equation.invars, strict=True)
          if len(inner.aval.shape) < len(outer.aval.shape)]


def scan_carries(equation: core.JaxprEqn) -> Sequence[core.Var]:
  """The variables of a scan's body that hold its carry."""
  (body,) = sub_jaxprs(equation)
  return list(equation.params["ft_in"].update(body.invars).unpack()[1])


def may_repeat(equation: core.JaxprEqn) -> bool:
  """False for effects that `jax.checkpoint` refuses to run again; it repeats debug prints and collectives."""
  return not effects.remat_allowed_effects.filter_not_in(equation.effects)


def has_ordered_effects(equation: core.JaxprEqn) -> bool:
  """True where the order of input and output with other programs matters; debug prints don't count."""
  return bool(effects.ordered_effects.filter_in(equation.effects)) and not may_repeat(equation)


def as_policies_see(equation: core.JaxprEqn) -> tuple[Any, dict[str, Any]]:
  """Primitive and parameters of an equation; a `checkpoint_name` under ``jax_remat3`` as it is without."""
  if isinstance(name := getattr(equation.params.get("_prim"), "name", None), str):
    return primitives.name_p, {"name": name}
  return equation.primitive, equation.params


def hlo_proto_of_text(text: str) -> bytes:
  """A serialized ``HloModuleProto`` of HLO text, schedule included.

  Raises:
    RuntimeError: jaxlib can't parse it.
  """
  from jaxlib import _hlo  # jaxlib has no public parser

  return _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()


def dce(jaxpr: core.Jaxpr) -> core.Jaxpr:
  """Without dead code, in loops and branches too; all inputs and outputs stay."""
  return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


def short_type(aval: Any) -> str:
  """Dtype and shape, "f32[8,128]" for one."""
  return aval.str_short(short_dtypes=True)


@contextlib.contextmanager
def no_trace() -> Iterator[None]:
  """Leaves every trace in progress, so that a program can be compiled from inside a traced function.

  Named axes in scope are left, too; a mesh that the user has set stays.
  """
  axes, mesh = core_internals.trace_ctx.axis_env, jax.sharding.get_abstract_mesh()
  # The tracers of the traces left are no leaks, and the user's function has been checked when it was traced.
  unchecked = jax.check_tracer_leaks(False)
  outside = jax.sharding.use_abstract_mesh(_without_manual_axes(mesh)) if mesh.manual_axes else contextlib.nullcontext()
  with unchecked, jax.core.eval_context(), outside:
    core_internals.trace_ctx.set_axis_env(core_internals.top_axis_env)
    try:
      yield
    finally:
      core_internals.trace_ctx.set_axis_env(axes)


def bind_axes(fn: Callable, avals: Sequence[jax.ShapeDtypeStruct],
              mesh_like: Callable[[jax.sharding.AbstractMesh], jax.sharding.Mesh] | None = None
              ) -> tuple[Callable, Sequence[jax.ShapeDtypeStruct]]:
  """`fn` and its types as a program of its own, for `no_trace`, that binds the named axes which are in scope here.

  Inside a `shard_map` the program is what one device runs, on a mesh of the same shape; the axis of a `vmap` is bound
  by a `vmap` over nothing, so the program is that of one example.

  Args:
    fn: a function of positional arrays.
    avals: types of its arguments, with the manual axes that they vary over.
    mesh_like: makes the mesh, from one of the same shape; of devices that are there by default.
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
  bound = jax.shard_map(of_device, mesh=devices, in_specs=nowhere, out_specs=everywhere, axis_names=manual,
                        check_vma=config._check_vma.value)
  sharding = jax.sharding.NamedSharding(devices, nowhere) if mesh_like else None
  return bound, [jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=sharding)
                 for aval in avals]


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


def is_batched(value: Any) -> bool:
  """Whether a value is one example of those that a `vmap` around runs over."""
  while isinstance(value, ad.JVPTracer | ad.LinearizeTracer):
    value = value.primal
  return isinstance(value, batching.BatchTracer)


def is_eager() -> bool:
  """Whether operations run one by one here, each a program of its own: nothing around is traced to be compiled."""
  return not any(isinstance(trace, partial_eval.DynamicJaxprTrace) for trace in _traces())


def has_backward_outside() -> bool:
  """Whether a reverse-mode gradient of what runs here is taken outside of all that is compiled as one program."""
  outside = itertools.takewhile(lambda trace: not isinstance(trace, partial_eval.DynamicJaxprTrace), _traces())
  return any(isinstance(trace, ad.LinearizeTrace | partial_eval.JaxprTrace) for trace in outside)


def _traces() -> list[core_internals.Trace]:
  """The traces in progress here, the outermost first."""
  trace, found = core_internals.trace_ctx.trace, []
  while trace is not None:
    found.insert(0, trace)
    trace = getattr(trace, "parent_trace", None)
  return found


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


def _without_manual_axes(mesh: jax.sharding.AbstractMesh) -> jax.sharding.AbstractMesh:
  """The mesh around a `shard_map`."""
  return _devices_of(mesh).abstract_mesh


def _devices_of(mesh: jax.sharding.AbstractMesh) -> jax.sharding.Mesh:
  """The user's own mesh, if set, else devices of the default backend in the same arrangement."""
  current = mesh_lib.get_concrete_mesh()
  if (current.axis_names, current.axis_sizes) == (mesh.axis_names, mesh.axis_sizes):
    return current
  if jax.device_count() < mesh.size:
    raise ValueError(f"coopjax.remat inside a shard_map over {mesh.size} devices: planning compiles for a mesh of that "
                     f"size, and there are {jax.device_count()} devices")
  auto = jax.sharding.AxisType.Auto
  types = tuple(auto if name in mesh.manual_axes else kind
                for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True))
  return jax.make_mesh(mesh.axis_sizes, mesh.axis_names, types)


def without_xla_remat() -> contextlib.AbstractContextManager:
  """Compiles inside it run without XLA's own rematerialization; passes that the user has disabled stay disabled."""
  return config.enable_remat_opt_pass(False)


def hook_platform(backend: str) -> str | None:
  """The platform name under which an HLO hook can be registered for a backend, None where JAX offers no hook.

  Accelerator plugins run hooks from JAX 0.12 on.
  """
  if backend == "cpu":
    return "cpu"
  return {"gpu": "cuda", "tpu": "tpu"}.get(backend) if jax.__version_info__ >= (0, 12) else None


def loaded_hook_platforms() -> list[str]:
  """Platforms whose compilers are loaded and run HLO hooks, present or not, by the names that hooks go by."""
  jax.devices()  # loads the plugins that JAX finds
  names = [hook_platform(backend) for backend in ("cpu", "gpu", "tpu")]
  return [name for name in names if name == "cpu" or (name and _jax.pjrt_plugin_loaded(name))]


def add_to_cache_key(text: Callable[[], str]) -> None:
  """Has the keys of JAX's persistent compilation cache hash what `text` returns at the time, once per function."""
  former = cache_key.custom_hook
  if getattr(former, "added", None) is not text:
    cache_key.custom_hook = lambda: former() + text()
    cache_key.custom_hook.added = text


def log_as_jax_does(name: str) -> None:
  """Has a logger, until it is given a level or handlers of its own, obey ``JAX_LOGGING_LEVEL`` as JAX's loggers do."""
  # As a child it follows when the level changes, too; JAX keeps no list of loggers that others could join.
  logging.getLogger(name).parent = logging.getLogger("jax")
