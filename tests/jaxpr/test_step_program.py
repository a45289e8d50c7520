"""Jaxprs as StepPrograms: small functions whose ops, live bytes and costs are literal numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from coopjax.jaxpr.step_program import ProgramOptions, persistent_bytes, step_program
from coopjax.program.cost import Roofline
from coopjax.program.liveness import live_bytes
from coopjax.program.step_program import CONSTANT, OUTPUT, PARAMETER, TEMPORARY
from coopjax.program.validate import validate
from tests.support import sweeps

FASTSA = ProgramOptions(outputs_take_budget=True)


def f32(*shape):
  return jax.ShapeDtypeStruct(shape, jnp.float32)


def program_of(fn, *args, options=ProgramOptions(), donations=None):
  """The program, once it has passed the core's check and the validator agrees with its live bytes."""
  program = step_program(jax.make_jaxpr(fn)(*args), options, donations or {})
  assert program.core is not None
  peak = int(live_bytes(program, program.schedule).max(initial=0))
  assert not validate(program, program.schedule, claimed_peak_bytes=peak).violations
  return program


def live(program):
  return live_bytes(program, program.schedule).tolist()


def test_jits_and_custom_rules_are_opened_up():
  inner = jax.jit(lambda x: jax.nn.relu(jax.jit(jnp.sin)(x)))
  program = program_of(lambda x: inner(x).sum(), f32(8, 4))
  assert program.op_kinds == ("sin", "max", "reduce_sum")
  assert program.value_types == ("f32[8,4]", "f32[8,4]", "f32[8,4]", "f32[]")
  assert program.value_kind.tolist() == [PARAMETER, TEMPORARY, TEMPORARY, OUTPUT]
  assert live(program) == [128, 256, 128]  # 8 x 4 floats, twice while `max` runs; the scalar has its own allocation
  assert program.op_can_recompute.tolist() == [True, True, False]
  assert all(source.rpartition(":")[0] == __file__ for source in program.op_sources)
  assert persistent_bytes(program) == 128


def test_joint_program_of_a_gradient():
  program = program_of(jax.value_and_grad(lambda w, x: jnp.sin(x @ w).sum()), f32(4, 4), f32(8, 4), options=FASTSA)
  assert program.op_kinds == ("dot_general", "sin", "cos", "reduce_sum", "mul", "dot_general", "transpose", "outputs")
  # 128 bytes an activation, 64 a gradient, 4 the loss, which stays from where it is made to the end.
  assert live(program) == [128, 256, 384, 260, 260, 196, 132, 68]
  assert program.op_cost_s.tolist() == [1] * 7 + [0]
  assert program.op_can_recompute.tolist() == [True] * 7 + [False]


def test_transposes_are_views_if_asked():
  step = jax.value_and_grad(lambda w, x: jnp.sin(x @ w).sum())
  options = ProgramOptions(outputs_take_budget=True, fold_transposes=True)
  program = program_of(step, f32(4, 4), f32(8, 4), options=options)
  assert program.op_kinds == ("dot_general", "sin", "cos", "reduce_sum", "mul", "dot_general", "outputs")
  assert live(program) == [128, 256, 384, 260, 260, 196, 68]


def test_a_checkpoint_is_its_recompute():
  fn = jax.checkpoint(lambda w, x: jnp.sin(x @ w).sum())
  program = program_of(jax.value_and_grad(fn), f32(4, 4), f32(8, 4))
  assert program.op_kinds == (
    "dot_general",
    "sin",
    "reduce_sum",
    "dot_general",
    "cos",
    "mul",
    "dot_general",
    "transpose",
  )


def test_an_op_with_several_outputs():
  def fn(x):
    a, b, _ = lax.split(x, (4, 4, 4))
    return jnp.sin(a) * b

  program = program_of(fn, f32(12))
  assert program.op_kinds == ("split", "sin", "mul")
  assert program.outputs(0).tolist() == [1, 2, 3]
  assert live(program) == [48, 48, 32]  # the third part, which nobody reads, takes its 16 bytes at step 0 only


def test_a_scan_is_one_op_with_a_workspace():
  def body(carry, x):
    return jnp.sin(carry * x), carry.sum()

  program = program_of(lambda c, xs: jnp.cos(lax.scan(body, c, xs)[0]), f32(16), f32(10, 16))
  assert program.op_kinds == ("scan", "cos")
  # A slice of xs, the product and its sine, 64 bytes each; the sums nobody reads are dead code.
  assert program.op_workspace_bytes.tolist() == [192, 0]
  assert live(program) == [256, 64]  # the scan's 64 come on top
  assert program.op_flops[0] == 10 * (16 + 8 * 16)  # a sine counts eightfold
  assert program.op_can_recompute[0]


def test_costs_of_loops_and_branches():
  roofline = Roofline(flops_per_s=1.0, transcendentals_per_s=1.0, bytes_per_s=1e9, op_overhead_s=0.0)
  options = ProgramOptions(roofline=roofline)
  branches = [lambda x: x + 1, lambda x: jnp.sin(jnp.cos(x))]
  program = program_of(lambda i, x: lax.cond(i, *branches, x), jax.ShapeDtypeStruct((), bool), f32(16), options=options)
  assert program.op_kinds[-1] == "cond" and program.op_cost_s[-1] == 32  # of the costlier one, at one a second
  assert program.op_workspace_bytes[-1] == 64  # the cosine; the branch's result is the conditional's
  program = program_of(lambda x: lax.fori_loop(0, 5, lambda _, x: jnp.sin(x), x), f32(16), options=options)
  assert program.op_kinds == ("scan",) and program.op_cost_s[0] >= 5 * 16


def test_roofline_is_bound_by_arithmetic_or_by_bytes():
  roofline = Roofline(flops_per_s=100.0, transcendentals_per_s=10.0, bytes_per_s=128.0, op_overhead_s=0.5)
  program = program_of(lambda w, x: jnp.sin(x @ w) + 1, f32(4, 4), f32(8, 4), options=ProgramOptions(roofline=roofline))
  # Product: 256 FLOPs take 2.56 s, its 320 bytes 2.5; sine: 32 at 10 a second against 256 bytes; sum: 0.32 s against 2.
  assert program.op_cost_s.tolist() == pytest.approx([2.56 + 0.5, 3.2 + 0.5, 2.0 + 0.5])


def test_what_may_not_run_twice():
  def fn(key, x):
    jax.debug.callback(lambda _: None, x)
    mask = jax.random.bernoulli(key, 0.5, x.shape)
    jax.debug.callback(lambda _: None, x)
    return jnp.sin(jnp.where(mask, x, 0)).sum()

  program = program_of(fn, jax.eval_shape(lambda: jax.random.key(0)), f32(16))
  forbidden = [kind for kind, ok in zip(program.op_kinds, program.op_can_recompute, strict=True) if not ok]
  assert forbidden == ["debug_callback", "debug_callback", "reduce_sum"]  # the effects and the output, not the mask
  first, second = [op for op, kind in enumerate(program.op_kinds) if kind == "debug_callback"]
  assert program.control(first).tolist() == [] and program.control(second).tolist() == [first]


def test_an_effect_inside_a_loop_forbids_the_loop():
  def body(carry, _):
    jax.debug.callback(lambda _: None, carry)
    return carry + 1, None

  program = program_of(lambda x: jnp.sin(lax.scan(body, x, length=3)[0]).sum(), f32(4))
  assert program.op_can_recompute.tolist()[:2] == [False, True]


def test_a_collective_may_not_run_twice():
  mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
  spec = jax.sharding.PartitionSpec
  fn = jax.shard_map(lambda x: lax.psum(jnp.sin(x), "i"), mesh=mesh, in_specs=spec("i"), out_specs=spec(None))
  program = program_of(lambda x: jnp.sin(fn(x)).sum(), f32(4))
  assert dict(zip(program.op_kinds, program.op_can_recompute.tolist(), strict=True))["shard_map"] is False


def test_glue_and_views():
  def fn(x, bias):
    hidden = lax.stop_gradient(jnp.sin(x)).reshape(4, 4, 2) + bias  # the bias is broadcast
    return hidden.reshape(32)

  kinds = ("sin", "add")
  program = program_of(fn, f32(8, 4), f32(2))
  assert program.op_kinds == kinds and live(program) == [128, 128]
  stored = program_of(fn, f32(8, 4), f32(2), options=ProgramOptions(fold_views=False))
  assert set(stored.op_kinds) == {*kinds, "reshape", "broadcast_in_dim"}
  assert max(live(stored)) == 264  # the reshaped sine, the bias with dimensions of size one, the sum


def test_a_broadcast_that_is_not_read_elementwise_is_stored():
  program = program_of(lambda x: jnp.broadcast_to(x, (8, 4)) @ jnp.ones((4, 2)), f32(4))
  assert program.op_kinds == ("broadcast_in_dim", "broadcast_in_dim", "dot_general")
  assert live(program) == [128, 160, 160]


def test_an_output_that_is_an_input_is_no_output():
  program = program_of(lambda x: (x, x.reshape(-1)), f32(2, 2), options=FASTSA)
  assert program.num_ops == 0 and program.value_kind.tolist() == [PARAMETER]


def test_attached_arrays_are_constants():
  table = jnp.arange(4.0)
  program = program_of(lambda x: x + table, f32(4))
  assert program.value_kind.tolist() == [CONSTANT, PARAMETER, OUTPUT]


def test_fusion_spares_intermediate_values():
  def fn(x, scale):
    centered = (x - x.mean(0)) * scale
    return jax.nn.relu(centered).sum()

  grad = jax.grad(fn)
  program = program_of(grad, f32(32, 8), f32(8), options=ProgramOptions(fuse_elementwise=True))
  # The mean's division goes into `gt`; the mask of bytes stays, because what it is made from is larger.
  assert program.op_kinds == ("reduce_sum", "gt", "mul", "reduce_sum", "add_any")
  assert program.inputs(1).tolist() == [2, 0, 1]
  assert live(program) == [32, 32 + 256, 256 + 1024, 1024 + 32, 1024 + 32]
  assert max(live(program_of(grad, f32(32, 8), f32(8)))) > 1280
  roofline = Roofline(1e9, 1e9, 1e9, 1.0)
  costs = [
    program_of(
      grad, f32(32, 8), f32(8), options=ProgramOptions(roofline=roofline, fuse_elementwise=fuse)
    ).op_cost_s.sum()
    for fuse in (True, False)
  ]
  assert round(costs[0]) == 5 and costs[1] > costs[0]


def test_fusion_does_not_lengthen_lives_for_more_than_it_spares():
  def fn(a, b):
    a, b = jnp.tanh(a), jnp.tanh(b)
    total = a + b  # one value for two, if it is made early
    return lax.sort(jnp.exp(lax.sort(a * b))) * total

  program = program_of(fn, f32(16), f32(16), options=ProgramOptions(fuse_elementwise=True))
  assert "add" in program.op_kinds


def test_buffers_of_elementwise_ops_are_shared():
  fn = lambda x: jnp.cos(jnp.sin(x)).sum()
  assert live(program_of(fn, f32(32), options=ProgramOptions(share_elementwise=True))) == [128, 128, 128]
  assert live(program_of(fn, f32(32))) == [128, 256, 128]


def test_donated_weights_are_overwritten():
  def step(w, x):
    loss, gradient = jax.value_and_grad(lambda w: (x @ w).sum())(w)
    return w - 0.1 * gradient, loss

  program = program_of(step, f32(4, 4), f32(8, 4), donations={0: 0}, options=FASTSA)
  new = int(np.flatnonzero(program.value_in_place_of >= 0)[0])
  assert program.value_in_place_of[new] == 0 and program.value_kind[new] == OUTPUT
  assert program.op_kinds[program.value_producer[new]] == "sub"
  late = program_of(lambda w: (w + 1, (w * 2).sum()), f32(4), donations={0: 0})
  assert (late.value_in_place_of == -1).all()  # the old weights are read once more


_UNARY = (
  jnp.sin,
  jax.nn.relu,
  lambda x: x[::-1],
  lambda x: x.reshape(2, -1).sum(0).repeat(2),
  jax.jit(jnp.exp),
  lambda x: lax.scan(lambda c, y: (c + y, c * y), x[0], x)[1],
)
_BINARY = (jnp.add, jnp.multiply, lambda x, y: jnp.where(x > y, x, y), lambda x, y: jnp.outer(x, y).sum(0))


OPTIONS = (
  {},
  {"fold_views": False},
  {"fuse_elementwise": True},
  {"share_elementwise": True},
  {"fold_transposes": True},
  {"fuse_elementwise": True, "outputs_take_budget": True},
)


@pytest.mark.parametrize("options", sweeps.all_but([OPTIONS[3], OPTIONS[5]], OPTIONS))
@settings(max_examples=6)
@given(
  recipe=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8),
)
def test_random_gradients_are_valid_programs(recipe, options):
  def fn(x):
    values = [x]
    for which, left, right in recipe:
      a, b = values[left % len(values)], values[right % len(values)]
      values.append(_UNARY[which](a) if which < len(_UNARY) else _BINARY[which % len(_BINARY)](a, b))
    return functools.reduce(jnp.add, values[-2:]).sum()

  plain = program_of(jax.value_and_grad(fn), f32(6))
  program = program_of(jax.value_and_grad(fn), f32(6), options=ProgramOptions(**options))
  if "fuse_elementwise" in options:
    assert program.num_ops - ("outputs" in program.op_kinds) <= plain.num_ops
  if "share_elementwise" in options:
    assert max(live(program)) <= max(live(plain))
