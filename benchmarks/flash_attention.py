"""Causal attention as a Pallas kernel with a derivative of its own: what JAX, and a planner, can't see into.

A block of queries meets all keys of its head at once, so the scores never reach memory. The residuals have a name, as
those of JAX's splash attention can have: "context". Interpreted on a CPU.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl

_BLOCK = 128
_LANES = 128  # a TPU's rows of statistics are as wide
_MASKED = -1e30


@jax.custom_vjp
def flash_attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
  """Causal softmax attention.

  Args:
    query: ``[batch, length, heads, features]``.
    key: ``[batch, length, key heads, features]``; several heads of queries share one.
    value: as keys.
  """
  return _forward(query, key, value)[0]


def _forward(query, key, value):
  heads = query.shape[2]
  out, sums = _attend(*(_by_head(each, heads) for each in (query, key, value)))
  out = checkpoint_name(_by_batch(out, heads), "context")
  return out, (query, key, value, out, checkpoint_name(sums[..., 0], "context"))


def _backward(residuals, gradient):
  query, key, value, out, sums = residuals
  heads, key_heads = query.shape[2], key.shape[2]
  given = [_by_head(each, heads) for each in (query, key, value)]
  gradient_rows = _by_head(gradient, heads)
  delta = (gradient_rows.astype(jnp.float32) * _by_head(out, heads)).sum(-1)
  rows = [jnp.broadcast_to(each[..., None], (*each.shape, _LANES)) for each in (sums, delta)]
  d_query = _query_gradient(*given, gradient_rows, *rows)
  d_key, d_value = _key_gradients(*given, gradient_rows, *rows)
  of_groups = lambda each: each.reshape(*each.shape[:2], key_heads, heads // key_heads, -1).sum(3)
  return _by_batch(d_query, heads), *(of_groups(_by_batch(each, heads)) for each in (d_key, d_value))


flash_attention.defvjp(_forward, _backward)


def _by_head(x: jax.Array, heads: int) -> jax.Array:
  """``[batch * heads, length, features]``, keys repeated for the queries that share them."""
  repeated = jnp.repeat(x, heads // x.shape[2], axis=2)
  return repeated.transpose(0, 2, 1, 3).reshape(-1, x.shape[1], x.shape[3])


def _by_batch(x: jax.Array, heads: int) -> jax.Array:
  return x.reshape(-1, heads, *x.shape[1:]).transpose(0, 2, 1, 3)


def _scores(query, key, first_query, first_key):
  """Of a block of queries with a block of keys, later keys masked."""
  scores = jnp.dot(query, key.T, preferred_element_type=jnp.float32) / math.sqrt(query.shape[1])
  rows = first_query + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 0)
  columns = first_key + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
  return jnp.where(rows >= columns, scores, _MASKED)


def _attend(query, key, value):
  def kernel(query_ref, key_ref, value_ref, out_ref, sums_ref):
    scores = _scores(query_ref[0], key_ref[0], pl.program_id(1) * query_ref.shape[1], 0)
    largest = scores.max(1, keepdims=True)
    weights = jnp.exp(scores - largest)
    total = weights.sum(1, keepdims=True)
    mixed = jnp.dot(weights.astype(value_ref.dtype), value_ref[0], preferred_element_type=jnp.float32)
    out_ref[0] = (mixed / total).astype(out_ref.dtype)
    sums_ref[0] = jnp.broadcast_to(largest + jnp.log(total), sums_ref.shape[1:])

  block, whole = _blocks(query), _whole(key)
  return _call(
    kernel, query, [block, whole, whole], [(block, query.shape[2], query.dtype), (_rows(query), _LANES, jnp.float32)]
  )(query, key, value)


def _query_gradient(*arrays):
  def kernel(query_ref, key_ref, value_ref, gradient_ref, sums_ref, delta_ref, out_ref):
    scores = _scores(query_ref[0], key_ref[0], pl.program_id(1) * query_ref.shape[1], 0)
    d_scores = _score_gradient(scores, gradient_ref[0], value_ref[0], sums_ref[0, :, :1], delta_ref[0, :, :1])
    scale = math.sqrt(query_ref.shape[2])
    mixed = jnp.dot(d_scores.astype(key_ref.dtype), key_ref[0], preferred_element_type=jnp.float32)
    out_ref[0] = (mixed / scale).astype(out_ref.dtype)

  query, block, whole, rows = arrays[0], _blocks(arrays[0]), _whole(arrays[1]), _rows(arrays[0])
  made = [(block, query.shape[2], query.dtype)]
  return _call(kernel, query, [block, whole, whole, block, rows, rows], made)(*arrays)[0]


def _key_gradients(*arrays):
  def kernel(query_ref, key_ref, value_ref, gradient_ref, sums_ref, delta_ref, d_key_ref, d_value_ref):
    scores = _scores(query_ref[0], key_ref[0], 0, pl.program_id(1) * key_ref.shape[1])
    sums, delta = sums_ref[0, :, :1], delta_ref[0, :, :1]
    weights = jnp.exp(scores - sums).astype(query_ref.dtype)
    d_scores = _score_gradient(scores, gradient_ref[0], value_ref[0], sums, delta).astype(query_ref.dtype)
    scale = math.sqrt(query_ref.shape[2])
    d_key = jnp.dot(d_scores.T, query_ref[0], preferred_element_type=jnp.float32) / scale
    d_value = jnp.dot(weights.T, gradient_ref[0], preferred_element_type=jnp.float32)
    d_key_ref[0], d_value_ref[0] = d_key.astype(d_key_ref.dtype), d_value.astype(d_value_ref.dtype)

  query, key = arrays[:2]
  block, whole, rows = (
    _blocks(key),
    _whole(query),
    pl.BlockSpec((1, query.shape[1], _LANES), lambda head, _: (head, 0, 0)),
  )
  made = [(block, key.shape[2], key.dtype)] * 2
  return _call(kernel, key, [whole, block, block, whole, rows, rows], made)(*arrays)


def _score_gradient(scores, gradient, value, sums, delta):
  d_weights = jnp.dot(gradient, value.T, preferred_element_type=jnp.float32)
  return jnp.exp(scores - sums) * (d_weights - delta)


def _blocks(array):
  return pl.BlockSpec((1, min(_BLOCK, array.shape[1]), array.shape[2]), lambda head, block: (head, block, 0))


def _rows(array):
  return pl.BlockSpec((1, min(_BLOCK, array.shape[1]), _LANES), lambda head, block: (head, block, 0))


def _whole(array):
  return pl.BlockSpec((1, *array.shape[1:]), lambda head, _: (head, 0, 0))


def _call(kernel, blocked, in_specs, made):
  """The kernel, once for each head and each block of `blocked`; `made` has a block, a width and a type per output."""
  heads, length, _ = blocked.shape
  call = functools.partial(
    pl.pallas_call,
    kernel,
    grid=(heads, length // min(_BLOCK, length)),
    in_specs=in_specs,
    out_specs=[spec for spec, _, _ in made],
    out_shape=[jax.ShapeDtypeStruct((heads, length, width), dtype) for _, width, dtype in made],
  )
  return lambda *arrays: jax.lax.platform_dependent(*arrays, tpu=call(), default=call(interpret=True))
