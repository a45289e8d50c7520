"""A user's function as a flat jaxpr, and that function together with its gradient.

A `TracedFn` has no hidden inputs: arrays that the user's function closes over, tracers of an outer trace included,
stand as leading inputs of the jaxpr. So what is compiled for planning never touches a trace in progress, and the
call that the user makes passes them through.
"""

import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax.extend import core

from coopjax import compat
from coopjax.errors import CoopjaxError, LostUpdateWarning, NotDifferentiableError, OrderedEffectError, printable, warn
from coopjax.jaxpr import non_arrays, user_policy
from coopjax.jaxpr.arguments import SplitArguments, split_arguments
from coopjax.jaxpr.batches import batched_avals, batched_fn
from coopjax.jaxpr.constants import with_constants
from coopjax.jaxpr.inline import inline_as_jax_does, inline_jits
from coopjax.jaxpr.placement import Placement, path_name, place

_LEAF = re.compile(r"\bleaves\[(\d+)\]")
Once = Callable[[Hashable, Callable[[], Any]], Any]  # what is made under a key, made once


@dataclasses.dataclass(frozen=True, eq=False)
class TracedFn:
  """A function traced for one set of argument types.

  Attributes:
    name: the function's name, for reports.
    jaxpr: inputs are `consts`, then the leaves of the dynamic arguments; no attached constants.
    as_called: the same with calls in it that JAX opens up where it traces, and so did in `jaxpr` (`compat.keep_calls`):
      what stands in for the function under transformations, with the bits of the function.
    consts: the arrays (or outer tracers) that the function closes over.
    in_avals: shape, dtype, weak type and, where known, sharding of every input of `jaxpr`.
    in_names: a readable path for every input of `jaxpr`, "params['w']" for one.
    in_tree: of the dynamic ``(args, kwargs)``.
    out_avals: of the flat outputs.
    out_tree: of the user's return value.
    is_differentiable: per input of `jaxpr`: floating or complex, and an argument or a tracer (a constant array
      that nobody can differentiate has no gradient). Where traces around show what a gradient is taken with respect to,
      that alone.
    placement: of the inputs on devices.
    policy: of `jax.checkpoint`: what it saves is not recomputed, nor what those of regions inside save.
    ordered_effect: where the function has an effect that must not happen twice, or in another order; "" for none.
    scope: the `shard_map`s and `vmap`s around it, by their named axes.
  """

  name: str
  jaxpr: core.Jaxpr
  as_called: core.Jaxpr
  consts: tuple[Any, ...]
  in_avals: tuple[jax.ShapeDtypeStruct, ...]
  in_names: tuple[str, ...]
  in_tree: Any
  out_avals: tuple[jax.ShapeDtypeStruct, ...]
  out_tree: Any
  is_differentiable: tuple[bool, ...]
  placement: Placement
  policy: Callable | None = None
  ordered_effect: str = ""
  scope: compat.AxisScope = dataclasses.field(default_factory=compat.AxisScope.here, repr=False)
  _made: dict[Any, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

  @property
  def has_symbolic_sizes(self) -> bool:
    """Whether a dimension of an input stands for any size, as `jax.export` allows."""
    return any(not isinstance(size, int) for aval in self.in_avals for size in aval.shape)

  @functools.cached_property
  def inlined(self) -> core.Jaxpr:
    """`jaxpr` with nested jits opened up, for cutting it into segments. It computes the same, but not the same bits:
    XLA fuses and orders it differently.
    """
    return inline_jits(self.jaxpr)

  def call(self, leaves: Sequence[Any], flat_fn: Callable[..., Sequence[Any]] | None = None) -> Any:
    """The user's return value for the leaves of the dynamic arguments (see `split_arguments`).

    Args:
      leaves: in the order of `in_tree`.
      flat_fn: a rewritten form of `jaxpr`, from its flat inputs to its flat outputs; the jaxpr itself by default.
    """
    flat_fn = flat_fn or self.evaluate
    return non_arrays.shown(jax.tree.unflatten(self.out_tree, flat_fn(*self.consts, *leaves)))

  def called_with(self, leaves: Sequence[Any]) -> "TracedFn":
    """The function as it is differentiated where it is called with these leaves."""
    is_differentiable = _differentiable(self.consts, leaves, self.in_avals)
    if is_differentiable == self.is_differentiable:
      return self
    return dataclasses.replace(self, is_differentiable=is_differentiable)

  def in_all_places(self) -> "TracedFn":
    """A layer as it is differentiated where all of its arguments are, for one decision for the first place, whose
    inputs may need no gradient, and all others. Not so a loss, or where each example of a `vmap` has its gradients,
    which are large by weights that all examples share.
    """
    is_loss = any(aval.shape == () and is_floating(aval) for aval in self.out_avals[:1])
    if is_loss or self.placement.batches:
      return self
    return dataclasses.replace(self, is_differentiable=_floating(self.consts, self.in_avals))

  def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
    """What is made of the function under a key, made once: its equations are found in JAX's caches again."""
    if key not in self._made:
      self._made[key] = make()
    return self._made[key]

  def refuse_ordered_effects(self) -> None:
    """Raises OrderedEffectError if the function has such an effect."""
    if self.ordered_effect:
      raise OrderedEffectError(
        f"{self.name} has an ordered side effect{self.ordered_effect}: a rematerialized function may run in another "
        "order, and parts of it twice. Move the effect out of the function, or drop ordered=True."
      )

  def evaluate(self, *inputs: Any) -> list[Any]:
    """The flat outputs for the flat inputs of `jaxpr`, unchanged from what the user wrote."""
    # A check for NaNs asks each call for its own, and expects none of these.
    is_checked = jax.config.jax_debug_nans or jax.config.jax_debug_infs
    return jax.core.eval_jaxpr(self.jaxpr if is_checked else self.as_called, (), *inputs)


def trace(
  fn: Callable,
  args: Sequence[Any] | SplitArguments = (),
  kwargs: dict[str, Any] | None = None,
  *,
  policy: Callable | None = None,
  static_argnums: int | Sequence[int] = (),
  static_argnames: str | Sequence[str] = (),
) -> TracedFn:
  """Traces `fn` for these arguments.

  Args:
    fn: any callable, bound methods included; it may close over arrays and over tracers of an outer trace.
    args: positional arguments: pytrees of arrays, tracers, Python scalars or `jax.ShapeDtypeStruct`s. Or all arguments,
      split.
    kwargs: keyword arguments, same.
    policy: of `jax.checkpoint`.
    static_argnums: positions of arguments that are passed through untraced.
    static_argnames: names of such arguments.

  Returns:
    The traced function.
  """
  split = args
  if not isinstance(split, SplitArguments):
    split = split_arguments(fn, split, kwargs or {}, static_argnums=static_argnums, static_argnames=static_argnames)
  name = printable(getattr(fn, "__name__", type(fn).__name__))

  def flat_fn(*leaves):
    compat.keep_calls()
    merged_args, merged_kwargs = split.merged(leaves)
    given = jax.tree.leaves((merged_args, merged_kwargs))
    outputs = fn(*merged_args, **merged_kwargs)
    _warn_of_changed_objects(name, given, (merged_args, merged_kwargs))
    return non_arrays.hidden(outputs, is_filtered=split.is_filtered)

  flat_fn.__name__ = name
  parameters = [inspect.Parameter("leaves", inspect.Parameter.VAR_POSITIONAL)]
  vars(flat_fn).update(__wrapped__=fn, __signature__=inspect.Signature(parameters))  # errors name the user's function
  with explained(name, split):
    closed, out_shapes = jax.make_jaxpr(flat_fn, return_shape=True)(*split.leaves)
  consts = tuple(closed.consts)
  as_called = compat.open_constants(closed)
  jaxpr = inline_as_jax_does(as_called)
  ordered_effect = _ordered_effect(jaxpr)
  if policy is not None:
    jaxpr, as_called = (user_policy.with_names(form, policy) for form in (jaxpr, as_called))
  out_tree = jax.tree.structure(out_shapes)
  placement = place((*consts, *split.leaves))
  in_avals = tuple(
    _abstract(var.aval, sharding) for var, sharding in zip(jaxpr.invars, placement.shardings, strict=True)
  )
  out_avals = tuple(_abstract(atom.aval, compat.stated_sharding(atom.aval)) for atom in jaxpr.outvars)
  return TracedFn(
    name=name,
    jaxpr=jaxpr,
    as_called=as_called,
    consts=consts,
    in_avals=in_avals,
    in_names=(*(f"closure[{i}]" for i in range(len(consts))), *split.names()),
    in_tree=split.in_tree,
    out_avals=out_avals,
    out_tree=out_tree,
    is_differentiable=_differentiable(consts, split.leaves, in_avals),
    placement=placement,
    policy=user_policy.saving_names(jaxpr, policy),
    ordered_effect=ordered_effect,
  )


def _differentiable(consts: Sequence[Any], leaves: Sequence[Any], in_avals: Sequence[Any]) -> tuple[bool, ...]:
  """`TracedFn.is_differentiable` of a call.

  So a layer whose first place has inputs that need no gradient is planned for that place and for all others.
  """
  is_shown = [compat.is_differentiated(value) for value in (*consts, *leaves)]
  of_all = _floating(consts, in_avals)
  return tuple(ok and shown for ok, shown in zip(of_all, is_shown, strict=True)) if any(is_shown) else of_all


def _floating(consts: Sequence[Any], in_avals: Sequence[Any]) -> tuple[bool, ...]:
  """Of the inputs, those that anybody may differentiate by."""
  may = [isinstance(const, jax.core.Tracer) for const in consts] + [True] * (len(in_avals) - len(consts))
  return tuple(ok and is_floating(aval) for ok, aval in zip(may, in_avals, strict=True))


@contextlib.contextmanager
def explained(name: str, split: SplitArguments | None = None) -> Iterator[None]:
  """Says in errors about traced values of which Python wants the value what can be done: make the argument static."""
  try:
    yield
  except (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError) as error:
    what = ""
    if split is not None and (found := _LEAF.search(str(error))):
      what = f"{found[0]} is {split.names()[int(found[1])]} of {name}. "
    error.add_note(
      f"{what}coopjax traces the arguments of {name} that are not static: a flag such as train= belongs into "
      "static_argnums or static_argnames, or is bound with functools.partial"
    )
    if error.args and isinstance(error.args[0], str):
      hint = "Consider the `static_argnums` and `static_argnames` parameters of `coopjax.remat` and `jax.checkpoint`."
      error.args = (f"{error.args[0]}\n\n{hint}\n", *error.args[1:])
    raise


def _warn_of_changed_objects(name: str, given: Sequence[Any], arguments: Any) -> None:
  """Warns if a function has put other arrays than it was given into objects among its arguments.

  They are copies: what is put into a dict or a list is mostly meant for the function itself, but not what is put into a
  Flax NNX module.
  """
  is_known = set(map(id, given))
  try:
    after = jax.tree_util.tree_flatten_with_path(arguments)[0]
  except ValueError:  # Equinox's State, once there is a new one
    return
  for path, leaf in after:
    is_in_object = any(isinstance(key, jax.tree_util.GetAttrKey) for key in path)
    if is_in_object and isinstance(leaf, jax.core.Tracer) and id(leaf) not in is_known:
      warn(
        f"{name} changes {path_name(path)} in place, which nobody will see: as under jax.checkpoint, the arguments are "
        "copies. Return the new value, or wrap functions of Flax NNX modules in coopjax.nnx.remat",
        LostUpdateWarning,
      )
      return


def _ordered_effect(jaxpr: core.Jaxpr) -> str:
  """Where the first ordered effect is, in words; "" for none."""
  for equation in jaxpr.eqns:
    if compat.has_ordered_effects(equation):
      source = compat.source_line(equation)
      where = "" if source is None else f" at {source.file}:{source.line}"
      return f"{where} ({equation.primitive.name})"
  return ""


def _abstract(aval: Any, sharding: jax.sharding.Sharding | None) -> jax.ShapeDtypeStruct:
  """The type of an input or output."""
  return jax.ShapeDtypeStruct(
    aval.shape,
    aval.dtype,
    sharding=sharding,
    weak_type=getattr(aval, "weak_type", False),
    manual_axis_type=compat.manual_axes(aval),
  )


def is_floating(aval: Any) -> bool:
  """True for floating and complex types: what a gradient can flow through."""
  return jnp.issubdtype(aval.dtype, jnp.inexact)


def with_respect_to(traced: TracedFn, argnums: int | Sequence[int]) -> TracedFn:
  """The function as it is differentiated by some of its positional arguments, as `jax.grad` takes their numbers.

  Raises:
    ValueError: a number that is none of its arguments.
  """
  args, _ = jax.tree.unflatten(traced.in_tree, range(traced.in_tree.num_leaves))
  numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
  if outside := [number for number in numbers if not -len(args) <= number < len(args)]:
    raise ValueError(f"argnums={outside[0]}: {traced.name} is called with {len(args)} positional arguments")
  chosen = {leaf + len(traced.consts) for number in numbers for leaf in jax.tree.leaves(args[number])}
  flags = tuple(ok and i in chosen for i, ok in enumerate(traced.is_differentiable))
  return dataclasses.replace(traced, is_differentiable=flags)


def differentiable(traced: TracedFn) -> TracedFn:
  """The function with the inputs that JAX takes a reverse-mode gradient with respect to.

  A `while` loop, a callback or a custom rule may lie on the way of some inputs, or of all.

  Raises:
    NotDifferentiableError: there is no such input.
  """
  error = _gradient_error(traced)
  if error is None:
    return traced
  alone = [
    dataclasses.replace(traced, is_differentiable=tuple(i == j for j in range(len(traced.in_avals))))
    for i, ok in enumerate(traced.is_differentiable)
    if ok
  ]
  kept = [any(flags) for flags in zip(*(one.is_differentiable for one in alone if _gradient_error(one) is None))]
  if not kept:
    raise NotDifferentiableError(f"{traced.name} has no gradient that could be planned: {error}") from error
  return dataclasses.replace(traced, is_differentiable=tuple(kept))


def by_gradient[Made](traced: TracedFn, make: Callable[[TracedFn], Made]) -> Made:
  """What is made by differentiating a function, with respect to the inputs that can be (`differentiable`).

  Which these are takes a trace of the gradient, so it is asked only where making it from all of them fails.
  """
  try:
    return make(traced)
  except CoopjaxError:
    raise
  except Exception:  # whatever a rule may raise
    narrowed = differentiable(traced)
    if narrowed.is_differentiable == traced.is_differentiable:
      raise
  return make(narrowed)


def _gradient_error(traced: TracedFn) -> Exception | None:
  """Why JAX can't differentiate the function with respect to its differentiable inputs; None if it can."""
  with traced.scope.entered():
    fn, avals = compat.bind_axes(*fn_and_gradient(traced), compat.without_manual_axes)
    try:
      with compat.no_trace():
        jax.eval_shape(fn, *avals)
    except Exception as error:  # whatever a rule may raise
      return error
  return None


def fn_and_gradient(
  traced: TracedFn, flat_fn: Callable[..., Sequence[Any]] | None = None
) -> tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]:
  """The function together with its gradient: what `plan` compiles.

  Args:
    traced: from `trace`.
    flat_fn: a rewritten or tagged form of `traced.jaxpr`; the jaxpr itself by default.

  Returns:
    ``(fn, avals)``. `fn` takes the inputs of `traced.jaxpr` but for constants, then one cotangent per floating output
    of rank 1 or more (a scalar's cotangent is a one made inside, as in `jax.value_and_grad`), and returns
    ``(flat outputs, gradients of the differentiable inputs)``. `avals` are the types of its inputs.

  Raises:
    NotDifferentiableError: no floating input or no floating output.
  """
  batches = traced.placement.batches
  of_each, of_all = ([batch for batch in batches if batch.of_gradient == of_gradient] for of_gradient in (True, False))
  flat_fn = batched_fn(flat_fn or traced.evaluate, of_all)
  in_avals, out_avals = batched_avals(traced.in_avals, traced.out_avals, of_all)
  wrt = [i for i, ok in enumerate(traced.is_differentiable) if ok]
  floating_out = [i for i, aval in enumerate(out_avals) if is_floating(aval)]
  if not wrt or not floating_out:
    kind, avals = ("input", in_avals) if not wrt else ("output", out_avals)
    types = ", ".join(f"{aval.dtype.name}{list(aval.shape)}" for aval in avals[:8]) or "none at all"
    raise NotDifferentiableError(
      f"{traced.name} has no floating-point {kind} (it has: {types}), so there is no gradient whose residuals "
      "could be rematerialized. Wrap the function that is differentiated."
    )
  array_out = [i for i in floating_out if out_avals[i].shape]
  num_inputs = len(in_avals)

  def with_gradient(*flat):
    inputs, cotangents = list(flat[:num_inputs]), dict(zip(array_out, flat[num_inputs:], strict=True))

    def of_floating(*floating_in):
      for i, value in zip(wrt, floating_in, strict=True):
        inputs[i] = value
      outs = flat_fn(*inputs)
      return [outs[i] for i in floating_out], outs

    _, pullback, outs = jax.vjp(of_floating, *[inputs[i] for i in wrt], has_aux=True)
    ones = {i: compat.vary(jnp.ones((), out_avals[i].dtype), out_avals[i]) for i in floating_out if i not in cotangents}
    return outs, pullback([{**cotangents, **ones}[i] for i in floating_out])

  with_gradient.__name__ = f"{traced.name}_and_gradient"
  in_avals, cotangents = batched_avals(in_avals, [out_avals[i] for i in array_out], of_each)
  return with_constants(batched_fn(with_gradient, of_each), (*in_avals, *cotangents), traced.consts)
