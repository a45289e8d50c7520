"""What one op does, by its primitive, its shapes and its parameters: FLOPs, transcendentals, bytes between devices.

Products, convolutions, windows and solves count as XLA counts them (``xla_pass/bridge/op_flops.h``), factorizations
as in Golub and Van Loan, "Matrix Computations". What fuses into its readers at no cost counts nothing. A kernel counts
by the estimate that its author gives, or by its body times its grid. A call to a library, or a primitive that is
nobody's here, counts by the library's kind if its name says attention or matrix product, else by its elements.
Not known: the trips of a ``while``, the length of a grid's dynamic dimensions, and what XLA's partitioner sends between
devices on its own account.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend import core

from coopjax import compat
from coopjax.jaxpr.bodies import bodies_of, kernels_of

_TRANSCENDENTAL = frozenset(
  "acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt cos cosh digamma erf erfc erf_inv exp exp2 expm1 "
  "lgamma log log1p logistic pow rng_bit_generator rsqrt sin sinh sqrt tan tanh random_bits threefry2x32".split()
)
# Series and rejection loops.
_ITERATED = frozenset(
  "igamma igamma_grad_a igammac polygamma random_gamma random_gamma_grad regularized_incomplete_beta zeta".split()
)
_ITERATIONS = 32
# Layout changes and markers: XLA fuses them, or they are nothing at all. Of kernels, what is done with references.
_FREE = frozenset(
  "after_all axis_index bitcast_convert_type broadcast_in_dim broadcast_to convert_element_type copy create_token "
  "empty_ref expand_dims free_ref freeze get iota layout_constraint masked_load masked_swap max_contiguous multiple_of "
  "name new_ref num_programs optimization_barrier pcast platform_index program_id pvary random_clone random_unwrap "
  "random_wrap reduce_precision reduced_vary_cast reshape reshard sharding_constraint slice split squeeze "
  "stop_gradient swap unstack vary_unreduced_cast".split()
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
  "cumsum": 4.0,
  "cumlogsumexp": 16.0,
  "cumprod": 4.0,
  "cummax": 4.0,
  "cummin": 4.0,
}
_ATTENTION = re.compile(r"attn|attention|fmha")
_PRODUCT = re.compile(r"gemm|matmul")
_BACKWARD = re.compile(r"bwd|backward|grad")


class Work(NamedTuple):
  """What an op does; sums and multiples are those of its parts.

  Attributes:
    flops: of products, elementwise arithmetic and moves.
    transcendentals: exponentials, logarithms and the like.
    link_bytes: sent by each device to others.
  """

  flops: float = 0.0
  transcendentals: float = 0.0
  link_bytes: float = 0.0

  def times(self, count: float) -> "Work":
    return Work(*(count * part for part in self))

  def plus(self, other: "Work") -> "Work":
    return Work(*(a + b for a, b in zip(self, other, strict=True)))


def num_elements(aval: Any) -> int:
  """Elements of an array type; 0 for what is not an array."""
  return math.prod(getattr(aval, "shape", (0,)))


def num_bytes(aval: Any) -> int:
  """Bytes of an array type as JAX sees it, before XLA's layouts; 0 for what is not an array."""
  itemsize = getattr(getattr(aval, "dtype", None), "itemsize", 0)
  return num_elements(aval) * itemsize


def is_fused(equation: core.JaxprEqn) -> bool:
  """Whether XLA runs it inside what reads it, where it moves no bytes of its own."""
  name = equation.primitive.name
  if name in _FREE or name in _TRANSCENDENTAL:
    return True
  stands_alone = name in _MOVES or name in _RULES or kernels_of(equation) or _library_call(equation)
  return not (stands_alone or name.startswith(("reduce_", "arg")))


def own_work(equation: core.JaxprEqn) -> Work:
  """The work of an equation that has no ordinary code inside."""
  name = equation.primitive.name
  if name in _FREE or name.endswith("_done"):
    return Work()
  elements = float(sum(_sizes(equation.outvars)))
  if name in _TRANSCENDENTAL:
    return Work(transcendentals=elements)
  if name in _ITERATED:
    return Work(transcendentals=_ITERATIONS * elements)
  if name == "integer_pow":
    return Work(flops=_num_products(equation.params["y"]) * elements)
  if name in _MOVES:
    return Work(flops=_MOVES[name] * elements)
  if rule := _RULES.get(name.removesuffix("_start")):
    return rule(equation)
  if kernels := kernels_of(equation):
    return _kernel_work(equation, kernels)
  if rule := _library_call(equation):
    return Work(flops=rule(equation))
  if name.startswith(("reduce_", "arg")):
    return Work(flops=max(elements, sum(_sizes(equation.invars))))
  return Work(flops=elements)


def _total_work(jaxpr: core.Jaxpr) -> Work:
  """Of one evaluation of a jaxpr; the costliest branch is that with most FLOPs and transcendentals."""
  total = Work()
  for equation in jaxpr.eqns:
    inside = bodies_of(equation)
    each = [_total_work(body) for body in inside.jaxprs]
    if inside.is_choice:
      each = [max(each, key=lambda work: work.flops + work.transcendentals)]
    for work in each:
      total = total.plus(work.times(inside.times))
    if not each:
      total = total.plus(own_work(equation))
  return total


def _kernel_work(equation: core.JaxprEqn, kernels: Sequence[tuple[int, core.Jaxpr]]) -> Work:
  if estimate := equation.params["cost_estimate"]:
    return Work(estimate.flops, estimate.transcendentals, estimate.remote_bytes_transferred)
  total = Work()
  for num_runs, jaxpr in kernels:
    total = total.plus(_total_work(jaxpr).times(num_runs))
  return total


def _shape(atom: Any) -> tuple[int, ...]:
  return atom.aval.shape


def _sizes(atoms: Sequence[Any]) -> list[int]:
  return [num_elements(atom.aval) for atom in atoms]


def _depth(equation: core.JaxprEqn, contracted: Sequence[int]) -> int:
  """Length of the sums of a product, by the contracted axes of its left side."""
  shape = _shape(equation.invars[0])
  return math.prod(shape[axis] for axis in contracted)


def _dot(equation: core.JaxprEqn) -> float:
  (contracted, _), _ = equation.params["dimension_numbers"]
  return 2.0 * _depth(equation, contracted) * num_elements(equation.outvars[0].aval)


def _ragged_dot(equation: core.JaxprEqn) -> float:
  """Each row meets one group: where the sums are cut into groups, the groups of the output share one of them."""
  numbers = equation.params["ragged_dot_dimension_numbers"]
  (contracted, _), _ = numbers.dot_dimension_numbers
  flops = 2.0 * _depth(equation, contracted) * num_elements(equation.outvars[0].aval)
  num_groups = max(_shape(equation.invars[2])[-1], 1)
  return flops / num_groups if set(numbers.lhs_ragged_dimensions) & set(contracted) else flops


def _scaled_matmul(equation: core.JaxprEqn) -> float:
  return 2.0 * _shape(equation.invars[0])[-1] * num_elements(equation.outvars[0].aval)


def _convolution(equation: core.JaxprEqn) -> float:
  """Pairs of an input and a kernel element that meet; those with padding or a hole of a dilation don't count."""
  params, numbers = equation.params, equation.params["dimension_numbers"]
  lhs, kernel, out = (_shape(atom) for atom in (*equation.invars[:2], equation.outvars[0]))
  flops = 2.0 * kernel[numbers.rhs_spec[1]] * out[numbers.out_spec[0]] * out[numbers.out_spec[1]]
  for axis, (low, _) in enumerate(params["padding"]):
    sizes = (lhs[numbers.lhs_spec[axis + 2]], kernel[numbers.rhs_spec[axis + 2]], out[numbers.out_spec[axis + 2]])
    steps = (params["window_strides"][axis], params["lhs_dilation"][axis], params["rhs_dilation"][axis])
    flops *= _num_meetings(sizes, steps, low)
  return flops


def _num_meetings(sizes: tuple[int, int, int], steps: tuple[int, int, int], low: int) -> int:
  """Along one axis: outputs o and kernel positions k with o * stride + k * kernel dilation - low on an input."""
  size, kernel, outputs = sizes
  stride, hole, kernel_hole = steps
  shift = np.arange(kernel, dtype=np.int64) * kernel_hole - low
  first = -(np.minimum(shift, 0) // stride)
  last = np.minimum(outputs - 1, ((size - 1) * hole - shift) // stride)
  period = hole // math.gcd(hole, stride)
  count = np.zeros_like(shift)
  for late in range(period):
    start = first + late
    is_on_input = (start * stride + shift) % hole == 0
    count += np.where(is_on_input & (start <= last), (last - start) // period + 1, 0)
  return int(count.sum())


def _fft(equation: core.JaxprEqn) -> float:
  """5 n log2 n of a complex transform, half of that for real values on one side."""
  size = max(_sizes([equation.invars[0], equation.outvars[0]]))
  kinds = {getattr(getattr(atom.aval, "dtype", None), "kind", "") for atom in (equation.invars[0], equation.outvars[0])}
  return (2.5 if "f" in kinds else 5.0) * size * math.log2(max(math.prod(equation.params["fft_lengths"]), 1))


def _sort(equation: core.JaxprEqn) -> float:
  """A comparison per element and level, for keys and what goes with them."""
  axis = next(equation.params[key] for key in ("dimension", "axis", "reduction_dimension") if key in equation.params)
  return sum(_sizes(equation.invars)) * float(_ceil_log2(_shape(equation.invars[0])[axis]))


def _ceil_log2(size: int) -> int:
  return max(size - 1, 0).bit_length()


def _num_products(exponent: int) -> int:
  """Squarings and products of a power, and a division if it is negative."""
  size = abs(exponent)
  return (size.bit_length() + size.bit_count() - 2 if size else 0) + (exponent < 0)


def _reduce(equation: core.JaxprEqn) -> float:
  num_operands = len(equation.outvars)
  of_body = _total_work(equation.params["jaxpr"])
  return max(of_body.flops + of_body.transcendentals, 1.0) * max(_sizes(equation.invars[:num_operands]))


def _reduce_window(equation: core.JaxprEqn) -> float:
  window = math.prod(equation.params["window_dimensions"])
  return max(window - 1, 1) * float(sum(_sizes(equation.outvars)))


def _select_and_scatter(equation: core.JaxprEqn) -> float:
  return math.prod(equation.params["window_dimensions"]) * float(num_elements(equation.invars[0].aval))


def _matrices(equation: core.JaxprEqn) -> tuple[int, int, int]:
  """How many matrices, their longer and their shorter side, by the first operand."""
  *batch, rows, columns = _shape(equation.invars[0])
  return math.prod(batch), max(rows, columns), min(rows, columns)


def _factorization(flops: Callable[[int, int], float]) -> Callable[[core.JaxprEqn], float]:
  """A rule from the FLOPs of one matrix with these sides, the longer first."""

  def rule(equation: core.JaxprEqn) -> float:
    num, long, short = _matrices(equation)
    return num * flops(long, short)

  return rule


def _svd(equation: core.JaxprEqn) -> float:
  num, m, n = _matrices(equation)
  return num * (4.0 * m * m * n + 22.0 * n**3 if equation.params["compute_uv"] else 2.0 * m * n * n + 2.0 * n**3)


def _triangular_solve(equation: core.JaxprEqn) -> float:
  return 2.0 * _shape(equation.invars[0])[-1] * num_elements(equation.invars[1].aval)


def _symmetric_product(equation: core.JaxprEqn) -> float:
  return float(_shape(equation.invars[0])[-1] * num_elements(equation.outvars[0].aval))


def _apply_householders(equation: core.JaxprEqn) -> float:
  return 4.0 * min(_shape(equation.invars[0])[-2:]) * num_elements(equation.outvars[0].aval)


_FACTORIZATIONS: dict[str, Callable[[int, int], float]] = {
  "cholesky": lambda m, n: n**3 / 3,
  "cholesky_update": lambda m, n: 6.0 * n * n,
  "eig": lambda m, n: 25.0 * n**3,
  "eigh": lambda m, n: 9.0 * n**3,
  "geqp3": lambda m, n: 2.0 * n * n * (m - n / 3),
  "geqrf": lambda m, n: 2.0 * n * n * (m - n / 3),
  "hessenberg": lambda m, n: 10 / 3 * n**3,
  "householder_product": lambda m, n: 2.0 * n * n * (m - n / 3),
  "lu": lambda m, n: n * n * (m - n / 3),
  "qr": lambda m, n: 4.0 * n * n * (m - n / 3),
  "schur": lambda m, n: 25.0 * n**3,
  "tridiagonal": lambda m, n: 4 / 3 * n**3,
}


def _reduced(equation: core.JaxprEqn) -> Work:
  """A ring sends all but a device's own part twice: scattered sums, then gathered."""
  elements, sent = float(sum(_sizes(equation.invars))), sum(num_bytes(atom.aval) for atom in equation.invars)
  return Work(flops=elements, link_bytes=2 * _share_sent(equation) * sent)


def _gathered(equation: core.JaxprEqn) -> Work:
  return Work(link_bytes=_share_sent(equation) * sum(num_bytes(var.aval) for var in equation.outvars))


def _scattered(equation: core.JaxprEqn) -> Work:
  sums = float(sum(_sizes(equation.invars)))
  return Work(flops=sums, link_bytes=_share_sent(equation) * sum(num_bytes(atom.aval) for atom in equation.invars))


def _exchanged(equation: core.JaxprEqn) -> Work:
  return Work(link_bytes=_share_sent(equation) * num_bytes(equation.invars[0].aval))


def _passed_on(equation: core.JaxprEqn) -> Work:
  return Work(link_bytes=sum(num_bytes(atom.aval) for atom in equation.invars))


def _share_sent(equation: core.JaxprEqn) -> float:
  """(n - 1) / n for a group of n devices."""
  params = equation.params
  names = params["axes"] if "axes" in params else params["axis_name"]
  groups = params.get("axis_index_groups")
  size = len(groups[0]) if groups else compat.axes_size(equation, names if isinstance(names, tuple) else (names,))
  return 1 - 1 / size


def _attention(equation: core.JaxprEqn) -> float:
  """Two products of all queries with all keys; five in the backward pass, which makes the scores again."""
  queries, keys = [_shape(atom) for atom in equation.invars if len(_shape(atom)) >= 3][:2]
  *_, num_features = queries
  # [batch, length, heads, features] or [batch, heads, length, features]: sequences are longer than heads are many.
  products = 5 if _BACKWARD.search(_called(equation)) else 2
  return 2.0 * products * math.prod(queries[:-1]) * max(keys[1:-1]) * num_features


def _library_product(equation: core.JaxprEqn) -> float:
  """2 b m k n, from the sizes b m k, b k n and b m n of its operands and its result."""
  lhs, rhs = [_shape(atom) for atom in equation.invars if len(_shape(atom)) >= 2][:2]
  out = _shape(equation.outvars[0])
  batch = math.prod(out[:-2]) if len(lhs) == len(rhs) == len(out) else 1
  return 2.0 * math.sqrt(math.prod(lhs) * math.prod(rhs) * math.prod(out) / max(batch, 1))


def _by_elements(equation: core.JaxprEqn) -> float:
  return float(sum(_sizes([*equation.invars, *equation.outvars])))


def _called(equation: core.JaxprEqn) -> str:
  """The name of a library's function, or of a primitive."""
  return str(equation.params.get("target_name", equation.primitive.name)).lower()


def _library_call(equation: core.JaxprEqn) -> Callable[[core.JaxprEqn], float] | None:
  """The rule for a function of a library, under JAX's `ffi_call` or under a primitive that a package brings along."""
  name = _called(equation)
  ranks = [len(getattr(atom.aval, "shape", ())) for atom in equation.invars]
  if _ATTENTION.search(name) and sum(rank >= 3 for rank in ranks) >= 2:
    return _attention
  if _PRODUCT.search(name) and sum(rank >= 2 for rank in ranks) >= 2:
    return _library_product
  return _by_elements if "target_name" in equation.params else None


def _flops(rule: Callable[[core.JaxprEqn], float]) -> Callable[[core.JaxprEqn], Work]:
  return lambda equation: Work(flops=rule(equation))


_RULES: dict[str, Callable[[core.JaxprEqn], Work]] = {
  "approx_top_k": _flops(_sort),
  "conv_general_dilated": _flops(_convolution),
  "dot_general": _flops(_dot),
  "fft": _flops(_fft),
  "ormqr": _flops(_apply_householders),
  "ragged_dot_general": _flops(_ragged_dot),
  "reduce": _flops(_reduce),
  "scaled_dot": _flops(_dot),
  "scaled_matmul": _flops(_scaled_matmul),
  "scaled_matmul_wrapper": _flops(_scaled_matmul),
  "sort": _flops(_sort),
  "svd": _flops(_svd),
  "symmetric_product": _flops(_symmetric_product),
  "top_k": _flops(_sort),
  "triangular_solve": _flops(_triangular_solve),
  **{name: _flops(_factorization(flops)) for name, flops in _FACTORIZATIONS.items()},
  **dict.fromkeys(
    "reduce_window reduce_window_max reduce_window_min reduce_window_sum select_and_gather_add".split(),
    _flops(_reduce_window),
  ),
  **dict.fromkeys("select_and_scatter select_and_scatter_add".split(), _flops(_select_and_scatter)),
  **dict.fromkeys("pmax pmin psum psum_invariant unreduced_pmax unreduced_pmin unreduced_psum".split(), _reduced),
  **dict.fromkeys("all_gather all_gather_invariant all_gather_reduced pgather".split(), _gathered),
  **dict.fromkeys("reduce_scatter unreduced_reduce_scatter".split(), _scattered),
  **dict.fromkeys("all_to_all ragged_all_to_all".split(), _exchanged),
  **dict.fromkeys("pbroadcast pbroadcast_dynamic ppermute psend".split(), _passed_on),
}
