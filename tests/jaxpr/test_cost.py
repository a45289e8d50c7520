"""What ops cost: each against figures worked out by hand."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.sharding import PartitionSpec as P

from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.jaxpr.step_program import step_program
from coopjax.program.cost import FLOPS_PER_LINK_BYTE, Roofline

F32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
TRANSCENDENTAL = 8.0


def flops(fn, *args, flops_per_link_byte=FLOPS_PER_LINK_BYTE):
  return cost.jaxpr_flops(jaxpr_of(fn, *args), flops_per_link_byte)


def jaxpr_of(fn, *args):
  return compat.dce(jax.make_jaxpr(fn)(*args))


def product_flops(m, k, n):
  return 2.0 * m * k * n


def test_ragged_dot_counts_each_row_once():
  x, w, sizes = F32((64, 32)), F32((4, 32, 16)), jax.ShapeDtypeStruct((4,), jnp.int32)
  assert flops(lax.ragged_dot, x, w, sizes) == product_flops(64, 32, 16)

  def of_weights(x, w, sizes):
    return jax.vjp(lambda w: lax.ragged_dot(x, w, sizes), w)[1](jnp.ones((64, 16)))

  (backward,) = (e for e in jaxpr_of(of_weights, x, w, sizes).eqns if e.primitive.name == "ragged_dot_general")
  assert backward.outvars[0].aval.shape == (4, 32, 16)  # the sums over 64 rows are cut into four
  assert cost.equation_flops(backward) == product_flops(64, 32, 16)


def test_scaled_products_count_as_products():
  a, b = F32((2, 64, 32)), F32((2, 48, 32))
  scale = jax.ShapeDtypeStruct((2, 64, 1), jnp.float8_e8m0fnu), jax.ShapeDtypeStruct((2, 48, 1), jnp.float8_e8m0fnu)
  narrow = [jax.ShapeDtypeStruct(each.shape, jnp.float8_e4m3fn) for each in (a, b)]
  assert flops(jax.nn.scaled_matmul, *narrow, *scale) == 2 * product_flops(64, 32, 48)

  def general(a, b):
    config = jax.nn.get_scaled_dot_general_config("mxfp8")
    return jax.nn.scaled_dot_general(a, b, (((2,), (2,)), ((0,), (0,))), configs=[config] * 3)

  assert flops(general, a, b) >= 2 * product_flops(64, 32, 48)  # and quantizes


@pytest.mark.parametrize(
  ("strides", "padding", "lhs_dilation", "rhs_dilation", "pairs"),
  [
    ((1,), "VALID", (1,), (1,), 6 * 3),
    ((1,), [(1, 1)], (1,), (1,), 8 * 3 - 2),  # the first and the last output meet padding once
    ((2,), "VALID", (1,), (1,), 3 * 3),
    ((1,), "VALID", (1,), (2,), 4 * 3),
    ((1,), [(0, 0)], (2,), (1,), 7 * 2 + 6),  # 15 wide with holes: of 13 outputs 7 begin on an input, 6 on a hole
  ],
)
def test_convolutions_count_what_meets(strides, padding, lhs_dilation, rhs_dilation, pairs):
  def convolve(x, kernel):
    return lax.conv_general_dilated(x, kernel, strides, padding, lhs_dilation, rhs_dilation)

  assert flops(convolve, F32((2, 4, 8)), F32((5, 4, 3))) == 2.0 * pairs * 2 * 4 * 5


def test_grouped_convolution():
  def depthwise(x, kernel):
    return lax.conv_general_dilated(x, kernel, (1,), "VALID", feature_group_count=4)

  assert flops(depthwise, F32((2, 4, 8)), F32((4, 1, 3))) == 2.0 * 2 * 4 * 6 * 3


@pytest.mark.parametrize(
  ("fn", "expected"),
  [
    (jnp.fft.fft, 5.0 * 16 * 64 * 6),
    (jnp.fft.rfft, 2.5 * 16 * 64 * 6),
    (jnp.fft.fft2, 5.0 * 16 * 64 * 10),  # lines of 16 and of 64
    (jnp.sort, 16 * 64 * 6.0),
    (jnp.argsort, 2 * 16 * 64 * 6.0),  # the indices move along
    (lambda x: lax.top_k(x, 3), 16 * 64 * 6.0),
    (functools.partial(jnp.cumsum, axis=1), 4.0 * 16 * 64),
    (lambda x: x**5, 3.0 * 16 * 64),  # x x, squared, times x
    (lambda x: x**-2, 2.0 * 16 * 64),
    (lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 4), (2, 4), "VALID"), 7.0 * 8 * 16),
    (lambda x: lax.reduce(x, 0.0, lambda a, b: a + 2 * b, (0,)), 2.0 * 16 * 64),
    (lambda x: x.T.reshape(-1).astype(jnp.bfloat16), 16.0 * 64),
  ],
)
def test_figures_of_one_op(fn, expected):
  assert flops(fn, F32((16, 64))) == expected


@pytest.mark.parametrize(
  ("name", "fn", "expected"),
  [
    ("cholesky", jnp.linalg.cholesky, 3 * 12**3 / 3),
    ("lu", jax.scipy.linalg.lu_factor, 3 * 2 / 3 * 12**3),
    ("qr", jnp.linalg.qr, 3 * 8 / 3 * 12**3),
    ("svd", jnp.linalg.svd, 3 * 26.0 * 12**3),
    ("eigh", jnp.linalg.eigh, 3 * 9.0 * 12**3),
    ("triangular_solve", lambda a: jax.scipy.linalg.solve_triangular(a, jnp.ones((3, 12, 5))), 3 * 2.0 * 12 * 12 * 5),
  ],
)
def test_factorizations(name, fn, expected):
  equations = [
    equation for equation in all_equations(jaxpr_of(fn, F32((3, 12, 12)))) if equation.primitive.name == name
  ]
  assert sum(map(cost.equation_flops, equations)) == pytest.approx(expected)


def all_equations(jaxpr):
  for equation in jaxpr.eqns:
    yield equation
    for inner in compat.sub_jaxprs(equation):
      yield from all_equations(inner)


def test_loops_and_branches():
  x, w = F32((8, 8)), F32((3, 5, 8, 8))
  one = product_flops(8, 8, 8)

  def scan_in_scan(x, w):
    inner = lambda x, w: lax.scan(lambda x, w: (x @ w, None), x, w)[0]
    return lax.scan(lambda x, w: (inner(x, w), None), x, w)[0]

  assert flops(scan_in_scan, x, w) == 15 * one
  assert flops(lambda x: lax.cond(x[0, 0] > 0, lambda x: x @ x, lambda x: x @ x @ x, x), x) == 2 * one + 1
  assert flops(lambda x: lax.while_loop(lambda x: x[0, 0] > 0, lambda x: x @ x, x), x) == one + 1  # length unknown
  assert flops(jax.checkpoint(lambda x: x @ x), x) == one
  assert flops(jax.jit(lambda x: x @ x), x) == one
  assert flops(lambda x: lax.composite(lambda x: x @ x, "my.product")(x), x) == one


def test_calls_count_their_body():
  x = F32((8, 8))
  one = product_flops(8, 8, 8)

  @jax.custom_vjp
  def of_vjp(x):
    return x @ x

  of_vjp.defvjp(lambda x: (x @ x, x), lambda x, g: (g @ x,))

  @custom_partitioning
  def partitioned(x):
    return x @ x

  partitioned.def_partition(partition=None, sharding_rule="i j -> i j")

  def solved(a, b):
    return lax.custom_linear_solve(lambda v: a @ v, b, lambda _, b: a @ (a @ b))

  assert flops(of_vjp, x) == flops(partitioned, x) == one
  assert flops(solved, x, F32((8,))) == 2 * product_flops(8, 8, 1)


def blocked_product(**options):
  """[64, 32] by [32, 48] in blocks of [16, 16], 12 of them."""

  def kernel(x_ref, y_ref, out_ref):
    out_ref[...] = jnp.exp(jnp.dot(x_ref[...], y_ref[...]))

  return pl.pallas_call(
    kernel,
    out_shape=F32((64, 48)),
    grid=(4, 3),
    in_specs=[pl.BlockSpec((16, 32), lambda i, j: (i, 0)), pl.BlockSpec((32, 16), lambda i, j: (0, j))],
    out_specs=pl.BlockSpec((16, 16), lambda i, j: (i, j)),
    interpret=True,
    **options,
  )


def test_kernels_count_body_times_grid():
  x, y = F32((64, 32)), F32((32, 48))
  expected = product_flops(64, 32, 48) + TRANSCENDENTAL * 64 * 48
  assert flops(blocked_product(), x, y) == expected
  assert flops(jax.vmap(blocked_product()), F32((5, 64, 32)), F32((5, 32, 48))) == 5 * expected
  (kernel,) = jaxpr_of(blocked_product(), x, y).eqns
  roofline = Roofline(flops_per_s=100.0, transcendentals_per_s=10.0, bytes_per_s=1e9, op_overhead_s=0.5)
  seconds = 12 * 2 * 16 * 32 * 16 / 100 + 12 * 16 * 16 / 10  # one op, started once
  assert cost.arithmetic_seconds(kernel, roofline) == pytest.approx(seconds)
  assert cost.equation_seconds(kernel, roofline) == pytest.approx(seconds + 0.5)
  slow = Roofline(flops_per_s=1e30, transcendentals_per_s=1e30, bytes_per_s=4.0, op_overhead_s=0.5)
  assert cost.fused_seconds(kernel, slow) == 64 * 32 + 32 * 48 + 64 * 48  # its blocks come from memory


def test_a_kernels_own_estimate_counts():
  estimate = pl.CostEstimate(flops=1000, transcendentals=10, bytes_accessed=64)
  assert flops(blocked_product(cost_estimate=estimate), F32((64, 32)), F32((32, 48))) == 1000 + TRANSCENDENTAL * 10


MESH = jax.sharding.AbstractMesh((4, 2), ("x", "y"), (jax.sharding.AxisType.Auto,) * 2)


def sharded(body, in_specs, out_specs, **options):
  return jax.shard_map(body, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_vma=False, **options)


def test_bodies_of_shard_map_count_for_all_devices():
  x, y = F32((64, 32)), F32((32, 48))
  whole = product_flops(64, 32, 48)
  assert flops(jnp.matmul, x, y) == whole
  assert flops(sharded(jnp.matmul, (P("x"), P(None, "y")), P("x", "y")), x, y) == whole
  assert flops(sharded(jnp.matmul, (P(("x", "y")), P()), P(("x", "y"))), x, y) == whole
  # Both devices along y do the same: it counts once, as it does outside.
  assert flops(sharded(jnp.matmul, (P("x"), P()), P("x")), x, y) == whole
  # y stays with the partitioner: the body's arrays are whole along it.
  assert flops(sharded(jnp.matmul, (P("x"), P()), P("x"), axis_names={"x"}), x, y) == whole
  in_scan = lambda x, y: lax.scan(lambda c, _: (c, sharded(jnp.matmul, (P("x"), P()), P("x"))(x, y)), 0, None, 7)[1]
  assert flops(in_scan, x, y) == 7 * whole


def test_what_one_device_does_of_each_place():
  x, y = F32((64, 32)), F32((32, 48))
  whole, place_of = product_flops(64, 32, 48), lambda scopes: scopes.split("/")[0] or None
  on_one = lambda fn, num_parts: cost.device_flops(jaxpr_of(fn, x, y), place_of, num_parts)

  def named(x, y):
    with jax.named_scope("first"):
      turns = lax.scan(lambda c, _: (c, x @ y), 0, None, 7)[1].sum(0)
    with jax.named_scope("second"):
      return turns, lax.cond(x[0, 0] > 0, lambda: x @ y, lambda: jnp.zeros((64, 48))), jax.checkpoint(jnp.matmul)(x, y)

  assert on_one(named, 2) == {"first": 7 * (whole + 64 * 48) / 2, "second": (2 * whole + 1) / 2}
  for specs, axes, of_whole in (((P("x"), P(None, "y"), P("x", "y")), "xy", 8), ((P("x"), P(), P("x")), "x", 8)):
    fn = sharded(jnp.matmul, specs[:2], specs[2], axis_names=set(axes))
    assert on_one(fn, 8) == {None: whole / of_whole} and sum(on_one(fn, 1).values()) in (whole / 8, whole / 4)


def test_a_kernel_in_shard_map():
  x, y = F32((4 * 64, 32)), F32((32, 2 * 48))
  fn = sharded(blocked_product(), (P("x"), P(None, "y")), P("x", "y"))
  assert flops(fn, x, y) == product_flops(256, 32, 96) + TRANSCENDENTAL * 256 * 96


@pytest.mark.parametrize(
  ("body", "devices", "sums", "sent_bytes"),
  [
    (lambda x: lax.psum(x, "x"), 4, 16 * 32, 2 * 3 / 4 * 16 * 32 * 4),
    (lambda x: lax.psum(x, ("x", "y")), 8, 16 * 32, 2 * 7 / 8 * 16 * 32 * 4),
    (lambda x: lax.all_gather(x, "x", tiled=True), 4, 0, 3 / 4 * 64 * 32 * 4),
    (lambda x: lax.psum_scatter(x, "x", tiled=True), 4, 16 * 32, 3 / 4 * 16 * 32 * 4),
    (lambda x: lax.all_to_all(x, "x", 0, 1, tiled=True), 4, 0, 3 / 4 * 16 * 32 * 4),
    (lambda x: lax.ppermute(x, "x", [(0, 1), (1, 2)]), 4, 0, 16 * 32 * 4),
    (lambda x: x * lax.axis_index("y"), 8, 16 * 32, 0),
  ],
)
def test_collectives_count_what_goes_over_the_link(body, devices, sums, sent_bytes):
  fn = sharded(body, P("x"), P("x"))
  (equation,) = jaxpr_of(fn, F32((64, 32))).eqns
  assert compat.num_shards(equation) == devices
  assert cost.equation_flops(equation, 0.0) == devices * sums
  assert cost.equation_flops(equation, 10.0) == devices * (sums + 10 * sent_bytes)
  roofline = Roofline(
    flops_per_s=1.0, transcendentals_per_s=1.0, bytes_per_s=1e30, op_overhead_s=0.0, link_bytes_per_s=0.5
  )
  assert cost.arithmetic_seconds(equation, roofline) == pytest.approx(devices * (sums + sent_bytes / 0.5))


def test_the_workspace_of_a_shard_map_is_that_of_all_devices():
  fn = sharded(lambda x: jnp.sin(x).sum(keepdims=True), P("x"), P("x"))
  program = step_program(jaxpr_of(fn, F32((64, 32))))
  assert program.op_workspace_bytes.tolist() == [64 * 32 * 4 + 4 * 4]


def test_library_calls():
  q, k = F32((2, 128, 4, 16)), F32((2, 96, 2, 16))

  def call(target, result, *args):
    return jax.ffi.ffi_call(target, result)(*args)

  attention = lambda target: flops(functools.partial(call, target, q), q, k, k)
  scores = 2 * 4 * 128 * 96
  assert attention("__cudnn$fmhaSoftmax") == 2 * 2 * scores * 16
  assert attention("te_fused_attn_backward_ffi") == 5 * 2 * scores * 16
  product = functools.partial(call, "__cublas$gemm", F32((2, 64, 48)))
  assert flops(product, F32((2, 64, 32)), F32((2, 32, 48))) == 2 * product_flops(64, 32, 48)
  assert flops(functools.partial(call, "my_norm", q), q) == 2 * 2 * 128 * 4 * 16


def test_a_primitive_that_a_package_brings_along():
  fused = Primitive("dot_product_attention_fwd_wrapper")  # as JAX calls cuDNN's
  fused.def_abstract_eval(lambda q, k, v: jax.core.ShapedArray(q.shape, q.dtype))
  q, k = F32((2, 128, 4, 64)), F32((2, 128, 2, 64))
  assert flops(fused.bind, q, k, k) == 2 * product_flops(2 * 4 * 128, 64, 128)


def test_what_fuses_takes_no_memory_traffic():
  slow = Roofline(flops_per_s=1e30, transcendentals_per_s=1e30, bytes_per_s=4.0, op_overhead_s=0.0)
  seconds = lambda fn, *args: sum(cost.fused_seconds(each, slow) for each in jaxpr_of(fn, *args).eqns)
  x = F32((16, 64))
  assert seconds(lambda x: jnp.exp(x) ** 2 + 1, x) == pytest.approx(0.0, abs=1e-20)
  assert seconds(jnp.sum, x) == pytest.approx(16 * 64 + 1)
  assert seconds(lambda x: lax.ragged_dot(x, jnp.ones((2, 64, 4)), jnp.array([8, 8])), x) > 16 * 64
