"""Networks and their optimizers: dense, convolutional."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .program import Program, normal, program, step


def mlp_loss(weights, x):
  for weight in weights:
    x = jnp.tanh(x @ weight)
  return jnp.mean(x**2)


def mlp(depth: int = 8, width: int = 64, batch: int = 512):
  return [normal(width, width, seed=i) for i in range(depth)], normal(batch, width)


@program
def mlp_gradient():
  return Program(jax.value_and_grad(mlp_loss), mlp())


@program
def mlp_forward():
  return Program(mlp_loss, mlp())


@program
def mlp_step_donated():
  return Program(step(mlp_loss), mlp(), donated=(0,))


@program
def adam_step_donated():
  def step(params, moments, x):
    value, gradients = jax.value_and_grad(mlp_loss)(params, x)
    means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
    squares = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments[1], gradients)
    params = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), params, means, squares)
    return params, (means, squares), value

  params, x = mlp()
  return Program(step, (params, (jax.tree.map(np.zeros_like, params), jax.tree.map(np.ones_like, params)), x), (0, 1))


@program
def accumulated_step_donated():
  """Gradients summed over four batches by a scan."""

  def step(params, batches):
    def add(total, x):
      value, gradients = jax.value_and_grad(mlp_loss)(params, x)
      return jax.tree.map(jnp.add, total, gradients), value

    gradients, values = lax.scan(add, jax.tree.map(jnp.zeros_like, params), batches)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), values.mean()

  params, x = mlp()
  return Program(step, (params, x.reshape(4, 128, 64)), donated=(0,))


@program
def bf16_autoencoder():
  def loss(weights, x):
    y = x.astype(jnp.bfloat16)
    for weight in weights:
      y = jax.nn.gelu(y @ weight.astype(jnp.bfloat16))
    return jnp.mean((y.astype(jnp.float32) - x) ** 2)

  widths = (64, 128, 32, 128, 64)
  return Program(step(loss), ([normal(*pair) for pair in itertools.pairwise(widths)], normal(512, 64)), donated=(0,))


@program
def checkpointed_mlp():
  def loss(weights, x):
    for first, second in zip(weights[::2], weights[1::2]):
      x = jax.checkpoint(lambda x, a, b: jnp.tanh(jnp.tanh(x @ a) @ b))(x, first, second)
    return jnp.mean(x**2)

  return Program(jax.value_and_grad(loss), mlp())


@program
def nested_pjit():
  layer = jax.jit(lambda x, weight: jnp.sin(x @ weight) + x)
  pair = jax.jit(lambda x, a, b: layer(layer(x, a), b))

  def loss(weights, x):
    for first, second in zip(weights[::2], weights[1::2]):
      x = pair(x, first, second)
    return jnp.mean(x**2)

  return Program(jax.value_and_grad(loss), mlp())


@program
def multiple_outputs():
  """Results that are parameters, constants, and the same value twice."""

  def fn(x, y):
    z = jnp.tanh(x @ y)
    return {"same": (z, z), "given": x, "constant": jnp.arange(16.0), "sum": z.sum(), "both": (z + 1, z * y)}

  return Program(fn, (normal(64, 64), normal(64, 64, seed=1)))


# Convolutions and windows.


def _conv(x, kernel, stride=1, **options):
  axes = ("NHWC", "HWIO", "NHWC")
  return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=axes, **options)


def _conv_norm(x, kernel, stride=1):
  x = _conv(x, kernel, stride)
  return (x - x.mean((0, 1, 2))) * lax.rsqrt(x.var((0, 1, 2)) + 1e-5)


@program
def resnet_step_donated():
  def loss(kernels, images):
    x = jax.nn.relu(_conv_norm(images, kernels[0], 2))
    for i, stride in enumerate([1, 2, 1, 2]):
      first, second, shortcut = kernels[1 + 3 * i : 4 + 3 * i]
      y = _conv_norm(jax.nn.relu(_conv_norm(x, first, stride)), second)
      x = jax.nn.relu(y + _conv_norm(x, shortcut, stride))
    return jnp.mean(x.mean((1, 2)) ** 2)

  shapes, features = [(7, 7, 3, 16)], 16
  for width in (16, 32, 32, 64):
    shapes += [(3, 3, features, width), (3, 3, width, width), (1, 1, features, width)]
    features = width
  return Program(step(loss), ([normal(*shape) for shape in shapes], normal(4, 32, 32, 3)), donated=(0,))


@program
def unet_gradient():
  """Skips across the whole program; convolutions that are grouped, dilated and transposed."""

  def loss(kernels, x):
    top = jax.nn.silu(_conv(x, kernels["top"]))
    down = jax.nn.silu(_conv(top, kernels["down"], 2))
    middle = down + _conv(down, kernels["grouped"], feature_group_count=8)
    middle = middle + jax.nn.silu(_conv(middle, kernels["dilated"], rhs_dilation=(2, 2)))
    up = lax.conv_transpose(middle, kernels["up"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.mean((_conv(jnp.concatenate([top, up], -1), kernels["out"]) - x) ** 2)

  kernels = {
    "top": normal(3, 3, 3, 8),
    "down": normal(3, 3, 8, 16),
    "grouped": normal(3, 3, 2, 16),
    "dilated": normal(3, 3, 16, 16),
    "up": normal(2, 2, 16, 8),
    "out": normal(3, 3, 16, 3),
  }
  return Program(jax.value_and_grad(loss), (kernels, normal(4, 32, 32, 3)))


@program
def pooling():
  """Windows reduced, and their gradient's select-and-scatter."""

  def loss(kernel, x):
    x = jax.nn.relu(_conv(x, kernel))
    largest = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    means = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    return jnp.mean((largest * means) ** 2)

  return Program(jax.value_and_grad(loss, argnums=(0, 1)), (normal(3, 3, 3, 16), normal(8, 24, 24, 3)))


@program
def cumulative():
  def loss(x):
    return jnp.sum(jnp.cumsum(x, 0) * jnp.cumprod(1 + x, 1)) + lax.associative_scan(jnp.maximum, x, axis=1).mean()

  return Program(jax.value_and_grad(loss), (normal(64, 128),))
