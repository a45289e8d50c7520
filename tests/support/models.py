"""Small models whose activations dwarf their parameters, shared by the integration tests."""

import jax
import jax.numpy as jnp
import numpy as np

VOCABULARY = 64


def normal(seed: int, *shape: int, scale: float = 0.05) -> jax.Array:
  """By NumPy: JAX's generator is compiled for every shape."""
  return jnp.asarray(scale * np.random.default_rng(seed).standard_normal(shape, np.float32))


def token_ids(*shape: int) -> jax.Array:
  return jnp.asarray(np.random.default_rng(7).integers(VOCABULARY, size=shape, dtype=np.int32))


def mlp(depth: int = 12, width: int = 64, batch: int = 1024):
  """``(loss, weights, x)`` of a tanh network; every layer keeps ``batch * width * 4`` bytes."""

  def loss(weights, x):
    for weight in weights:
      x = jnp.tanh(x @ weight)
    return jnp.mean(x**2)

  return loss, [normal(i, width, width) for i in range(depth)], normal(99, batch, width)


def _norm(x):
  centered = x - x.mean(-1, keepdims=True)
  return centered * jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5)


def gpt_block(weights, x, num_heads: int = 2):
  """Pre-norm attention and MLP, causal."""
  batch, length, width = x.shape
  q, k, v = (
    part.reshape(batch, length, num_heads, -1).transpose(0, 2, 1, 3)
    for part in jnp.split(_norm(x) @ weights["qkv"], 3, -1)
  )
  scores = q @ k.transpose(0, 1, 3, 2) / jnp.sqrt(width / num_heads)
  scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
  mixed = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
  x = x + mixed @ weights["out"]
  return x + jax.nn.gelu(_norm(x) @ weights["up"]) @ weights["down"]


def cross_entropy(logits, targets):
  return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean()


def gpt(depth: int = 3, width: int = 64, batch: int = 4, length: int = 64, scan: bool = False):
  """``(loss, params, ids)`` of a decoder; with ``scan`` its blocks are stacked and scanned over."""
  blocks = [
    {
      "qkv": normal(4 * i, width, 3 * width),
      "out": normal(4 * i + 1, width, width),
      "up": normal(4 * i + 2, width, 4 * width),
      "down": normal(4 * i + 3, 4 * width, width),
    }
    for i in range(depth)
  ]
  params = {"embed": normal(999, VOCABULARY, width), "blocks": blocks}
  if scan:
    params["blocks"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)

  def loss(params, ids):
    x = params["embed"][ids]
    if scan:
      x, _ = jax.lax.scan(lambda x, weights: (gpt_block(weights, x), None), x, params["blocks"])
    else:
      for weights in params["blocks"]:
        x = gpt_block(weights, x)
    return cross_entropy(x @ params["embed"].T, jnp.roll(ids, -1, 1))

  return loss, params, token_ids(batch, length)
