"""A model with named values, scanned or not, under the policies that people pick by hand."""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from coopjax.jaxpr import cost
from tests.support import models
from tests.support.checks import assert_close, temp_bytes

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
    if isinstance(stack, list):
      x = functools.reduce(wrapped, stack, x)
      continue
    x, _ = jax.lax.scan(lambda x, weights: (wrapped(x, weights), None), x, stack)
  return jnp.square(x).mean()


def by_hand(names, is_unrolled=False):
  policy = jax.checkpoint_policies.save_only_these_names(*names)
  return functools.partial(loss, wrapped=jax.checkpoint(layer, policy=policy, prevent_cse=is_unrolled))


def arguments(num_scans):
  shapes = dict.fromkeys(("query", "key", "value", "out"), (WIDTH, WIDTH))
  shapes |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
  stacks = [
    {name: models.normal(i + 10 * scan, LAYERS, *shape, scale=0.125) for i, (name, shape) in enumerate(shapes.items())}
    for scan in range(num_scans)
  ]
  return stacks, models.normal(99, BATCH, LENGTH, WIDTH, scale=1.0)


def unrolled_arguments():
  """The layers of one stack, one by one."""
  (stack,), x = arguments(1)
  return [[{name: weights[i] for name, weights in stack.items()} for i in range(LAYERS)]], x


def compiled(fn, args):
  return jax.jit(jax.value_and_grad(fn, argnums=(0, 1))).lower(*args).compile()


def flops(fn, args):
  return cost.jaxpr_flops(jax.make_jaxpr(jax.value_and_grad(fn, argnums=(0, 1)))(*args).jaxpr)


def check_no_more(plain, by_hand, ours, args, numbers=None):
  """Ours takes no more bytes than what is written by hand, and repeats no more, and something; gradients are equal."""
  hand, planned, as_it_is = (compiled(fn, args) for fn in (by_hand, ours, plain))
  theirs, repeated = (flops(fn, args) - flops(plain, args) for fn in (by_hand, ours))
  print(f"{temp_bytes(planned)} of {temp_bytes(hand)} bytes, repeats {repeated} of {theirs}")
  assert temp_bytes(planned) <= temp_bytes(hand) < temp_bytes(as_it_is)
  assert 0 < repeated <= theirs
  assert "rematted_computation" in planned.as_text()
  numbers = args if numbers is None else numbers
  assert_close(planned(*numbers), as_it_is(*numbers), rtol=1e-4, atol=1e-6)


@functools.cache
def plain(num_scans):
  """The program without remat, and its FLOPs; unrolled with no scan."""
  args = arguments(num_scans) if num_scans else unrolled_arguments()
  return compiled(loss, args), flops(loss, args)
