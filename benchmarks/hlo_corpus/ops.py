"""Sorting, random numbers, transforms, indices, and what XLA calls out for."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .networks import mlp
from .program import Program, integers, normal, program, step
from .sequences import cross_entropy


@program
def sort_and_top_k():
  def fn(x):
    order = jnp.argsort(x, axis=1)
    values, indices = lax.top_k(x, 8)
    return jnp.take_along_axis(x, order, 1) - jnp.sort(x, axis=0), jnp.median(x, 1), values * 2, indices

  return Program(fn, (normal(64, 128),))


@program
def sort_gradient():
  return Program(
    jax.value_and_grad(lambda x, y: jnp.mean(jnp.sort(jnp.tanh(x @ y), 1)[:, ::3] ** 2)),
    (normal(64, 32), normal(32, 96)),
  )


@program
def dropout_step():
  def loss(weights, x, seed):
    key = jax.random.key(seed)
    for i, weight in enumerate(weights):
      x = jnp.tanh(x @ weight)
      x = jnp.where(jax.random.bernoulli(jax.random.fold_in(key, i), 0.9, x.shape), x / 0.9, 0)
    return jnp.mean(x**2)

  return Program(step(loss), (*mlp(depth=4), np.uint32(3)), donated=(0,))


@program
def random_samples():
  """Both generators: threefry's rounds and XLA's own bits; a permutation and a gamma's rejection loop."""

  def fn(seed):
    keys = jax.random.split(jax.random.key(seed), 3)
    bits = jax.random.key(seed, impl="rbg")
    return (
      jax.random.normal(bits, (64, 64)) @ jax.random.uniform(keys[0], (64, 32)),
      jax.random.permutation(keys[1], 256),
      jax.random.gamma(keys[2], 2.0, (64,)),
    )

  return Program(fn, (np.uint32(7),))


@program
def fft():
  def loss(filters, x):
    for i in range(2):
      x = jnp.tanh(jnp.fft.irfft2(jnp.fft.rfft2(x) * (filters[i] + 1j * filters[i] ** 2)))
    return jnp.mean(x**2)

  return Program(jax.value_and_grad(loss), (normal(2, 32, 17), normal(8, 32, 32)))


@program
def complex_numbers():
  def loss(real, imaginary):
    x = real + 1j * imaginary
    for _ in range(3):
      x = x @ x.conj().T / 8 + jnp.exp(1j * jnp.angle(x))
    return jnp.mean(jnp.abs(x))

  return Program(jax.value_and_grad(loss, argnums=(0, 1)), (normal(48, 48), normal(48, 48, seed=1)))


@program
def quantized_and_hashed():
  """A quantized layer, and what hashing does."""

  def fn(x, weights, ids):
    scale = jnp.abs(x).max(-1, keepdims=True) / 127
    y = lax.dot((x / scale).astype(jnp.int8), weights.astype(jnp.int8), preferred_element_type=jnp.int32)
    hashed = ids.astype(jnp.uint32)
    for shift in (13, 7, 17):
      hashed = (hashed ^ (hashed << shift)) * jnp.uint32(0x9E3779B1)
    return y * scale, jnp.bitwise_count(hashed), jnp.sort(hashed % 97), (hashed > 5).astype(jnp.uint8)

  return Program(fn, (normal(64, 64), integers(100, 64, 32), integers(1000, 4096)))


@program
def embedding_step_donated():
  """A gather, and in the gradient a scatter into the donated table."""

  def loss(params, ids, labels):
    return cross_entropy(jnp.tanh(params["table"][ids].mean(1)) @ params["head"], labels)

  params = {"table": normal(512, 64), "head": normal(64, 16)}
  return Program(step(loss), (params, integers(512, 64, 12), integers(16, 64)), donated=(0,))


@program
def scatters():
  def fn(x, ids, updates):
    sums = jax.ops.segment_sum(updates, ids, 64)
    x = x.at[ids].max(updates).at[ids[:8], 3].multiply(2.0)
    return x, sums, x[ids].at[:, ::2].set(1.0)

  return Program(fn, (normal(64, 32), integers(64, 256), normal(256, 32)), donated=(0,))


@program
def dynamic_slices():
  def fn(x, starts):
    for i in range(4):
      piece = lax.dynamic_slice(x, (starts[i], 0), (16, x.shape[1]))
      x = lax.dynamic_update_slice(x, jnp.tanh(piece @ x.T[:, :64] @ jnp.ones((64, x.shape[1]))), (starts[i] + 2, 0))
    return x, lax.dynamic_index_in_dim(x, starts[0])

  return Program(fn, (normal(96, 64), integers(60, 4)), donated=(0,))


@program
def pad_and_concatenate():
  def loss(x, y):
    z = jnp.concatenate([jnp.pad(x, ((1, 2), (0, 3)), mode="reflect"), lax.pad(y, 0.0, ((0, 3, 0), (1, 2, 0)))])
    return jnp.sum(jnp.flip(z, 0)[::2] ** 2) + jnp.roll(jnp.tile(z, (2, 1)), 5, 1).var(0).mean()

  return Program(jax.value_and_grad(loss, argnums=(0, 1)), (normal(64, 64), normal(61, 64)))


# Custom calls.


def _positive(matrix):
  return matrix @ matrix.T + 2 * jnp.eye(len(matrix))


@program
def cholesky_gradient():
  def loss(matrix, x):
    factor = jnp.linalg.cholesky(_positive(matrix))
    solved = lax.linalg.triangular_solve(factor, x, left_side=True, lower=True)
    return jnp.sum(solved**2) + 2 * jnp.log(jnp.diagonal(factor)).sum()

  return Program(jax.value_and_grad(loss, argnums=(0, 1)), (normal(48, 48), normal(48, 16)))


@program
def eigenvalues_gradient():
  def loss(matrix):
    values, vectors = jnp.linalg.eigh(_positive(matrix))
    return jnp.sum(jnp.tanh(vectors * values) ** 2)

  return Program(jax.value_and_grad(loss), (normal(40, 40),))


@program
def factorizations():
  """QR, LU with pivots, and an SVD, in a batch."""

  def fn(matrices, x):
    q, r = jnp.linalg.qr(matrices)
    u, s, _ = jnp.linalg.svd(q @ r, full_matrices=False)
    return jnp.linalg.solve(jax.vmap(_positive)(matrices), x), u * s[..., None, :], jnp.linalg.slogdet(matrices)

  return Program(fn, (normal(4, 24, 24), normal(4, 24, 8)))


@program
def host_callback():
  def fn(x):
    y = jax.pure_callback(np.tanh, jax.ShapeDtypeStruct(x.shape, x.dtype), x @ x.T)
    return jnp.sin(y) @ x + jnp.cos(y)

  return Program(fn, (normal(48, 48),))
