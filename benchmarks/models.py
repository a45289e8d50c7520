"""Models as plain JAX functions: a loss, parameters, and a batch.

ResNet-50 and VGG-16 after their papers (He et al. 2015, table 1; Simonyan and Zisserman 2014, configuration D), with
the statistics of the batch and without biases; the decoder is a GPT of pre-normalized blocks. All are small enough
for a CPU, and are trained in float32.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = Any
Policy = Callable[..., Any] | None


@dataclasses.dataclass(frozen=True)
class Model:
  """A loss to differentiate.

  Attributes:
    name: for tables.
    loss: ``loss(params, *batch)``.
    checkpointed: the same with ``jax.checkpoint`` around every block, of its policy.
    params: initial parameters.
    batch: the other arguments.
  """

  name: str
  loss: Callable[..., jax.Array]
  checkpointed: Callable[[Policy], Callable[..., jax.Array]]
  params: Params
  batch: tuple[np.ndarray, ...]

  @property
  def checkpointed_loss(self) -> Callable[..., jax.Array]:
    """With nothing saved inside of a block."""
    return self.checkpointed(None)


def resnet50(batch_size: int = 8, image_size: int = 160, num_classes: int = 1000) -> Model:
  """ResNet-50, a checkpoint around each of its 16 bottlenecks."""
  init = _Init()
  stages = [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]
  params, strides, channels = {"stem": init.conv(7, 3, 64), "blocks": []}, [], 64
  for width, repeats, first_stride in stages:
    for index in range(repeats):
      block = {
        "reduce": init.conv(1, channels, width),
        "middle": init.conv(3, width, width),
        "expand": init.conv(1, width, 4 * width),
      }
      if index == 0:
        block["shortcut"] = init.conv(1, channels, 4 * width)
      params["blocks"].append(block)
      strides.append(first_stride if index == 0 else 1)
      channels = 4 * width
  params["head"] = init.dense(channels, num_classes)

  def block_fn(block, x, stride):
    y = jax.nn.relu(_conv_norm(x, block["reduce"], stride))
    y = jax.nn.relu(_conv_norm(y, block["middle"]))
    y = _conv_norm(y, block["expand"])
    return jax.nn.relu(y + (_conv_norm(x, block["shortcut"], stride) if "shortcut" in block else x))

  def loss(params, images, labels, block_fn=block_fn):
    x = _max_pool(jax.nn.relu(_conv_norm(images, params["stem"], 2)), 3)
    for block, stride in zip(params["blocks"], strides):
      x = block_fn(block, x, stride)
    return _cross_entropy(x.mean((1, 2)) @ params["head"], labels)

  return _image_model(
    "ResNet-50", loss, _checkpointed(loss, block_fn, static_argnums=2), params, (batch_size, image_size), num_classes
  )


def vgg16(batch_size: int = 8, image_size: int = 96, num_classes: int = 1000) -> Model:
  """VGG-16, a checkpoint around each of its five groups of convolutions."""
  init = _Init()
  params, channels = {"groups": []}, 3
  for width, repeats in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]:
    group = []
    for _ in range(repeats):
      group.append(init.conv(3, channels, width))
      channels = width
    params["groups"].append(group)
  features = channels * (image_size // 32) ** 2
  params["dense"] = [init.dense(features, 4096), init.dense(4096, 4096), init.dense(4096, num_classes)]

  def block_fn(group, x):
    for kernel in group:
      x = jax.nn.relu(_conv(x, kernel))
    return _max_pool(x, 2)

  def loss(params, images, labels, block_fn=block_fn):
    x = images
    for group in params["groups"]:
      x = block_fn(group, x)
    first, second, head = params["dense"]
    x = jax.nn.relu(x.reshape(len(x), -1) @ first)
    return _cross_entropy(jax.nn.relu(x @ second) @ head, labels)

  return _image_model("VGG-16", loss, _checkpointed(loss, block_fn), params, (batch_size, image_size), num_classes)


def decoder(
  num_layers: int = 8,
  width: int = 256,
  context: int = 256,
  batch_size: int = 8,
  num_heads: int = 4,
  vocab_size: int = 512,
) -> Model:
  """A GPT without a framework, a checkpoint around each block."""
  init = _Init()
  params = {
    "embedding": init.dense(vocab_size, width),
    "blocks": [
      {
        "query_key_value": init.dense(width, 3 * width),
        "out": init.dense(width, width),
        "up": init.dense(width, 4 * width),
        "down": init.dense(4 * width, width),
      }
      for _ in range(num_layers)
    ],
  }

  def block_fn(block, x):
    shape = (batch_size, context, num_heads, width // num_heads)
    query, key, value = (part.reshape(shape) for part in jnp.split(_layer_norm(x) @ block["query_key_value"], 3, -1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(shape[-1])
    weights = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((context, context), bool)), scores, -1e9), -1)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape) @ block["out"]
    return x + jax.nn.gelu(_layer_norm(x) @ block["up"]) @ block["down"]

  def loss(params, tokens, block_fn=block_fn):
    x = params["embedding"][tokens]
    for block in params["blocks"]:
      x = block_fn(block, x)
    return _cross_entropy(x @ params["embedding"].T, jnp.roll(tokens, -1, 1))

  tokens = np.random.default_rng(1).integers(0, vocab_size, (batch_size, context), np.int32)
  return Model("decoder", loss, _checkpointed(loss, block_fn), params, (tokens,))


def _image_model(
  name: str, loss: Callable, checkpointed: Callable, params: Params, size: tuple[int, int], num_classes: int
) -> Model:
  rng = np.random.default_rng(1)
  batch_size, image_size = size
  images = rng.standard_normal((batch_size, image_size, image_size, 3), np.float32)
  labels = rng.integers(0, num_classes, batch_size, np.int32)
  return Model(name, loss, checkpointed, params, (images, labels))


def _checkpointed(loss: Callable, block_fn: Callable, **options: Any) -> Callable[[Policy], Callable]:
  def with_policy(policy):
    block = jax.checkpoint(block_fn, policy=policy, **options)
    return lambda params, *batch: loss(params, *batch, block_fn=block)

  return with_policy


class _Init:
  """Draws kernels, always the same ones, scaled to keep the variance through a ReLU."""

  def __init__(self):
    self._rng = np.random.default_rng(0)

  def conv(self, size: int, inputs: int, outputs: int) -> np.ndarray:
    return self._draw((size, size, inputs, outputs), size * size * inputs)

  def dense(self, inputs: int, outputs: int) -> np.ndarray:
    return self._draw((inputs, outputs), inputs)

  def _draw(self, shape: tuple[int, ...], fan_in: int) -> np.ndarray:
    return self._rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / fan_in))


def _conv(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
  return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _conv_norm(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
  x = _conv(x, kernel, stride)
  return (x - x.mean((0, 1, 2))) * jax.lax.rsqrt(x.var((0, 1, 2)) + 1e-5)


def _layer_norm(x: jax.Array) -> jax.Array:
  return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def _max_pool(x: jax.Array, window: int) -> jax.Array:
  return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, window, window, 1), (1, 2, 2, 1), "SAME")


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
  return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).mean()
