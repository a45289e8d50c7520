"""Models whose work depends on the data or repeats over time: a supernet with choices, and a bidirectional LSTM."""

import keras
from keras import layers, ops

from zoo.step import Step


def bilstm(length: int = 128, num_features: int = 100, hidden_dim: int = 256, num_classes: int = 2) -> Step:
  """A bidirectional LSTM (Graves and Schmidhuber 2005), unrolled over time, that classifies sequences."""

  def make() -> keras.Model:
    features = keras.Input((length, num_features))
    hidden = layers.Bidirectional(layers.LSTM(hidden_dim, unroll=True))(features)
    return keras.Model(features, layers.Dense(num_classes)(hidden))

  return Step(make)


def spos() -> Step:
  """The supernet of Single Path One-Shot (Guo et al. 2019): each of 20 blocks is one of four, chosen by an input."""

  def make() -> keras.Model:
    images, choices = keras.Input((224, 224, 3)), keras.Input((20,), dtype="int32", name="choices")
    hidden = layers.ReLU()(_BatchNorm()(layers.Conv2D(16, 3, 2, "same", use_bias=False)(images)))
    block = 0
    for filters, num_blocks in ((64, 4), (160, 4), (320, 8), (640, 4)):
      for i in range(num_blocks):
        hidden = _Choice(filters, stride=2 if i == 0 else 1)(hidden, choices[0, block])
        block += 1
    hidden = layers.ReLU()(_BatchNorm()(layers.Conv2D(1024, 1, use_bias=False)(hidden)))
    return keras.Model([images, choices], layers.Dense(1000)(layers.GlobalAveragePooling2D()(hidden)))

  return Step(make)


class _BatchNorm(layers.Layer):
  """By the statistics of the batch alone: a supernet keeps none, they are taken anew for every path."""

  def build(self, input_shape):
    self.scale = self.add_weight((input_shape[-1],), "ones")
    self.offset = self.add_weight((input_shape[-1],), "zeros")

  def call(self, inputs):
    mean, variance = ops.moments(inputs, axes=(0, 1, 2))
    return ops.batch_normalization(inputs, mean, variance, -1, self.offset, self.scale, 1e-5)


class _Choice(layers.Layer):
  """One block of the supernet: a ShuffleNetV2 unit with kernels of 3, 5 or 7, or one with three in a row."""

  def __init__(self, filters: int, stride: int):
    super().__init__()
    self._stride = stride
    half = filters // 2
    self.projection = _sequence(half, [3], stride) if stride > 1 else None
    self.paths = [_sequence(half, sizes, stride) for sizes in ([3], [5], [7], [3, 3, 3])]

  def build(self, inputs_shape, choice_shape):
    branch_shape = inputs_shape if self._stride > 1 else (*inputs_shape[:-1], inputs_shape[-1] // 2)
    for path in (*self.paths, *([self.projection] if self.projection else ())):
      path.build(branch_shape)

  def call(self, inputs, choice):
    if self.projection:
      kept, changed = self.projection(inputs), inputs
    else:
      kept, changed = ops.split(inputs, 2, axis=-1)
    changed = ops.switch(choice, self.paths, changed)
    mixed = ops.stack([kept, changed], axis=-1)  # channel shuffle in two groups
    return ops.reshape(mixed, (-1, *mixed.shape[1:-2], 2 * mixed.shape[-2]))


def _sequence(filters: int, sizes: list[int], stride: int) -> keras.Sequential:
  """Separable convolutions in a row, the first with the stride."""
  found = []
  for i, size in enumerate(sizes):
    found += [
      layers.DepthwiseConv2D(size, stride if i == 0 else 1, "same", use_bias=False),
      _BatchNorm(),
      layers.Conv2D(filters, 1, use_bias=False),
      _BatchNorm(),
      layers.ReLU(),
    ]
  return keras.Sequential(found)
