"""At the bytes of policies that people pick by hand, a plan repeats no more than they do: one scan, and two.

The oracle is JAX's own checkpoint around the layer, compiled and counted like the plan.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import coopjax
from coopjax.jaxpr import cost
from tests.support import models
from tests.support.checks import assert_close, num_dots

BATCH, LENGTH, WIDTH, HEADS, LAYERS = 4, 64, 64, 4, 4
RUNGS = {
  "nothing": (),
  "out": ("out",),
  "queries": ("query", "key", "value"),
  "products": ("query", "key", "value", "out", "up"),
  "with_context": ("query", "key", "value", "context", "out", "up"),
}


def layer(x, weights):
  def heads(name, y):
    return checkpoint_name((y @ weights[name]).reshape(BATCH, LENGTH, HEADS, -1), name)

  y = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)
  query, key, value = (heads(name, y) for name in ("query", "key", "value"))
  scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key) / 4)
  context = checkpoint_name(jnp.einsum("bhqk,bkhd->bqhd", scores, value).reshape(x.shape), "context")
  x = x + checkpoint_name(context @ weights["out"], "out")
  up = checkpoint_name(x @ weights["up"], "up")
  return x + jax.nn.silu(up) @ weights["down"]


def loss(stacks, x, wrapped=layer):
  for stack in stacks:
    x, _ = jax.lax.scan(lambda x, weights: (wrapped(x, weights), None), x, stack)
  return jnp.square(x).mean()


def by_hand(names):
  policy = jax.checkpoint_policies.save_only_these_names(*names)
  return functools.partial(loss, wrapped=jax.checkpoint(layer, policy=policy, prevent_cse=False))


def arguments(num_scans):
  shapes = dict.fromkeys(("query", "key", "value", "out"), (WIDTH, WIDTH))
  shapes |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
  stacks = [
    {name: models.normal(i + 10 * scan, LAYERS, *shape, scale=0.125) for i, (name, shape) in enumerate(shapes.items())}
    for scan in range(num_scans)
  ]
  return stacks, models.normal(99, BATCH, LENGTH, WIDTH, scale=1.0)


def compiled(fn, args):
  return jax.jit(jax.value_and_grad(fn, argnums=(0, 1))).lower(*args).compile()


def flops(fn, args):
  return cost.jaxpr_flops(jax.make_jaxpr(jax.value_and_grad(fn, argnums=(0, 1)))(*args).jaxpr)


@functools.cache
def plain(num_scans):
  """The program without remat, and its FLOPs."""
  args = arguments(num_scans)
  return compiled(loss, args), flops(loss, args)


@pytest.mark.parametrize(
  ("rung", "num_scans"),
  [*((rung, 1) for rung in RUNGS), *((rung, 2) for rung in ("nothing", "queries", "with_context"))],
)
def test_a_plan_repeats_no_more_than_the_hand_at_its_bytes(rung, num_scans):
  args, hand = arguments(num_scans), by_hand(RUNGS[rung])
  hand_bytes = compiled(hand, args).memory_analysis().temp_size_in_bytes
  plan = coopjax.plan(loss, *args, budget=hand_bytes, engine="policy")
  planned = plan.apply(loss)
  program = compiled(planned, args)
  assert program.memory_analysis().temp_size_in_bytes <= hand_bytes
  plain_program, plain_flops = plain(num_scans)
  ours, theirs = (flops(fn, args) for fn in (planned, hand))
  assert plain_flops < ours <= plain_flops + 1.01 * (theirs - plain_flops)  # what is no product may differ
  assert num_dots(program) > num_dots(plain_program) or ours - plain_flops < 0.1 * plain_flops
  assert_close(program(*args), plain_program(*args), rtol=1e-4, atol=1e-6)
