"""FLOPs and seconds of jaxpr equations: what recomputing one costs.

The unit of FLOPs is a floating-point operation that the machine can't hide behind memory traffic. Elementwise work is
counted per output element, because XLA fuses its recompute into whatever reads it; data movement that fuses away
counts nothing. Only ratios matter to the planner; reports show the sum as FLOPs.
"""

import math
from collections.abc import Sequence
from typing import Any

from jax.extend import core

from coopjax import compat
from coopjax.program.cost import Roofline

_TRANSCENDENTAL_FLOPS = 8.0
_TRANSCENDENTAL = frozenset(
  "acos acosh asin asinh atan atan2 atanh cbrt cos cosh digamma erf erfc erf_inv exp exp2 expm1 integer_pow lgamma "
  "log log1p logistic pow rsqrt sin sinh sqrt tan tanh random_bits threefry2x32".split()
)
# Layout changes and markers: XLA fuses them, or they are nothing at all.
_FREE = frozenset(
  "broadcast_in_dim reshape squeeze expand_dims slice convert_element_type bitcast_convert_type copy iota name "
  "stop_gradient optimization_barrier reduce_precision split random_wrap random_unwrap sharding_constraint".split()
)
# Memory-bound work that does not fuse, in FLOPs per output element.
_MOVES = {
  "transpose": 1.0,
  "concatenate": 1.0,
  "pad": 1.0,
  "rev": 1.0,
  "dynamic_slice": 1.0,
  "gather": 4.0,
  "dynamic_update_slice": 1.0,
  "scatter": 8.0,
  "scatter-add": 8.0,
  "scatter_add": 8.0,
  "sort": 64.0,
  "top_k": 64.0,
  "cumsum": 4.0,
  "cumlogsumexp": 16.0,
  "cumprod": 4.0,
  "cummax": 4.0,
  "cummin": 4.0,
}
_LOOKUPS = frozenset("dynamic_slice gather slice".split())


def num_elements(aval: Any) -> int:
  """Elements of an array type; 0 for what is not an array."""
  return math.prod(getattr(aval, "shape", (0,)))


def num_bytes(aval: Any) -> int:
  """Bytes of an array type as JAX sees it, before XLA's layouts; 0 for what is not an array."""
  itemsize = getattr(getattr(aval, "dtype", None), "itemsize", 0)
  return num_elements(aval) * itemsize


def equation_flops(equation: core.JaxprEqn) -> float:
  """FLOPs of one equation; loops are counted with their length, branches by the costliest."""
  name = equation.primitive.name
  inner = [jaxpr_flops(jaxpr) for jaxpr in compat.sub_jaxprs(equation)]
  if inner:
    return _combined(equation, inner)
  if name == "dot_general":
    return _dot_flops(equation)
  if name == "conv_general_dilated":
    return _convolution_flops(equation)
  if name in _FREE:
    return 0.0
  elements = sum(num_elements(var.aval) for var in equation.outvars)
  if name in _MOVES:
    return _MOVES[name] * elements
  if name in _TRANSCENDENTAL:
    return _TRANSCENDENTAL_FLOPS * elements
  if name.startswith(("reduce_", "arg")):
    return float(max(elements, sum(num_elements(atom.aval) for atom in equation.invars)))
  return float(elements)


def arithmetic_seconds(equation: core.JaxprEqn, roofline: Roofline) -> float:
  """Modelled seconds of one equation if memory were infinitely fast; of loops and branches, those of what is inside."""
  inner = [sum(equation_seconds(each, roofline) for each in jaxpr.eqns) for jaxpr in compat.sub_jaxprs(equation)]
  if inner:
    return _combined(equation, inner)
  if equation.primitive.name in _TRANSCENDENTAL:
    return roofline.arithmetic_seconds(0.0, sum(num_elements(var.aval) for var in equation.outvars))
  return roofline.arithmetic_seconds(equation_flops(equation), 0.0)


def equation_seconds(equation: core.JaxprEqn, roofline: Roofline) -> float:
  """Modelled seconds of one equation; loops are counted with their length, branches by the costliest."""
  inputs = {id(atom): num_bytes(atom.aval) for atom in equation.invars}
  outputs = sum(num_bytes(var.aval) for var in equation.outvars)
  moved = moved_bytes(equation.primitive.name, sum(inputs.values()), outputs)
  return roofline.seconds(arithmetic_seconds(equation, roofline), moved)


def fused_seconds(equation: core.JaxprEqn, roofline: Roofline) -> float:
  """The least seconds that an equation takes: its arithmetic and, where it reduces or moves, its memory traffic.

  XLA fuses elementwise work into what reads it, where it moves no bytes of its own.
  """
  inner = [sum(fused_seconds(each, roofline) for each in jaxpr.eqns) for jaxpr in compat.sub_jaxprs(equation)]
  if inner:
    return _combined(equation, inner)
  name = equation.primitive.name
  if name in _FREE:
    return 0.0
  is_fused = name not in _MOVES and not name.startswith(("reduce_", "arg", "dot", "conv"))
  arithmetic_s = arithmetic_seconds(equation, roofline)
  return arithmetic_s if is_fused else max(arithmetic_s, equation_seconds(equation, roofline) - roofline.op_overhead_s)


def moved_bytes(name: str, input_bytes: int, output_bytes: int) -> int:
  """Bytes that a primitive reads and writes: of a table it reads what it looks up."""
  return output_bytes + (min(input_bytes, output_bytes) if name in _LOOKUPS else input_bytes)


def _combined(equation: core.JaxprEqn, inner: Sequence[float]) -> float:
  """The cost of an equation from those of its sub-jaxprs."""
  if equation.primitive.name == "scan":
    return equation.params["length"] * inner[0]
  return max(inner) if equation.primitive.name == "cond" else sum(inner)


def jaxpr_flops(jaxpr: core.Jaxpr) -> float:
  """FLOPs of one evaluation of a jaxpr."""
  return sum(equation_flops(equation) for equation in jaxpr.eqns)


def _dot_flops(equation: core.JaxprEqn) -> float:
  (contracted, _), _ = equation.params["dimension_numbers"]
  shape = _shape(equation.invars[0].aval)
  depth = math.prod(shape[axis] for axis in contracted)
  return 2.0 * depth * num_elements(equation.outvars[0].aval)


def _convolution_flops(equation: core.JaxprEqn) -> float:
  kernel = _shape(equation.invars[1].aval)
  out_features = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
  return 2.0 * math.prod(kernel) / out_features * num_elements(equation.outvars[0].aval)


def _shape(aval: Any) -> tuple[int, ...]:
  """Of an array type."""
  return aval.shape
