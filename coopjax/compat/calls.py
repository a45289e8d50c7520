"""Calls that JAX opens up where it traces: those of functions jitted with ``inline=True``, as most of ``jax.numpy`` is.

A gradient sums the cotangents of a value in an order that depends on the calls around: outside of a trace to a jaxpr,
they are linearized and transposed as calls. A jaxpr without them gives the same numbers but for rounding; one that is
to be differentiated in place of its function needs them.
"""

# pyright: reportPrivateImportUsage=false
# JAX exports none of what this package is there to touch.

from collections.abc import Sequence
from typing import Any

from jax._src import config, core, linear_util, source_info_util
from jax._src.api import Inline
from jax._src.interpreters import partial_eval
from jax._src.pjit import jit_p
from jax._src.sharding_impls import UnspecifiedValue
from jax.extend.core import JaxprEqn, Literal


def keep_calls() -> None:
  """From here on, the trace to a jaxpr that is in progress keeps calls that JAX would open up, in rules, too.

  What is traced inside it on its own (bodies of loops, of other jits) is as ever, since that is how the function itself
  would be differentiated.
  """
  trace = core.trace_ctx.trace
  if type(trace) is partial_eval.DynamicJaxprTrace:
    trace.__class__ = _CallKeepingTrace


def is_opened_by_jax(equation: JaxprEqn) -> bool:
  """Whether an equation is such a call."""
  return equation.primitive is jit_p and _is_opened(equation.params)


def folded_by_jax(equation: JaxprEqn, arguments: Sequence[Any]) -> list[Literal] | None:
  """What JAX puts in place of an equation with these arguments where it opens up a call; None if it keeps it."""
  outputs = [var.aval for var in equation.outvars]
  rule = partial_eval.const_fold_rules.get(equation.primitive)
  known = [atom.val if isinstance(atom, Literal) else None for atom in arguments]
  if rule is None or all(value is None for value in known):
    return None
  values = rule(known, equation.params, outputs)
  return None if values is None else [Literal(value, aval) for value, aval in zip(values, outputs, strict=True)]


def _is_opened(params: dict[str, Any]) -> bool:
  """Of the parameters of a call. One with constants of its own has none of them kept: they would be hidden in it."""
  unspecified = all(isinstance(s, UnspecifiedValue) for s in (*params["in_shardings"], *params["out_shardings"]))
  layouts_open = all(layout is None for layout in (*params["in_layouts"], *params["out_layouts"]))
  is_early = params["inline"] is Inline.JAX_EARLY and not params["compiler_options_kvs"]
  jaxpr = params["jaxpr"]
  return is_early and unspecified and layouts_open and not (jaxpr.consts or jaxpr.effects or jaxpr.is_high)


class _CallKeepingTrace(partial_eval.DynamicJaxprTrace):
  """A trace that becomes this one is laid out alike."""

  __slots__ = ()

  def process_primitive(self, primitive, tracers, params, /):
    is_folded = config.eager_constant_folding.value  # `jax.ensure_compile_time_eval`
    if primitive is not jit_p or is_folded or not _is_opened(params):
      return super().process_primitive(primitive, tracers, params)
    source_info = source_info_util.current()
    arguments = [self.to_jaxpr_tracer(x, source_info=source_info) for x in tracers]
    return self.default_process_primitive(primitive, arguments, params, source_info)

  def process_custom_jvp_call(self, prim, fun, jvp, tracers, /, **params):
    return super().process_custom_jvp_call(prim, fun, _calls_kept(jvp), tracers, **params)

  def process_custom_vjp_call(self, prim, fun, fwd, bwd, tracers, /, **params):
    return super().process_custom_vjp_call(prim, fun, _calls_kept(fwd), bwd, tracers, **params)


@linear_util.transformation2
def _calls_kept(rule, *args, **kwargs):
  keep_calls()
  return rule(*args, **kwargs)
