"""Products inside loops, branches and derivative rules of a layer, saved: at the bytes of JAX's own `dots_saveable`
around the layer, a plan repeats no more than that does.
"""

import functools

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax.policy_engine.inside import is_inside
from tests.support.checks import assert_close, num_dots, num_instructions
from tests.support.hand_rungs import compiled, flops
from tests.support.models import normal

LAYERS, STEPS, BATCH, WIDTH = 3, 16, 8, 32


def gated(x, weight):
  """A recurrent layer: what a step hands on is made of products."""

  def step(carry, token):
    hidden, cell = carry
    update, reset, out = jnp.split(jnp.concatenate([token, hidden], -1) @ weight[:, : 3 * WIDTH], 3, -1)
    cell = jax.nn.sigmoid(reset) * cell + jnp.tanh(update)
    hidden = jax.nn.sigmoid(out) * jnp.tanh(cell)
    return (hidden, cell), hidden

  start = jnp.zeros((BATCH, WIDTH)), jnp.zeros((BATCH, WIDTH))
  return x + jax.lax.scan(step, start, x)[1]


def branching(x, weight):
  """A layer that takes one of two ways."""
  wide = lambda x: x + jax.nn.gelu(x @ weight[:WIDTH]) @ weight[WIDTH:].T
  mixed = lambda x: x + jax.nn.softmax(x @ jnp.tanh(x @ weight[:WIDTH, :WIDTH]).mT) @ x
  return jax.lax.cond(jnp.sum(x[0, 0]) > 0, wide, mixed, x)


def convolved(x, weight):
  """Products that are convolutions."""
  kernel = weight[:, : 3 * WIDTH].reshape(-1, 3, WIDTH, WIDTH)[0]
  return x + jax.nn.silu(jax.lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")))


def _attended(query, key, value):
  """Attention piece by piece, and the logarithm of what each row sums to."""

  def turn(carry, piece):
    total, out = carry
    shares = jnp.exp(query @ piece[0].mT)
    return (total + shares.sum(-1), out + shares @ piece[1]), None

  split = lambda y: y.reshape(STEPS, BATCH // 4, 4, WIDTH).swapaxes(0, 1)
  start = jnp.zeros(query.shape[:2]), jnp.zeros_like(query)
  (total, out), _ = jax.lax.scan(turn, start, (split(key), split(value)))
  return out / total[..., None], jnp.log(total)


_flash = jax.custom_vjp(lambda *inputs: _attended(*inputs)[0])


def _flash_forward(*inputs):
  out, log_total = _attended(*inputs)
  return out, (*inputs, out, log_total)


def _flash_backward(kept, grad):
  query, key, value, out, log_total = kept
  shares = jnp.exp(query @ key.mT - log_total[..., None])
  of_scores = shares * (grad @ value.mT - (out * grad).sum(-1)[..., None])
  return of_scores @ key, of_scores.mT @ query, shares.mT @ grad


_flash.defvjp(_flash_forward, _flash_backward)


def with_a_rule(x, weight):
  """A layer whose attention has a derivative rule of its own."""
  query, key, value = jnp.split(x @ weight[:WIDTH, : 3 * WIDTH], 3, -1)
  x = x + _flash(0.1 * query, key, value)
  return x + jax.nn.gelu(jnp.tanh(x @ weight[:WIDTH])) @ weight[WIDTH:].T


def loss(weights, x, layer=gated, is_scanned=True):
  if is_scanned:
    x, _ = jax.lax.scan(lambda x, weight: (layer(x, weight), None), x, weights)
  else:
    x = functools.reduce(layer, weights, x)
  return jnp.mean(x**2)


@pytest.mark.parametrize(
  ("layer", "is_scanned", "engine"),
  [
    pytest.param(gated, True, "policy", marks=pytest.mark.sweep),
    pytest.param(branching, True, "policy", marks=pytest.mark.sweep),
    (convolved, False, "policy"),
    pytest.param(with_a_rule, True, "policy", marks=pytest.mark.sweep),
    (with_a_rule, False, "policy"),
    pytest.param(gated, True, "auto", marks=pytest.mark.sweep),
  ],
)
def test_a_plan_repeats_no_more_than_all_products_saved(layer, is_scanned, engine):
  args = normal(0, LAYERS, 2 * WIDTH, 4 * WIDTH, scale=0.1), normal(1, STEPS, BATCH, WIDTH, scale=1.0)
  plain = functools.partial(loss, layer=layer, is_scanned=is_scanned)
  policy = jax.checkpoint_policies.dots_saveable
  hand = functools.partial(plain, layer=jax.checkpoint(layer, policy=policy, prevent_cse=not is_scanned))
  of_hand, as_it_is = compiled(hand, args), compiled(plain, args)
  hand_bytes = of_hand.memory_analysis().temp_size_in_bytes
  assert hand_bytes < as_it_is.memory_analysis().temp_size_in_bytes
  plan = coopjax.plan(plain, *args, budget=hand_bytes, engine=engine)
  planned = plan.apply(plain)
  program = compiled(planned, args)
  assert program.memory_analysis().temp_size_in_bytes <= hand_bytes
  ours, theirs, least = (flops(fn, args) for fn in (planned, hand, plain))
  assert least < ours <= least + 1.01 * (theirs - least)
  assert num_dots(program) >= num_dots(as_it_is)
  assert_close(program(*args), as_it_is(*args), rtol=1e-4, atol=1e-4)


def test_a_saved_plan_says_what_lies_inside(tmp_path):
  args = normal(0, LAYERS, 2 * WIDTH, 4 * WIDTH, scale=0.1), normal(1, STEPS, BATCH, WIDTH, scale=1.0)
  branches = functools.partial(loss, layer=branching)
  plan = coopjax.plan(branches, *args, budget=0.6, engine="policy")
  saved = [value for region in plan.policy.regions for leaf, _ in region.leaves for value in leaf.saved]
  assert any(map(is_inside, saved))
  plan.save(tmp_path / "plan.json")
  again = coopjax.RematPlan.load(tmp_path / "plan.json")
  assert again.policy == plan.policy and "@" not in str(again.names)
  first, second = (compiled(each.apply(branches), args).memory_analysis().temp_size_in_bytes for each in (plan, again))
  assert first == second


def test_the_loop_inside_a_loop_is_decided_on_alone():
  """A checkpoint around each layer of a model that a loop over segments of a text calls, as people put it."""

  def segments(weights, x, wrap=lambda layer: layer):
    layer = wrap(lambda x, weight: (convolved(x, weight), None))
    each = lambda carry, piece: (carry, jnp.mean(jax.lax.scan(layer, piece, weights)[0] ** 2))
    return jax.lax.scan(each, 0.0, jnp.stack([x, 2 * x, 3 * x]))[1].sum()

  args = normal(0, LAYERS, 2 * WIDTH, 4 * WIDTH, scale=0.1), normal(1, STEPS, BATCH, WIDTH, scale=1.0)
  hand = functools.partial(segments, wrap=functools.partial(jax.checkpoint, prevent_cse=False))
  hand_bytes = compiled(hand, args).memory_analysis().temp_size_in_bytes
  plan = coopjax.plan(segments, *args, budget=hand_bytes, engine="policy")
  planned = plan.apply(segments)
  program, as_it_is = compiled(planned, args), compiled(segments, args)
  assert program.memory_analysis().temp_size_in_bytes <= hand_bytes < as_it_is.memory_analysis().temp_size_in_bytes
  ours, theirs, least = (flops(fn, args) for fn in (planned, hand, segments))
  assert least < ours <= theirs
  assert num_instructions(program, "convolution") > num_instructions(as_it_is, "convolution")
  assert_close(program(*args), as_it_is(*args), rtol=1e-4, atol=1e-4)
