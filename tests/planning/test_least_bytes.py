"""The least bytes that an error names are reached when they are asked for, and so is every larger budget."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import coopjax
from tests.support.checks import assert_close, compile_step, num_instructions, temp_bytes
from tests.support.models import normal

WIDTH, LENGTH, NUM_LAYERS = 32, 32, 4
SHAPES = {"q": WIDTH, "k": WIDTH, "v": WIDTH, "o": WIDTH, "u": 4 * WIDTH}


def layer(x, weights):
  h = x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)
  query, key, value = (checkpoint_name(h @ weights[name], name) for name in "qkv")
  x += checkpoint_name(jax.nn.softmax(query @ key.mT / 6) @ value @ weights["o"], "o")
  return x + checkpoint_name(jax.nn.gelu(checkpoint_name(x @ weights["u"], "u")) @ weights["u"].mT, "d")


@functools.cache
def step(batch_size):
  """A jitted step of gradient descent on a scanned decoder, and its arguments."""
  embedding = normal(1, 64, WIDTH)
  stacks = {name: 0.1 * normal(i, NUM_LAYERS, WIDTH, width) for i, (name, width) in enumerate(SHAPES.items(), 2)}
  body = jax.checkpoint(layer, prevent_cse=False)

  def loss(params, tokens):
    embedding, stacks = params
    x = jax.lax.scan(lambda x, weights: (body(x, weights), None), embedding[tokens[:, :-1]], stacks)[0]
    logits = jax.nn.log_softmax(x @ embedding.T)
    return -jnp.mean(jnp.take_along_axis(logits, tokens[:, 1:, None], -1))

  @jax.jit
  def descend(params, tokens):
    value, gradient = jax.value_and_grad(loss)(params, tokens)
    return jax.tree.map(lambda leaf, change: leaf - 0.1 * change, params, gradient), value

  return descend, ((embedding, stacks), jnp.arange(batch_size * (LENGTH + 1)).reshape(batch_size, -1) % 64)


@pytest.mark.parametrize(
  ("batch_size", "how", "more"),
  [
    pytest.param(8, {"names_only": True}, 1.08, id="by names"),
    pytest.param(56, {}, 1.02, id="by both engines", marks=pytest.mark.sweep),
  ],
)
def test_the_least_and_all_above_it_are_reached(batch_size, how, more):
  fn, args = step(batch_size)
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    coopjax.plan(fn, *args, budget=0.05, effort="fast", **how)
  least = caught.value.smallest_bytes
  for share in (1, more):
    plan = coopjax.plan(fn, *args, budget=int(share * least), effort="fast", **how)
    assert plan.measured.temp_bytes <= share * least


def dropped_out(params, tokens, key):
  embedding, weights = params
  x = embedding[tokens]
  for weight in weights:
    x = jnp.tanh(x @ weight)
  x *= jax.random.bernoulli(key, 0.9, x.shape)
  return jnp.mean((x @ embedding.T) ** 2)


@pytest.mark.sweep
def test_what_came_of_the_least_is_reached_when_asked_for():
  params = 0.3 * normal(1, 50, 48), 0.3 * normal(2, 3, 48, 48)
  arguments = params, jnp.arange(200).reshape(4, 50) % 50, jax.random.key(0)

  def temp_bytes(budget):
    fn = jax.jit(jax.value_and_grad(coopjax.remat(dropped_out, budget=budget)))
    return fn.lower(*arguments).compile().memory_analysis().temp_size_in_bytes

  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    temp_bytes(0.3)
  taken = temp_bytes(caught.value.smallest_bytes)
  assert taken <= caught.value.smallest_bytes
  assert temp_bytes(taken) <= taken


def recurrent(weights, sequence, checkpoint=lambda cell: cell):
  """A scan of a gated unit over time: turns in groups take less than a checkpoint around the body."""

  def cell(hidden, x):
    update, reset = (jax.nn.sigmoid(x @ weights[i] + hidden @ weights[i + 1]) for i in (0, 2))
    hidden += update * (jnp.tanh(x @ weights[4] + (reset * hidden) @ weights[5]) - hidden)
    return hidden, hidden

  return jnp.sum(jax.lax.scan(checkpoint(cell), jnp.zeros_like(sequence[0]), sequence)[1] ** 2)


def test_a_budget_far_out_of_reach_is_told_of_turns_in_groups():
  args = [0.1 * normal(i, 64, 64) for i in range(6)], normal(6, 64, 32, 64)
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    coopjax.plan(recurrent, *args, budget=1, engine="policy")
  plan = coopjax.plan(recurrent, *args, budget=caught.value.smallest_bytes, engine="policy")
  by_hand = compile_step(functools.partial(recurrent, checkpoint=jax.checkpoint), *args)
  fitted = compile_step(plan.apply(recurrent), *args)
  assert temp_bytes(fitted) <= plan.budget_bytes <= 0.8 * temp_bytes(by_hand)
  assert num_instructions(fitted, "while") > num_instructions(by_hand, "while")  # a group is repeated by its turns
  assert_close(fitted(*args), by_hand(*args))
