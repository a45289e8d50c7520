"""The policy engine's cost model: XLA's own sizes and offsets, by the equations that they came from."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coopjax
from coopjax import _core, compat
from coopjax.compat import name_scopes
from coopjax.jaxpr import cost
from coopjax.jaxpr.tags import tagged_fn
from coopjax.jaxpr.trace import differentiable, fn_and_gradient, trace
from coopjax.policy_engine.compiled_profile import profile_of, read_profile
from coopjax.policy_engine.search import plan_policy
from coopjax.program import liveness
from coopjax.xla.buffer_assignment import BufferAssignment, value_offsets
from coopjax.xla.compile import compile_abstract, module_of
from coopjax.xla.module import predict_memory, read_step_program
from tests.support import models
from tests.support.checks import assert_close, compile_step, temp_bytes
from tests.support.programs import Builder


@functools.cache
def profiled(name, **shape):
  """``(traced, profile)`` of a model."""
  loss, *args = getattr(models, name)(**shape)
  traced = differentiable(trace(loss, args))
  compiled = compile_abstract(*fn_and_gradient(traced, tagged_fn(traced)))
  return traced, profile_of(traced, compiled)


@functools.cache
def planned_for_half(name, **shape):
  """The plan by a model's profile for half of its temporaries."""
  traced, profile = profiled(name, **shape)
  return plan_policy(traced, profile.temp_bytes // 2, compile_abstract, profile.temp_bytes, profile=profile)


def primitives(traced, positions):
  return [traced.inlined.eqns[position].primitive.name for position in positions]


def test_residuals_of_an_mlp_are_those_that_have_memory():
  # Each of 12 layers keeps the output of its tanh, 1024 x 64 floats. The dot in front of it is fused with it, and
  # 1 - y^2 is made where it is read: they take nothing.
  traced, profile = profiled("mlp")
  kept = np.flatnonzero(profile.residual_bytes)
  assert primitives(traced, kept) == ["tanh"] * 12
  assert set(profile.residual_bytes[kept].tolist()) == {1024 * 64 * 4}


@pytest.mark.parametrize(("name", "shape"), [("mlp", ()), ("gpt", ()), ("gpt", (("scan", True),))])
def test_the_profile_adds_up_to_the_compiled_temporaries(name, shape):
  _, profile = profiled(name, **dict(shape))
  total = profile.inside_bytes(0, profile.num_positions)
  assert profile.temp_bytes <= total <= 1.1 * profile.temp_bytes and profile.explained >= 1
  assert total - profile.slack_bytes == profile.temp_bytes
  assert profile.residual_bytes.sum() >= 0.8 * profile.temp_bytes  # such are these models


def test_a_nested_jit_and_a_scan_lead_to_the_equation_that_holds_them():
  @jax.jit
  def inner(x, weight):
    return jnp.tanh(x @ weight)

  def loss(weights, x):
    x = inner(x, weights[0])
    x, _ = jax.lax.scan(lambda x, weight: (inner(x, weight), None), x, weights)
    return jnp.sum(inner(x, weights[0]) ** 2)

  traced = trace(loss, (models.normal(0, 6, 64, 64), models.normal(1, 256, 64)))
  profile = profile_of(traced, compile_abstract(*fn_and_gradient(traced, tagged_fn(traced))))
  kept = np.flatnonzero(profile.residual_bytes >= 256 * 64 * 4)
  assert "scan" in primitives(traced, kept) and "tanh" in primitives(traced, kept)
  (scan,) = [position for position in kept if primitives(traced, [position]) == ["scan"]]
  assert profile.residual_bytes[scan] >= 6 * 256 * 64 * 4  # stacked


def in_a_field(weights, points):
  """The residual of a differential equation: a loss that takes gradients itself."""

  def field(at):
    for weight in weights:
      at = jnp.tanh(at @ weight)
    return at.sum()

  def residual(at):
    slope = jax.grad(field)
    _, curve = jax.jvp(slope, (at,), (jnp.ones_like(at),))
    return slope(at)[1] - 0.1 * curve[0]

  return jnp.mean(jax.vmap(residual)(points) ** 2)


IN_A_FIELD = [models.normal(i, 2 if i == 0 else 16, 16, scale=0.2) for i in range(5)], models.normal(9, 256, 2)


def test_a_gradient_inside_of_the_function_is_of_its_forward_pass():
  traced = trace(in_a_field, IN_A_FIELD)
  profile = profile_of(traced, compile_abstract(*fn_and_gradient(traced, tagged_fn(traced))))
  of_inner = [i for i, equation in enumerate(traced.inlined.eqns) if "transpose(" in name_scopes(equation)]
  is_inner = np.isin(profile.op_position, of_inner)
  assert (is_inner & profile.op_is_backward).any() and (is_inner & ~profile.op_is_backward).any()
  assert profile.residual_bytes[of_inner].any()


@pytest.mark.sweep
def test_what_a_profile_takes_to_be_out_of_reach_is_tried_by_jaxs_estimates():
  plan = coopjax.plan(in_a_field, *IN_A_FIELD, budget=0.5, engine="policy", argnums=0)
  plain, fitted = (compile_step(fn, *IN_A_FIELD) for fn in (in_a_field, plan.apply(in_a_field)))
  assert plan.fits and temp_bytes(fitted) <= 0.52 * temp_bytes(plain)
  assert fitted.as_text().count(" dot(") > plain.as_text().count(" dot(") and "rematted" in fitted.as_text()
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=1e-6), *(f(*IN_A_FIELD) for f in (fitted, plain))
  )


def test_offsets_are_those_of_the_backend_and_our_packing_agrees():
  loss, *args = models.gpt(depth=2)
  traced = trace(loss, args)
  compiled = compile_abstract(*fn_and_gradient(traced, tagged_fn(traced)))
  program, ids = read_step_program(module_of(compiled))
  assignment = BufferAssignment.from_bytes(compiled.memory_analysis().serialized_buffer_assignment_proto)
  offsets = value_offsets(program, ids, assignment)
  np.testing.assert_array_equal(offsets, value_offsets(program, ids, predict_memory(module_of(compiled))))
  has_place = offsets >= 0
  assert has_place.sum() > 0.7 * (program.value_kind == 0).sum()
  assert (offsets + program.value_bytes)[has_place].max() <= assignment.temp_bytes
  # What is live at one step lies apart; in-place values share the place of what they overwrite.
  values, starts, ends = liveness.live_ranges(program, program.schedule)
  for step in range(0, program.num_ops, 7):
    live = [v for v in values[(starts <= step) & (step < ends)] if has_place[v]]
    spans = sorted((int(offsets[v]), int(offsets[v] + program.value_bytes[v])) for v in live)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_what_the_compiler_lays_out_anew_for_the_backward_pass_is_kept_by_its_equation():
  """As XLA:GPU transposes a loop's stacks, by ops of no equation."""
  traced = differentiable(trace(lambda x: jnp.cos(jnp.sin(x)), (jnp.ones(8),)))
  b = Builder()
  stack = b.op([b.value(8)], 100)
  moved = b.op([b.op([stack], 100)], 100)  # twice
  saved = b.op([stack], 7)
  b.op([moved, saved], 1)
  program = b.build()
  scopes = ("jvp(coop0)/sin", "", "", "jvp(coop1)/cos", "transpose(jvp(coop1))/mul")
  program = dataclasses.replace(program, op_scopes=scopes, op_kinds=("while", *["fusion"] * 4))
  profile = read_profile(traced, program, np.arange(program.num_values), 208)
  assert profile.residuals.tolist() == [moved, saved] and profile.residual_bytes.tolist() == [100, 7]
  # The stack and its copies are the same bytes, and nothing is left of the rest but what the backward pass makes.
  assert profile.inside_bytes(0, 2) == 108 and profile.inside_bytes(1, 2, left_out=[0, 1]) == 1


def test_ops_without_a_name_belong_to_where_their_inputs_were_made():
  """As the dots of an attention, where XLA:CPU gives them another form, and exchanges of many gradients at once."""
  traced = differentiable(trace(lambda x: jnp.cos(jnp.sin(x)), (jnp.ones(8),)))
  b = Builder()
  scores = b.op([b.value(8)], 100)
  unnamed = b.op([scores], 7)
  loss = b.op([unnamed], 1)
  of_cos = b.op([loss, unnamed], 3)
  of_scores = b.op([of_cos, scores], 5)
  b.op([of_cos, of_scores], 2)
  program = b.build()
  exchanged = "(jvp(coop1)/cos:transpose(jvp(coop1))/mul:transpose(jvp(coop0))/mul)"
  scopes = ("jvp(coop0)/sin", "", "jvp(coop1)/cos", "transpose(jvp(coop1))/mul", "", exchanged)
  program = dataclasses.replace(program, op_scopes=scopes, op_kinds=("fusion",) * 6)
  profile = read_profile(traced, program, np.arange(program.num_values), 108)
  assert profile.op_position.tolist() == [0, 0, 1, 1, 1, 0]
  assert profile.op_is_backward.tolist() == [False, False, False, True, True, True]
  # The scores are kept, though nothing with a name of the backward pass reads them.
  assert profile.residuals.tolist() == [scores, unnamed, loss]


def test_a_residual_in_another_layout_is_kept_where_it_is_made_early():
  """As XLA:CPU copies what a convolution reads for the gradient of its kernel, in the forward pass."""
  traced = differentiable(trace(lambda x: jnp.cos(jnp.sin(x)), (jnp.ones(8),)))
  b = Builder()
  scores = b.op([b.value(8)], 100)
  early = b.op([scores], 90)
  loss = b.op([scores], 10)
  late = b.op([loss], 9)
  of_cos = b.op([late], 3)
  b.op([of_cos, early], 2)
  program = b.build()
  scopes = ("jvp(coop0)/sin", "", "jvp(coop1)/cos", "", "transpose(jvp(coop1))/mul", "transpose(jvp(coop0))/mul")
  program = dataclasses.replace(program, op_scopes=scopes, op_kinds=("fusion",) * 6)
  profile = read_profile(traced, program, np.arange(program.num_values), 190)
  assert profile.residuals.tolist() == [early, loss] and profile.residual_bytes.tolist() == [90, 10]
  assert profile.op_is_backward.tolist() == [False, False, False, True, True, True]
  assert profile.inside_bytes(1, 2) == 110  # scores, loss: what is kept of the other position is not in it


def test_convolutions_in_stages_repeat_no_more_than_by_hand():
  """At the bytes of checkpoints that save products, in stages that are told apart by no estimate without layouts."""
  keys = iter(jax.random.split(jax.random.key(0), 11))
  kernels = lambda i, o: [jax.random.normal(next(keys), (3, 3, *io)) / 10 for io in ((i, o), (o, o))]
  weights = [kernels(3, 8), kernels(8, 16), kernels(16, 32), kernels(32, 16), kernels(16, 8)]

  def two(x, pair):
    for kernel in pair:
      x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
      x = jax.nn.leaky_relu((x - x.mean((0, 1, 2))) * jax.lax.rsqrt(x.var((0, 1, 2)) + 1e-5))
    return x

  def loss(weights, x, block=two):
    skipped = []
    for pair in weights[:3]:
      x = block(x, pair)
      skipped.append(x)
      x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    for pair, at in zip(weights[3:], skipped[1::-1], strict=True):
      x = jax.image.resize(x, (8, at.shape[1], at.shape[2], x.shape[3]), "bilinear")
      x = block(x, pair) + at
    return jnp.mean(x**2)

  args = weights, jax.random.normal(next(keys), (8, 32, 32, 3))
  by_hand = functools.partial(loss, block=jax.checkpoint(two, policy=jax.checkpoint_policies.dots_saveable))
  hand_bytes = temp_bytes(compile_step(by_hand, *args))
  plan = coopjax.plan(loss, *args, budget=hand_bytes, engine="policy", argnums=0)
  compiled = compile_step(plan.apply(loss), *args)
  assert temp_bytes(compiled) <= hand_bytes < 0.8 * temp_bytes(compile_step(loss, *args))
  flops = lambda fn: cost.jaxpr_flops(compat.dce(jax.make_jaxpr(jax.value_and_grad(fn))(*args).jaxpr))
  assert flops(loss) < flops(plan.apply(loss)) <= flops(by_hand)
  assert "rematted_computation" in compiled.as_text()
  assert_close(jax.jit(jax.grad(plan.apply(loss)))(*args), jax.jit(jax.grad(loss))(*args))


def test_windows_evict_residuals_until_the_limit_holds():
  _traced, profile = profiled("gpt")
  for share in (0.8, 0.5):
    limit = int(share * profile.temp_bytes)
    found = _core.plan_windows(profile.program.core, profile.program.schedule, profile.offsets, limit)
    assert found["is_feasible"] and found["num_evicted"] >= found["num_windows"] > 0
    assert _core.check_schedule(profile.program.core, found["schedule"]) == ""
    assert _core.live_bytes(profile.program.core, found["schedule"]).max() <= limit
    kept = profile.kept_bytes(limit)
    assert (kept <= profile.residual_bytes).all() and 0 < kept.sum() < profile.residual_bytes.sum()


@pytest.mark.parametrize(
  ("name", "shape", "most_rounds", "most_off"),
  [
    ("mlp", (("depth", 24), ("batch", 256)), 1, 0.02),
    pytest.param("gpt", (), 4, 0.15, marks=pytest.mark.sweep),
    pytest.param("gpt", (("depth", 4), ("scan", True)), 6, 0.2, marks=pytest.mark.sweep),  # of stacks, JAX's estimate
  ],
)
def test_estimates_are_near_the_compiled_bytes(name, shape, most_rounds, most_off):
  _, profile = profiled(name, **dict(shape))
  plan = planned_for_half(name, **dict(shape))
  assert plan.is_feasible and plan.temp_bytes <= profile.temp_bytes // 2
  assert len(plan.rounds) <= most_rounds and 0 < plan.recompute_flops < 0.75 * plan.forward_flops
  assert abs(plan.rounds[0].estimated_bytes - plan.rounds[0].temp_bytes) <= most_off * profile.temp_bytes


@pytest.mark.sweep
def test_a_profile_never_takes_more_recompute_nor_many_more_compiles():
  traced, profile = profiled("gpt")
  ours = planned_for_half("gpt")
  without = plan_policy(traced, profile.temp_bytes // 2, compile_abstract, profile.temp_bytes)
  assert ours.is_feasible and without.is_feasible
  assert ours.recompute_flops <= without.recompute_flops and len(ours.rounds) <= 1 + len(without.rounds)


@pytest.mark.parametrize("engine", ["hlo", "policy", "auto"])
def test_where_a_single_op_is_over_the_budget_the_error_names_it_and_its_line(engine):
  def loss(weight, x):
    x = jnp.tanh(x @ weight)
    table = jnp.sort(x[:, :, None] * x[:, None, :], axis=-1)  # the one that is too large
    return jnp.sum(jnp.sum(table, axis=-1) @ weight)

  line = loss.__code__.co_firstlineno + 2
  args = models.normal(0, 64, 64), models.normal(1, 128, 64)
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    coopjax.plan(loss, *args, budget="1 MiB", engine=engine)  # the table has 2 MiB
  assert f"test_compiled_profile.py:{line}" in caught.value.op
  assert f"test_compiled_profile.py:{line}" in str(caught.value)
  assert caught.value.smallest_bytes >= 128 * 64 * 64 * 4


def test_the_public_door_uses_the_profile_and_shows_its_rounds():
  loss, params, ids = models.mlp()
  plan = coopjax.plan(loss, params, ids, budget=0.5, engine="policy")
  plain, fitted = compile_step(loss, params, ids), compile_step(plan.apply(loss), params, ids)
  assert plan.fits and 1 <= len(plan.rounds) <= 4 and temp_bytes(fitted) <= 0.55 * temp_bytes(plain)
  assert all("compiled" in line and "estimated" in line for line in plan.rounds)
  assert fitted.as_text().count(" dot(") > plain.as_text().count(" dot(")
  close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-7)
  jax.tree.map(close, fitted(params, ids), plain(params, ids))
