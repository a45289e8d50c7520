"""Jaxprs: source lines, name stacks, equation contexts and sub-jaxprs, read and rebuilt.

From JAX 0.11.2 on ``Jaxpr`` and ``ClosedJaxpr`` are one class, and a jaxpr carries the values of its constants.
"""

# pyright: reportPrivateImportUsage=false
# JAX exports none of what this package is there to touch.

import contextlib
import os
import re
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax._src import effects, linear_util, source_info_util
from jax._src.ad_checkpoint import RematTraced
from jax._src.core import JaxprEqnContext
from jax._src.interpreters import partial_eval
from jax._src.sharding_impls import UnspecifiedValue
from jax._src.state.types import AbstractRef
from jax._src.tree_util import tracing_registry
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend import core
from jax.extend.core import primitives

import coopjax
from coopjax.compat.calls import is_opened_by_jax
from coopjax.compat.meshes import AxisScope

# Primitives whose sub-jaxprs are ordinary JAX code. Others (reducers, scatter's update function, Pallas kernels)
# keep theirs untouched.
_TRANSPARENT = frozenset(
  {
    "jit",
    "scan",
    "while",
    "cond",
    "remat2",
    "custom_jvp_call",
    "custom_vjp_call",
    "eval_jaxpr",
    "shard_map",
  }
)
# Where a custom rule hides code that is traced only when somebody differentiates.
_LAZY_RULES = {"custom_jvp_call": "jvp_jaxpr_fun", "custom_vjp_call": "fwd_jaxpr_thunk"}

# A user frame is one of the user's files: neither JAX's nor ours.
source_info_util.register_exclusion(os.path.dirname(coopjax.__file__) + os.sep)
_INSTALLED = ("site-packages/", "dist-packages/")  # as in xla_pass/hlo/metadata.cc
_OUTERMOST_JIT = re.compile(r"jit\((?:[^()]*\.)?([^().]+)\)")


class SourceLine(NamedTuple):
  """Where the user wrote an equation."""

  file: str
  line: int
  function: str


def source_line(equation: core.JaxprEqn) -> SourceLine | None:
  """The innermost frame of user code behind an equation, outside of installed packages if any is; None when JAX
  recorded none.
  """
  first = None
  for frame in source_info_util.user_frames(equation.source_info.traceback):
    first = first or frame
    if not any(part in frame.file_name for part in _INSTALLED):
      return SourceLine(frame.file_name, frame.start_line, frame.function_name)
  return first and SourceLine(first.file_name, first.start_line, first.function_name)


def user_calls(equation: core.JaxprEqn) -> list[tuple[types.CodeType, int]]:
  """The user's functions that were being called when an equation was traced, and how far each had come (offsets in its
  code), outermost first. What called a jitted function is left out: JAX keeps its jaxpr from its first call.
  """
  if equation.source_info.traceback is None:
    return []
  frames = zip(*equation.source_info.traceback.raw_frames(), strict=True)
  calls = [(code, at) for code, at in frames if source_info_util.is_user_filename(code.co_filename)][::-1]
  if jitted := _OUTERMOST_JIT.search(name_scopes(equation)):
    inside = (i for i, (code, _) in enumerate(calls) if code.co_name == jitted[1])
    return calls[next(inside, 0) :]
  return calls


def flatten(tree: Any) -> tuple[list[Any], Any]:
  """Leaves and structure, as JAX's transformations see them: a view of a reference is that, and its indices."""
  return tracing_registry.flatten(tree)


def open_constants(closed: core.Jaxpr) -> core.Jaxpr:
  """The same jaxpr with its constants as leading inputs instead of attached values."""
  return closed.replace(constvars=(), invars=[*closed.constvars, *closed.invars])


def rebuild(jaxpr: core.Jaxpr, equations: Sequence[core.JaxprEqn], outvars: Sequence[Any] | None = None) -> core.Jaxpr:
  """`jaxpr` with other equations (and outputs, if given); argument names and effects are kept."""
  outvars = jaxpr.outvars if outvars is None else list(outvars)
  return jaxpr.replace(eqns=list(equations), outvars=outvars, debug_info=jaxpr.debug_info)


def environment(jaxpr: core.Jaxpr, inputs: Sequence[Any]) -> dict[core.Var, Any]:
  """What a jaxpr's variables stand for before its first equation: its attached constants and its inputs."""
  consts = zip(jaxpr.constvars, getattr(jaxpr, "consts", ()), strict=True)
  return dict(consts) | dict(zip(jaxpr.invars, inputs, strict=True))


def named(equation: core.JaxprEqn, outvars: Collection[core.Var], name: str) -> list[core.JaxprEqn]:
  """The equation, and behind it one for each of these outputs that gives it a `checkpoint_name`.

  Whoever reads the outputs reads the named values: the variables stay.
  """
  unnamed = {var: core.Var(var.aval) for var in outvars}
  unnamed_equation = equation.replace(outvars=[unnamed.get(var, var) for var in equation.outvars])
  return [unnamed_equation, *(_naming(inner, var, name, equation) for var, inner in unnamed.items())]


def with_named_inputs(jaxpr: core.Jaxpr, names: Mapping[core.Var, str]) -> core.Jaxpr:
  """The jaxpr with a `checkpoint_name` on some of its inputs, for whoever reads them."""
  if not names or not jaxpr.eqns:
    return jaxpr
  unnamed = {var: core.Var(var.aval) for var in names}
  naming = [_naming(unnamed[var], var, name, jaxpr.eqns[0]) for var, name in names.items()]
  return rebuild(jaxpr.replace(invars=[unnamed.get(var, var) for var in jaxpr.invars]), [*naming, *jaxpr.eqns])


def _naming(value: core.Var, named: core.Var, name: str, like: core.JaxprEqn) -> core.JaxprEqn:
  """The equation that gives a value its name, with the source line and the context of another one."""
  with like.ctx.manager:
    naming = jax.make_jaxpr(lambda value: checkpoint_name(value, name))(value.aval).eqns[-1]
  return naming.replace(invars=[value], outvars=[named], source_info=like.source_info, ctx=like.ctx)


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
  name_stack = call.source_info.name_stack
  if is_opened_by_jax(call):  # which gives it the call's line, and no scope
    inner = inner.replace(source_info=inner.source_info.replace(traceback=call.source_info.traceback))
  else:
    inner = at_call_site(call, inner)
  if call.primitive.name == "jit" and not is_opened_by_jax(call):
    name_stack = name_stack.extend(f"jit({_call_name(call)})")
  name_stack = name_stack + inner.source_info.name_stack
  return inner.replace(
    invars=list(invars), outvars=list(outvars), source_info=inner.source_info.replace(name_stack=name_stack)
  )


def metadata_of(equation: core.JaxprEqn, key: str) -> str | None:
  """A piece of the XLA metadata that an equation carries."""
  return (equation.ctx.xla_metadata or {}).get(key)


def relabel(equation: core.JaxprEqn, scopes: tuple[str, ...], metadata: dict[str, str | None]) -> core.JaxprEqn:
  """The equation with name scopes put around it and XLA metadata set; its source line stays.

  Args:
    equation: any equation.
    scopes: appended to the equation's name stack, outermost first.
    metadata: merged over the XLA metadata that the equation already carries; None takes away.
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


def with_metadata(metadata: dict[str, str]) -> contextlib.AbstractContextManager:
  """XLA metadata on all equations that are traced inside; JAX's caches know of it."""
  return set_xla_metadata(**metadata)


def sub_jaxprs(equation: core.JaxprEqn) -> Iterator[core.Jaxpr]:
  """The jaxprs of ordinary JAX code inside an equation (none for reducers and kernels)."""
  found = []
  map_sub_jaxprs(equation, lambda jaxpr: found.append(jaxpr) or jaxpr, lambda jaxpr: jaxpr)
  return iter(found)


def map_sub_jaxprs(
  equation: core.JaxprEqn,
  transform: Callable[[core.Jaxpr], core.Jaxpr],
  transform_rule: Callable[[core.Jaxpr], core.Jaxpr],
) -> core.JaxprEqn:
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
    # JAX types the attribute, which may be a tuple, and leaves the parameter to its default, a bool.
    inner = RematTraced(transform(prim.jaxpr), prim.policy, prim.prevent_cse)  # pyright: ignore[reportArgumentType]
    return equation.replace(params={**equation.params, "_prim": inner})
  if name not in _TRANSPARENT:
    return equation
  with AxisScope.inside(equation).entered():
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


def is_checkpoint(equation: core.JaxprEqn) -> bool:
  """Whether it evaluates what is under a `jax.checkpoint`, for the first time or again."""
  name = equation.primitive.name
  return name == "remat2" or (name == "call_hi_primitive" and isinstance(equation.params["_prim"], RematTraced))


def call_body(equation: core.JaxprEqn) -> core.Jaxpr | None:
  """The jaxpr that a call evaluates once, on its own inputs (plain jits, custom derivative rules, checkpoints)."""
  is_call = equation.primitive.name in _LAZY_RULES or is_checkpoint(equation) or is_plain_jit(equation)
  body = next(sub_jaxprs(equation)) if is_call else None
  return None if body is None or body.consts else body


def scan_slices(equation: core.JaxprEqn) -> Sequence[core.Var]:
  """The variables of a scan's body that hold slices of its inputs; none for other equations."""
  if equation.primitive.name != "scan":
    return ()
  body = equation.params["jaxpr"]
  return [
    inner for inner, outer in zip(body.invars, equation.invars, strict=True) if _rank(inner.aval) < _rank(outer.aval)
  ]


def _rank(aval: Any) -> int:
  """Of an array type."""
  return len(aval.shape)


def scan_constants(equation: core.JaxprEqn) -> Sequence[core.Var]:
  """The variables of a scan's body that no turn changes."""
  (body,) = sub_jaxprs(equation)
  return list(equation.params["ft_in"].update(body.invars).unpack()[0])


def scan_carries(equation: core.JaxprEqn) -> Sequence[core.Var]:
  """The variables of a scan's body that hold its carry."""
  (body,) = sub_jaxprs(equation)
  return list(equation.params["ft_in"].update(body.invars).unpack()[1])


def scan_parts(equation: core.JaxprEqn, values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
  """The inputs of a scan, one by one: what no turn changes, what the first turn is given, and the stacks."""
  consts, init, stacks = equation.params["ft_in"].update(values).unpack()
  return list(consts), list(init), list(stacks)


def with_constants_in_order(equation: core.JaxprEqn, before: Sequence[core.Var]) -> core.JaxprEqn:
  """The scan with those of its constants that are among `before` first, in the order of these; as it is where it has
  effects, which may name inputs by their places.
  """
  if equation.effects:
    return equation
  place = {var: i for i, var in enumerate(before)}
  consts, init, stacks = scan_parts(equation, range(len(equation.invars)))
  at = lambda i: place.get(atom, len(place)) if isinstance(atom := equation.invars[i], core.Var) else len(place)
  order = [*sorted(consts, key=at), *init, *stacks]
  body = equation.params["jaxpr"]
  body = body.replace(invars=[body.invars[i] for i in order], debug_info=body.debug_info)
  return equation.replace(invars=[equation.invars[i] for i in order], params={**equation.params, "jaxpr": body})


def bind_scan(
  equation: core.JaxprEqn, values: Sequence[Any], evaluate: Callable[[core.Jaxpr, list[Any]], list[Any]]
) -> list[Any]:
  """The outputs of a scan for these inputs, with its body evaluated by `evaluate`."""
  (body,) = sub_jaxprs(equation)
  consts, init, slices = scan_parts(equation, values)

  def turn(carry, sliced):
    outputs = evaluate(body, [*consts, *carry, *sliced])
    return outputs[: len(carry)], outputs[len(carry) :]

  carry, stacked = lax.scan(turn, init, slices, equation.params["length"], equation.params["reverse"])
  return [*carry, *stacked]


def may_repeat(equation: core.JaxprEqn) -> bool:
  """False for effects that `jax.checkpoint` refuses to run again, and where it refuses to hand a reference in or out;
  it repeats debug prints and collectives.
  """
  has_refs = any(isinstance(atom.aval, AbstractRef) for atom in (*equation.invars, *equation.outvars))
  return not has_refs and not effects.remat_allowed_effects.filter_not_in(equation.effects)


def has_ordered_effects(equation: core.JaxprEqn) -> bool:
  """True where the order of input and output with other programs matters; debug prints don't count."""
  return bool(effects.ordered_effects.filter_in(equation.effects)) and not may_repeat(equation)


def as_policies_see(equation: core.JaxprEqn) -> tuple[Any, dict[str, Any]]:
  """Primitive and parameters of an equation; a `checkpoint_name` under ``jax_remat3`` as it is without."""
  if isinstance(name := getattr(equation.params.get("_prim"), "name", None), str):
    return primitives.name_p, {"name": name}
  return equation.primitive, equation.params


def dce(jaxpr: core.Jaxpr) -> core.Jaxpr:
  """Without dead code, in loops and branches too; all inputs and outputs stay."""
  return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


def short_type(aval: Any) -> str:
  """Dtype and shape, "f32[8,128]" for one."""
  return aval.str_short(short_dtypes=True)
