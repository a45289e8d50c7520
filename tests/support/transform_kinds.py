"""Kinds of functions, each with what a transformation could trip over, for `test_transforms`.

Each maker returns ``(fn, args)`` with `fn` as a user would write it; a gradient is taken with respect to the first
argument, a float (or complex) array of shape (4, 4) or a pytree of such arrays.
"""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

X = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)) / 2, jnp.float32)
W = jnp.asarray(np.random.default_rng(1).normal(size=(2, 4, 4)) / 2, jnp.float32)


def layer(x, w):
  """Two matrix products with something to recompute around them."""
  return jnp.sin(jnp.tanh(x @ w) @ w)


def chain(x, weights):
  return functools.reduce(layer, weights, x)


def scan():
  def fn(x, weights):
    carry, stacked = jax.lax.scan(lambda x, w: (layer(x, w), x.sum()), x, weights)
    return carry, stacked

  return fn, (X, W)


def nested_scan():
  def fn(x, weights):
    inner = lambda x, w: (layer(x, w), None)
    outer = lambda x, _: (jnp.cos(jax.lax.scan(inner, x, weights)[0]), None)
    return jax.lax.scan(outer, x, None, length=2)[0]

  return fn, (X, W)


def scan_of_top_buffer():
  """The carry is larger than all else in the function."""

  def fn(x, weights):
    carry = jnp.broadcast_to(x, (8, 4, 4))
    carry, _ = jax.lax.scan(lambda c, w: (jnp.sin(c @ w), None), carry, weights)
    return carry.sum(0)

  return fn, (X, W)


def fori():
  """A loop with a trip count known when it is traced: a scan."""
  return lambda x, w: jax.lax.fori_loop(0, 3, lambda i, x: layer(x, w[i % 2]), x), (X, W)


def while_loop():
  """A loop that JAX differentiates forward only."""

  def fn(x, w):
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, layer(c[1], w[0])), (0, x))[1]

  return fn, (X, W)


def while_beside():
  """A loop over a value that nobody differentiates."""

  def fn(x, w, start):
    scale = jax.lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 2, start)
    return chain(x, w) * scale

  return fn, (X, W, jnp.float32(1.5))


def cond():
  def fn(x, w):
    return jax.lax.cond(x.sum() > 0, lambda x: layer(x, w[0]), lambda x: jnp.exp(-x), layer(x, w[1]))

  return fn, (X, W)


def switch():
  def fn(x, w, index):
    branches = [lambda x: layer(x, w[0]), jnp.sin, lambda x: chain(x, w)]
    return jax.lax.switch(index, branches, layer(x, w[1]))

  return fn, (X, W, jnp.int32(2))


def nested_jit():
  inner = jax.jit(lambda x, w, *, power: layer(x, w) ** power, static_argnames="power")
  return lambda x, w: jax.jit(inner, static_argnames="power")(inner(x, w[0], power=2), w[1], power=3), (X, W)


def custom_jvp():
  @jax.custom_jvp
  def softsign(x):
    return x / (1 + jnp.abs(x))

  softsign.defjvp(lambda primals, tangents: (softsign(*primals), 2 * tangents[0] / (1 + jnp.abs(primals[0])) ** 2))
  return lambda x, w: softsign(layer(softsign(jax.nn.relu(x)), w[0])), (X, W)


def custom_vjp():
  """Forward mode refuses it, under any wrapper."""

  @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
  def scaled(factor, x, w):
    return factor * layer(x, w)

  def forward(factor, x, w):
    return scaled(factor, x, w), (jnp.cos(x), w, x)

  def backward(factor, residuals, cotangent):
    cosine, w, x = residuals
    return factor * cotangent * cosine, jnp.tanh(cotangent) + w + x

  scaled.defvjp(forward, backward)
  return lambda x, w: scaled(3.0, layer(scaled(2.0, x, w[0]), w[1]), w[0]), (X, W)


def user_checkpoint():
  """Regions that the user rematerializes, with and without a policy."""
  save_dots = jax.checkpoint_policies.dots_saveable

  def fn(x, w):
    x = jax.checkpoint(layer)(x, w[0])
    x = jax.checkpoint(layer, policy=save_dots, prevent_cse=False)(x, w[1])
    return jnp.sin(jax.checkpoint(chain)(x, w))

  return fn, (X, W)


def user_names():
  def fn(x, w):
    x = checkpoint_name(layer(x, w[0]), "first")
    return jax.checkpoint(
      lambda x: layer(checkpoint_name(jnp.sin(x), "second"), w[1]),
      policy=jax.checkpoint_policies.save_only_these_names("second"),
    )(x)

  return fn, (X, W)


def closed_over_tracer():
  """Called inside another traced function whose values it reads."""
  weights = W

  def fn(x, w):
    scale = jnp.exp(w.sum() / 10)
    return jax.lax.scan(lambda x, w: (layer(x, w) * scale, None), x, weights)[0]

  return fn, (X, W)


def debug_print():
  def fn(x, w):
    x = layer(x, w[0])
    jax.debug.callback(lambda value: None, x.sum())
    return layer(x, w[1])

  return fn, (X, W)


def typed_key():
  def fn(x, w, key):
    first, second = jax.random.split(key)
    x = layer(x + jax.random.uniform(first, x.shape), w[0])
    return layer(jnp.where(jax.random.bernoulli(second, 0.5, x.shape), x, 0.0), w[1])

  return fn, (X, W, jax.random.key(3))


def raw_key():
  return lambda x, w, key: layer(x + jax.random.uniform(key, x.shape), w[0]), (X, W, jax.random.PRNGKey(3))


def key_residual():
  """Keys made inside, carried through a scan and returned."""

  def fn(x, w, seed):
    def body(carry, w):
      x, key = carry
      key, sub = jax.random.split(key)
      return (layer(x * jax.random.uniform(sub, x.shape), w), key), None

    (x, key), _ = jax.lax.scan(body, (x, jax.random.key(seed)), w)
    return x, jax.random.key_data(key)

  return fn, (X, W, jnp.uint32(1))


def complex_input():
  def fn(z, w):
    z = jnp.exp(1j * z) @ w[0] + jnp.fft.fft(z)
    return jnp.abs(z) ** 2 + jnp.real(z) * jnp.imag(z)

  return fn, (X + 1j * X.T, W)


def bfloat16():
  def fn(x, w):
    y = chain(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16))
    return y.astype(jnp.float32) + x

  return fn, (X, W)


def int_and_bool_residuals():
  def fn(x, w):
    x = layer(x, w[0])
    order = jnp.argsort(x, axis=-1)
    x = jnp.take_along_axis(x, order, -1)
    top, index = jax.lax.top_k(x, 2)
    return jnp.where(x > x.mean(), x @ w[1], -x).at[:, :2].add(top), index, x > 0

  return fn, (X, W)


def zero_size():
  def fn(x, w):
    nothing = jnp.sin(x[:0]) @ w[0]
    return jnp.concatenate([nothing, layer(x, w[0])]), nothing, jnp.zeros((0, 3)).sum() + x.sum()

  return fn, (X, W)


def integer_arguments():
  """A gradient with respect to them is of dtype float0."""

  def fn(x, w, ids, flag):
    return jnp.where(flag, layer(x, w[0])[ids], 0.0), ids + 1

  return fn, (X, W, jnp.array([2, 0, 1, 1]), jnp.array(True))


Point = collections.namedtuple("Point", "x y")


def pytrees():
  def fn(tree, w):
    x = layer(tree["point"].x, w[0])
    return {"out": (x, None), "y": Point(layer(x, tree["point"].y), []), "none": None}

  return fn, ({"point": Point(X, X.T), "none": None, "empty": ()}, W)


def scalars_and_numpy():
  return lambda x, w, scale: layer(jnp.asarray(x), w[0]) * scale, (X, np.asarray(W), 2.0)


def passed_through():
  """Inputs and constants returned as they are, an argument unused, an output twice."""

  def fn(x, w):
    y = layer(x, X)
    return x, y, y, jnp.zeros(2), 3

  return fn, (X, W)


def indexing_and_windows():
  """Gathers, scatters, convolution, pooling, sorting, cumulative sums, dynamic slices."""

  def fn(x, w):
    y = jax.lax.dynamic_slice(jnp.cumsum(x, 0), (1, jnp.int32(1)), (2, 2))
    x = jax.lax.dynamic_update_slice(x, y, (0, 0))
    x = jnp.sort(x).at[jnp.array([0, 2])].multiply(2.0)
    image = jax.lax.conv_general_dilated(x[None, None], w[None, :1, :3, :3], (1, 1), "SAME")[0, 0]
    pooled = jax.lax.reduce_window(image, -jnp.inf, jax.lax.max, (2, 2), (2, 2), "VALID")
    return jnp.pad(pooled, 1) * x

  return fn, (X, W)


def linear_algebra():
  return lambda x, w: jnp.linalg.cholesky(x @ x.T + 4 * jnp.eye(4)) @ w[0], (X, W)


def pure_callback():
  """JAX differentiates around it, not through it."""

  def fn(x, w):
    scale = jax.pure_callback(
      lambda v: np.asarray(v) * 2,
      jax.ShapeDtypeStruct((), jnp.float32),
      jax.lax.stop_gradient(x.sum()),
      vmap_method="sequential",
    )
    return layer(x * scale, w[0])

  return fn, (X, W)


KINDS = {
  maker.__name__: maker
  for maker in (
    scan,
    nested_scan,
    scan_of_top_buffer,
    fori,
    while_loop,
    while_beside,
    cond,
    switch,
    nested_jit,
    custom_jvp,
    custom_vjp,
    user_checkpoint,
    user_names,
    closed_over_tracer,
    debug_print,
    typed_key,
    raw_key,
    key_residual,
    complex_input,
    bfloat16,
    int_and_bool_residuals,
    zero_size,
    integer_arguments,
    pytrees,
    scalars_and_numpy,
    passed_through,
    indexing_and_windows,
    linear_algebra,
    pure_callback,
  )
}
