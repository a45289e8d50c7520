"""Attention, recurrence, loops and branches."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .program import Program, integers, normal, program, step


def _norm(x):
  return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def _attend(query, key, value, mask):
  scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(query.shape[-1])
  return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(mask, scores, -1e9)), value)


def _block(weights, x, num_heads=2):
  batch, length, _width = x.shape
  parts = jnp.split(_norm(x) @ weights["qkv"], 3, -1)
  query, key, value = (part.reshape(batch, length, num_heads, -1) for part in parts)
  x = x + _attend(query, key, value, np.tril(np.ones((length, length), bool))).reshape(x.shape) @ weights["out"]
  return x + jax.nn.gelu(_norm(x) @ weights["up"]) @ weights["down"]


def cross_entropy(logits, labels):
  return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).mean()


def gpt(depth=3, width=64, batch=4, length=64, is_scanned=False, block=_block, dtype=jnp.float32):
  """``loss, (params, ids)`` of a decoder."""
  blocks = [
    {
      "qkv": normal(width, 3 * width, seed=i),
      "out": normal(width, width, seed=i),
      "up": normal(width, 4 * width, seed=i),
      "down": normal(4 * width, width, seed=i),
    }
    for i in range(depth)
  ]
  if is_scanned:
    blocks = jax.tree.map(lambda *leaves: np.stack(leaves), *blocks)

  def loss(params, ids):
    params = jax.tree.map(lambda p: p.astype(dtype), params)
    x = params["embed"][ids]
    if is_scanned:
      x, _ = lax.scan(lambda x, weights: (block(weights, x), None), x, params["blocks"])
    else:
      for weights in params["blocks"]:
        x = block(weights, x)
    return cross_entropy((x @ params["embed"].T).astype(jnp.float32), jnp.roll(ids, -1, 1))

  return loss, ({"embed": normal(64, width), "blocks": blocks}, integers(64, batch, length))


@program
def gpt_gradient():
  loss, args = gpt()
  return Program(jax.value_and_grad(loss), args)


@program
def gpt_step_donated():
  loss, args = gpt()
  return Program(step(loss), args, donated=(0,))


@program
def gpt_bf16_step_donated():
  loss, args = gpt(dtype=jnp.bfloat16)
  return Program(step(loss), args, donated=(0,))


@program
def scanned_gpt_step_donated():
  loss, args = gpt(is_scanned=True)
  return Program(step(loss), args, donated=(0,))


@program
def scanned_checkpointed_gpt():
  loss, args = gpt(is_scanned=True, block=jax.checkpoint(_block))
  return Program(jax.value_and_grad(loss), args)


@program
def generate_with_cache():
  """Decoding into a cache: a loop of dynamic slices that writes in place."""

  def generate(weights, cache, x):
    length = cache["key"].shape[1]

    def body(i, carry):
      cache, x = carry
      query, key, value = (part.reshape(x.shape[0], 1, 2, -1) for part in jnp.split(x @ weights, 3, -1))
      cache = {
        "key": lax.dynamic_update_slice(cache["key"], key, (0, i, 0, 0)),
        "value": lax.dynamic_update_slice(cache["value"], value, (0, i, 0, 0)),
      }
      x = x + _attend(query, cache["key"], cache["value"], jnp.arange(length) <= i).reshape(x.shape)
      return cache, _norm(x)

    return lax.fori_loop(0, length, body, (cache, x))

  cache = {"key": np.zeros((4, 32, 2, 16), np.float32), "value": np.zeros((4, 32, 2, 16), np.float32)}
  return Program(generate, (normal(32, 96), cache, normal(4, 32)), donated=(1,))


def _cell(weights, carry, x):
  hidden, state = carry
  i, f, g, o = jnp.split(x @ weights["x"] + hidden @ weights["h"], 4, -1)
  state = jax.nn.sigmoid(f) * state + jax.nn.sigmoid(i) * jnp.tanh(g)
  hidden = jax.nn.sigmoid(o) * jnp.tanh(state)
  return (hidden, state), hidden


@program
def bidirectional_lstm_step():
  def loss(weights, sequence):
    zeros = jnp.zeros(sequence.shape[1:])
    ways = [
      lax.scan(functools.partial(_cell, weights[way]), (zeros, zeros), sequence, reverse=way == "back")[1]
      for way in weights
    ]
    return jnp.mean((ways[0] * ways[1]) ** 2)

  weights = {
    way: {"x": normal(32, 128, seed=i), "h": normal(32, 128, seed=i + 2)} for i, way in enumerate(("forth", "back"))
  }
  return Program(step(loss), (weights, normal(24, 8, 32)), donated=(0,))


@program
def nested_scans():
  def loss(weights, x):
    def outer(x, weight):
      return lax.scan(lambda y, _: (jnp.tanh(y @ weight), y.sum()), x, None, length=3)[0], x.sum()

    x, sums = lax.scan(outer, x, weights)
    return x.sum() + sums.var()

  return Program(jax.value_and_grad(loss), (normal(4, 48, 48), normal(64, 48)))


@program
def branches():
  def loss(weights, x):
    for i, weight in enumerate(weights):
      x = lax.cond(x.sum() > i, lambda x, w: jnp.tanh(x @ w) @ w.T, lambda x, w: jnp.sin(x) @ w, x, weight)
    return lax.switch(jnp.int32(x.mean() * 3), [jnp.sum, jnp.mean, lambda x: jnp.sum(x @ x.T)], x)

  return Program(jax.value_and_grad(loss), ([normal(48, 48, seed=i) for i in range(4)], normal(64, 48)))


@program
def branch_in_loop():
  def fn(weights, x):
    def body(i, x):
      return lax.cond(i % 2 == 0, lambda x: jnp.tanh(x @ weights), lambda x: x - x.mean(0), x)

    return lax.fori_loop(0, 5, body, x) + x

  return Program(fn, (normal(48, 48), normal(64, 48)))


@program
def while_until_small():
  """As many iterations as the data want: a condition with buffers of its own."""

  def fn(matrix, x):
    def is_large(carry):
      return (jnp.linalg.norm(carry[0] @ matrix) > 1e-2) & (carry[1] < 50)

    return lax.while_loop(is_large, lambda carry: (jnp.tanh(carry[0] @ matrix) * 0.9, carry[1] + 1), (x, 0))

  return Program(fn, (normal(48, 48), normal(64, 48)))
