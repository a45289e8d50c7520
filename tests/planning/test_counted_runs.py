"""What a step is said to repeat is what is traced of it: of all examples, of what is differentiated, and read."""

import functools

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.planning import steps
from tests.support import models

WIDTH, LAYERS, ROWS = 32, 4, 128


def block(x, w):
  return x + jax.nn.gelu(x @ w["up"]) @ w["down"]


def other_block(x, w):
  return x + jnp.tanh(x @ w["up"]) @ w["down"]


def stack(block, params, x):
  layer = jax.checkpoint(block, prevent_cse=False)
  return jax.lax.scan(lambda x, w: (layer(x, w), None), x, params)[0]


def weights(depth, *more):
  return {
    "up": models.normal(0, *more, depth, WIDTH, 4 * WIDTH),
    "down": models.normal(1, *more, depth, 4 * WIDTH, WIDTH),
  }


X = models.normal(2, ROWS, WIDTH)


def flops_of(step, *args):
  return cost.jaxpr_flops(compat.dce(jax.make_jaxpr(step)(*args)))


def planned(step, *args):
  """The plan of least memory, whose FLOPs are those that are traced beyond a step without checkpoints."""
  args = jax.tree.map(jnp.asarray, args)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax, "checkpoint", lambda fn, **_: fn)
    plain_flops = flops_of(lambda *args: step(*args), *args)
  step = jax.jit(lambda *args, fn=step: fn(*args))
  least = step.lower(*args).compile().memory_analysis().temp_size_in_bytes
  plan = coopjax.plan(step, *args, budget=least, engine="policy", effort="fast")
  repeated = flops_of(plan.apply(step), *args) - plain_flops
  assert plan.recompute_flops == pytest.approx(repeated) and repeated > 0
  assert plan.overhead == pytest.approx(repeated / plain_flops)
  assert sum(region.recompute_flops for region in plan.regions) == pytest.approx(repeated)
  return plan


def trained(params, x):
  return jax.value_and_grad(lambda params: jnp.mean(stack(block, params, x) ** 2))(params)


def test_a_vmap_around_the_gradient_counts_all_its_examples():
  plans = [planned(jax.vmap(trained, (0, None)), weights(LAYERS, num), X) for num in (1, 3)]
  one, three = (plan.recompute_flops for plan in plans)
  assert three == pytest.approx(3 * one)
  for plan in plans:
    assert [region.num_runs for region in plan.regions] == [LAYERS]
  one, three = (sum(each.num_bytes for each in plan.decisions) for plan in plans)
  assert three == 3 * one > 0


@pytest.mark.sweep
def test_examples_of_a_vmap_inside_the_gradient_count_too():
  def step(params, batch):
    return jax.grad(lambda params: jnp.mean(jax.vmap(lambda x: stack(block, params, x))(batch) ** 2))(params)

  plan = planned(step, weights(LAYERS), jnp.stack([X, X]))
  assert plan.recompute_flops == pytest.approx(2 * planned(trained, weights(LAYERS), X).recompute_flops)


@pytest.mark.parametrize("of_teacher", [pytest.param(block, marks=pytest.mark.sweep), other_block])
def test_what_nobody_differentiates_counts_nothing(of_teacher):
  def step(params, teacher, x):
    wanted = jax.lax.stop_gradient(stack(of_teacher, teacher, x))
    return jax.value_and_grad(lambda params: jnp.mean((stack(block, params, x) - wanted) ** 2))(params)

  def inside(params, teacher, x):
    wanted = lambda: jax.lax.stop_gradient(stack(of_teacher, teacher, x))
    return jax.value_and_grad(lambda params: jnp.mean((stack(block, params, x) - wanted()) ** 2))(params)

  alone = planned(trained, weights(LAYERS), X)
  for around in (step, inside):
    plan = planned(around, weights(LAYERS), weights(3 * LAYERS), X)
    assert plan.recompute_flops == alone.recompute_flops
    runs = {region.name: region.num_runs for region in plan.regions}
    assert runs == {of_teacher.__name__: 0, "block": LAYERS}
    assert len(plan.names) == 1 and ("nobody differentiates it" in plan.explain()) == (of_teacher is not block)


def test_only_elementwise_work_that_is_read_is_repeated():
  def gated(x, w):
    return x + (jax.nn.silu(x) * jnp.sin(x)) @ w["up"] @ w["down"]

  def step(params, x):
    return jax.grad(lambda params: jnp.mean(stack(gated, params, x) ** 2))(params)

  planned(step, weights(LAYERS), X)


def test_a_step_whose_regions_nobody_differentiates_has_none():
  def step(params, teacher, x):
    wanted = stack(block, teacher, x)
    return jax.grad(lambda params: jnp.mean((jnp.sin(x @ params["up"][0]) @ params["down"][0] - wanted) ** 2))(params)

  args = weights(1), weights(LAYERS), X
  with pytest.raises(coopjax.NoRegionsError, match="has none that is differentiated"):
    coopjax.plan(step, *args, budget=0.5, engine="policy")


def runs_of(step, *args):
  return [(each.num_runs, each.num_kept, each.num_examples) for each in steps.find_step(step, args, {}).members]


def test_runs_are_those_of_the_backward_pass():
  params = {name: value[0] for name, value in weights(1).items()}
  layer = jax.checkpoint(block)
  shared = jax.jit(lambda x, w: layer(x, w))

  def loss(params, x):  # one trace for a call that is differentiated and for one that is not
    return jnp.mean((shared(x, params) - shared(x, jax.lax.stop_gradient(params))) ** 2)

  assert runs_of(jax.grad(loss), params, X) == [(1, 1, 1.0)]
  many = lambda params, x: jax.vmap(jax.grad(loss), (None, 0))(params, jnp.stack([x] * 5))
  assert runs_of(many, params, X) == [(1, 1, 5.0)]
  in_scope = lambda params, x: jax.named_scope("model")(loss)(
    params, x
  )  # which the transforms' names then stand around
  assert runs_of(jax.grad(in_scope), params, X) == [(1, 1, 1.0)]
  direct = lambda params, x: jax.named_scope("model")(layer)(x, params).sum()
  assert runs_of(jax.grad(direct), params, X) == [(1, 1, 1.0)] and runs_of(
    jax.grad(lambda p, x: p["up"].sum() * direct(params, x)), params, X
  ) == [(0, 0, 1.0)]
  evaluated = lambda params, x: (jax.grad(loss)(params, x), jnp.stack([layer(x, params)] * 5))
  assert runs_of(evaluated, params, X) == [(1, 1, 1.0)]

  sums = lambda params, x: sum(map(jnp.sum, jax.tree.leaves(trained(params, x)[1])))
  assert runs_of(jax.grad(sums), weights(LAYERS), X) == [(LAYERS, LAYERS, 1.0)]  # of a gradient

  def accumulated(stacked, batch):
    add = lambda total, x: (jax.tree.map(jnp.add, total, trained(stacked, x)[1]), None)
    return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, stacked), batch)[0]

  assert runs_of(accumulated, weights(LAYERS), jnp.stack([X] * 3)) == [(3 * LAYERS, LAYERS, 1.0)]


def test_a_forward_and_a_backward_pass_that_a_custom_rule_takes():
  @jax.custom_vjp
  def loss(params, x):
    return jnp.mean(stack(block, params, x) ** 2)

  def forward(params, x):
    return loss(params, x), (params, x)

  def backward(kept, cotangent):
    params, x = kept
    grads = trained(params, x)[1]
    return jax.tree.map(functools.partial(jnp.multiply, cotangent), grads), jnp.zeros_like(x)

  loss.defvjp(forward, backward)
  assert runs_of(jax.grad(loss), weights(LAYERS), X) == [(LAYERS, LAYERS, 1.0)]

  @jax.custom_vjp
  def unrolled(params, x):
    return jnp.mean(jax.checkpoint(block)(x, params) ** 2)

  def unrolled_backward(kept, cotangent):
    return jax.tree.map(functools.partial(jnp.multiply, cotangent), jax.grad(unrolled.fun, argnums=(0, 1))(*kept))

  unrolled.defvjp(lambda *args: (unrolled(*args), args), unrolled_backward)
  params = {name: value[0] for name, value in weights(1).items()}
  assert runs_of(jax.grad(unrolled), params, X) == [(1, 1, 1.0)]
