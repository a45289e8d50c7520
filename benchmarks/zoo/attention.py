"""Image models of FastSA that neither Keras nor KerasHub has, from Keras layers, with the sizes of their papers."""

from collections.abc import Callable

import keras
import numpy as np
from keras import layers, ops

from zoo.step import Step

_NUM_CLASSES = 1000


class _LayerScale(layers.Layer):
  """Times a weight per channel."""

  def build(self, shape):
    self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

  def call(self, hidden):
    return hidden * self.scale


class _Attention(layers.Layer):
  """Self-attention over the tokens of a square image.

  Args:
    num_heads: of equal width.
    kind: "bias", with a learned bias per relative position; "rotary", with rotary positions; "channels", between
      channels in place of tokens (El-Nouby et al. 2021).
  """

  def __init__(self, num_heads: int, kind: str):
    super().__init__()
    self.num_heads, self.kind = num_heads, kind

  def build(self, shape):
    _, num_tokens, width = shape
    side, head = round(num_tokens**0.5), width // self.num_heads
    self.project, self.join = layers.Dense(3 * width), layers.Dense(width)
    self.project.build(shape)
    self.join.build(shape)
    if self.kind == "bias":
      row, column = np.divmod(np.arange(num_tokens), side)
      apart = (row[:, None] - row + side - 1) * (2 * side - 1) + column[:, None] - column + side - 1
      self.index = apart.astype("int32")
      self.table = self.add_weight(shape=((2 * side - 1) ** 2, self.num_heads))
    elif self.kind == "rotary":
      row, column = np.divmod(np.arange(num_tokens), side)
      rates = 1e4 ** -(np.arange(head // 4) * 4 / head)
      angles = np.concatenate([row[:, None] * rates, column[:, None] * rates], axis=1)[None, None]
      self.cosine, self.sine = np.cos(angles).astype("float32"), np.sin(angles).astype("float32")
    else:
      self.temperature = self.add_weight(shape=(self.num_heads, 1, 1), initializer="ones")

  def call(self, hidden):
    batch, num_tokens, width = ops.shape(hidden)
    split = ops.reshape(self.project(hidden), (batch, num_tokens, 3, self.num_heads, width // self.num_heads))
    query, key, value = (split[:, :, i] for i in range(3))
    if self.kind == "channels":
      query, key, value = (ops.transpose(part, (0, 2, 3, 1)) for part in (query, key, value))
      scores = self.temperature * ops.einsum("bhct,bhdt->bhcd", ops.normalize(query), ops.normalize(key))
      mixed = ops.transpose(ops.einsum("bhcd,bhdt->bhct", ops.softmax(scores), value), (0, 3, 1, 2))
    else:
      query, key, value = (ops.transpose(part, (0, 2, 1, 3)) for part in (query, key, value))
      if self.kind == "rotary":
        query, key = self._rotated(query), self._rotated(key)
      scores = ops.einsum("bhtc,bhsc->bhts", query, key) * (width // self.num_heads) ** -0.5
      if self.kind == "bias":
        scores = scores + ops.transpose(ops.take(self.table, self.index, axis=0), (2, 0, 1))
      mixed = ops.transpose(ops.einsum("bhts,bhsc->bhtc", ops.softmax(scores), value), (0, 2, 1, 3))
    return self.join(ops.reshape(mixed, (batch, num_tokens, width)))

  def _rotated(self, tokens):
    first, second = ops.split(tokens, 2, axis=-1)
    return ops.concatenate(
      [first * self.cosine - second * self.sine, second * self.cosine + first * self.sine], axis=-1
    )


class _ResponseNorm(layers.Layer):
  """Global response normalization (Woo et al. 2023)."""

  def build(self, shape):
    self.scale = self.add_weight(shape=(shape[-1],), initializer="zeros")
    self.shift = self.add_weight(shape=(shape[-1],), initializer="zeros")

  def call(self, hidden):
    response = ops.sqrt(ops.sum(ops.square(hidden), axis=(1, 2), keepdims=True) + 1e-6)
    share = response / (ops.mean(response, axis=-1, keepdims=True) + 1e-6)
    return hidden + self.scale * (hidden * share) + self.shift


def _mlp(hidden: keras.KerasTensor, width: int) -> keras.KerasTensor:
  return layers.Dense(hidden.shape[-1])(layers.Dense(width, "gelu")(hidden))


def _gated_mlp(hidden: keras.KerasTensor, width: int) -> keras.KerasTensor:
  gated = layers.Dense(width, "silu")(hidden) * layers.Dense(width)(hidden)
  return layers.Dense(hidden.shape[-1])(layers.LayerNormalization()(gated))


def _tokens(images: keras.KerasTensor, patch: int, width: int) -> keras.KerasTensor:
  return layers.Reshape((-1, width))(layers.Conv2D(width, patch, patch)(images))


def _classifier(trunk: Callable[[keras.KerasTensor], keras.KerasTensor]) -> Step:
  def make() -> keras.Model:
    images = keras.Input((224, 224, 3))
    return keras.Model(images, layers.Dense(_NUM_CLASSES)(trunk(images)))

  return Step(make)


def beit_base() -> Step:
  """Bao et al. 2021: relative positions, layer scale, mean of the tokens."""

  def trunk(images):
    hidden = _tokens(images, 16, 768)
    for _ in range(12):
      hidden = hidden + _LayerScale()(_Attention(12, "bias")(layers.LayerNormalization()(hidden)))
      hidden = hidden + _LayerScale()(_mlp(layers.LayerNormalization()(hidden), 3072))
    return layers.LayerNormalization()(layers.GlobalAveragePooling1D()(hidden))

  return _classifier(trunk)


def eva02_large() -> Step:
  """Fang et al. 2023: rotary positions, a gated MLP with a norm inside."""

  def trunk(images):
    hidden = _tokens(images, 14, 1024)
    for _ in range(24):
      hidden = hidden + _Attention(16, "rotary")(layers.LayerNormalization()(hidden))
      hidden = hidden + _gated_mlp(layers.LayerNormalization()(hidden), 2730)
    return layers.LayerNormalization()(layers.GlobalAveragePooling1D()(hidden))

  return _classifier(trunk)


def xcit_tiny() -> Step:
  """El-Nouby et al. 2021, twelve layers, patches of 16; the mean of the tokens is classified, not a class token."""

  def trunk(images):
    hidden = images
    for width in (24, 48, 96, 192):
      hidden = layers.BatchNormalization()(layers.Conv2D(width, 3, 2, "same")(hidden))
      hidden = layers.Activation("gelu")(hidden) if width < 192 else hidden
    hidden = layers.Reshape((196, 192))(hidden)
    for _ in range(12):
      hidden = hidden + _LayerScale()(_Attention(4, "channels")(layers.LayerNormalization()(hidden)))
      local = layers.Reshape((14, 14, 192))(layers.LayerNormalization()(hidden))
      local = layers.Activation("gelu")(layers.DepthwiseConv2D(3, padding="same")(local))
      local = layers.DepthwiseConv2D(3, padding="same")(layers.BatchNormalization()(local))
      hidden = hidden + _LayerScale()(layers.Reshape((196, 192))(local))
      hidden = hidden + _LayerScale()(_mlp(layers.LayerNormalization()(hidden), 768))
    return layers.LayerNormalization()(layers.GlobalAveragePooling1D()(hidden))

  return _classifier(trunk)


def convnext_v2_large() -> Step:
  """Woo et al. 2023."""

  def trunk(images):
    hidden = images
    for width, depth, stride in ((192, 3, 4), (384, 3, 2), (768, 27, 2), (1536, 3, 2)):
      normed = hidden if stride == 4 else layers.LayerNormalization()(hidden)
      hidden = layers.Conv2D(width, stride, stride)(normed)
      hidden = layers.LayerNormalization()(hidden) if stride == 4 else hidden
      for _ in range(depth):
        inner = layers.LayerNormalization()(layers.DepthwiseConv2D(7, padding="same")(hidden))
        inner = _ResponseNorm()(layers.Dense(4 * width, "gelu")(inner))
        hidden = hidden + layers.Dense(width)(inner)
    return layers.LayerNormalization()(layers.GlobalAveragePooling2D()(hidden))

  return _classifier(trunk)


def _inverted_bottleneck(hidden: keras.KerasTensor, width: int, stride: int) -> keras.KerasTensor:
  inner = layers.Conv2D(4 * width, 1)(layers.BatchNormalization()(hidden))
  inner = layers.Activation("gelu")(layers.BatchNormalization()(inner))
  inner = layers.DepthwiseConv2D(3, stride, "same")(inner)
  inner = layers.Activation("gelu")(layers.BatchNormalization()(inner))
  squeezed = layers.Dense(width, "silu")(layers.GlobalAveragePooling2D(keepdims=True)(inner))
  inner = layers.Conv2D(width, 1)(inner * layers.Dense(4 * width, "sigmoid")(squeezed))
  if stride == 1:
    return hidden + inner
  return layers.Conv2D(width, 1)(layers.AveragePooling2D(2)(hidden)) + inner


def coatnet_2() -> Step:
  """Dai et al. 2021: two stages of convolutions, two of attention with relative positions."""

  def trunk(images):
    hidden = layers.Conv2D(128, 3, 2, "same")(images)
    hidden = layers.Activation("gelu")(layers.BatchNormalization()(hidden))
    hidden = layers.Conv2D(128, 3, padding="same")(hidden)
    for width, depth in ((128, 2), (256, 6)):
      for index in range(depth):
        hidden = _inverted_bottleneck(hidden, width, 2 if index == 0 else 1)
    for width, depth in ((512, 14), (1024, 2)):
      hidden = layers.Conv2D(width, 1)(layers.MaxPooling2D(2)(hidden))
      side = hidden.shape[1]
      hidden = layers.Reshape((side * side, width))(hidden)
      for _ in range(depth):
        hidden = hidden + _Attention(width // 32, "bias")(layers.LayerNormalization()(hidden))
        hidden = hidden + _mlp(layers.LayerNormalization()(hidden), 4 * width)
      hidden = layers.Reshape((side, side, width))(hidden)
    return layers.LayerNormalization()(layers.GlobalAveragePooling2D()(hidden))

  return _classifier(trunk)
