"""Models for the tests of the policy engine: nested jits, custom rules, scans, and checkpoints of the user's own."""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from coopjax.jaxpr.trace import fn_and_gradient, trace
from coopjax.xla.compile import compile_abstract
from tests.support import models


def call_with(traced, flat_fn):
  """The user's function with another flat function inside."""
  return lambda *args: traced.call(jax.tree.leaves(args), flat_fn)


@jax.custom_vjp
def scaled_norm(x):
  return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def _norm_forward(x):
  scale = jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
  return x * scale, (x, scale)


def _norm_backward(residuals, ct):
  x, scale = residuals
  return (scale * (ct - x * scale**2 * (x * ct).mean(-1, keepdims=True)),)


scaled_norm.defvjp(_norm_forward, _norm_backward)


@jax.jit
def gated(x, up, gate):
  return jax.nn.silu(x @ gate) * jax.nn.relu(x @ up)


def block(weights, x, num_heads=2):
  """Attention and a gated MLP: nested jits, custom_jvp (silu, relu, softmax) and custom_vjp (the norm)."""
  batch, length, width = x.shape
  q, k, v = (
    part.reshape(batch, length, num_heads, -1).transpose(0, 2, 1, 3)
    for part in jnp.split(scaled_norm(x) @ weights["qkv"], 3, -1)
  )
  scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), q @ k.transpose(0, 1, 3, 2) * 0.2, -1e9)
  mixed = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
  x = x + mixed @ weights["out"]
  return x + gated(scaled_norm(x), weights["up"], weights["gate"]) @ weights["down"]


def decoder(depth=4, width=64, batch=8, length=64, form="unrolled"):
  """``(loss, params, ids)``; `form` is unrolled or scan, "by_hand" behind it for a checkpoint around each block."""
  form, _, by_hand = form.partition(" ")
  blocks = [
    {
      "qkv": models.normal(5 * i, width, 3 * width),
      "out": models.normal(5 * i + 1, width, width),
      "up": models.normal(5 * i + 2, width, 2 * width),
      "gate": models.normal(5 * i + 3, width, 2 * width),
      "down": models.normal(5 * i + 4, 2 * width, width),
    }
    for i in range(depth)
  ]
  params = {"embed": models.normal(99, models.VOCABULARY, width), "blocks": blocks}
  if form == "scan":
    params["blocks"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)

  def loss(params, ids):
    x = params["embed"][ids]
    run = jax.checkpoint(block) if by_hand else block
    if form == "scan":
      x, _ = jax.lax.scan(lambda x, weights: (run(weights, x), None), x, params["blocks"])
    else:
      for weights in params["blocks"]:
        x = run(weights, x)
    return models.cross_entropy(x @ params["embed"].T, jnp.roll(ids, -1, 1))

  return loss, params, models.token_ids(batch, length)


def checkpointed_mlp(depth=24, width=64, batch=1024):
  """An MLP whose user already checkpoints pairs of layers and names a value in each."""

  def pair(first, second, x):
    return jnp.tanh(checkpoint_name(jnp.tanh(x @ first), "hidden") @ second)

  def loss(weights, x):
    for first, second in zip(weights[::2], weights[1::2], strict=True):
      x = jax.checkpoint(pair)(first, second, x)
    return jnp.mean(x**2)

  return loss, *models.mlp(depth, width, batch)[1:]


MODELS = {
  "mlp": functools.partial(models.mlp, depth=16),
  "unrolled": decoder,
  "scan": functools.partial(decoder, form="scan"),
  "checkpoint": checkpointed_mlp,
}


@functools.cache
def baseline(form):
  loss, *args = MODELS[form]()
  traced = trace(loss, args)
  fn, avals = fn_and_gradient(traced)
  return loss, tuple(args), traced, compile_abstract(fn, avals)
