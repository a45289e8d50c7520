"""Convolutional models that neither Keras nor KerasHub has, from Keras layers, with the sizes of their papers."""

import keras
from keras import layers

from zoo.step import Step

_NUM_CLASSES = 1000


def alexnet() -> Step:
  """AlexNet in one column (Krizhevsky 2014)."""

  def make() -> keras.Model:
    images = keras.Input((224, 224, 3))
    hidden = layers.Conv2D(64, 11, 4, activation="relu")(layers.ZeroPadding2D(2)(images))
    hidden = layers.Conv2D(192, 5, padding="same", activation="relu")(layers.MaxPooling2D(3, 2)(hidden))
    hidden = layers.MaxPooling2D(3, 2)(hidden)
    for filters in (384, 256, 256):
      hidden = layers.Conv2D(filters, 3, padding="same", activation="relu")(hidden)
    hidden = layers.Flatten()(layers.MaxPooling2D(3, 2)(hidden))
    for _ in range(2):
      hidden = layers.Dense(4096, "relu")(hidden)
    return keras.Model(images, layers.Dense(_NUM_CLASSES)(hidden))

  return Step(make)


# Szegedy et al. 2014, table 1: channels of 1x1; of the reduction before 3x3 and of 3x3; of those of 5x5; after pooling.
_INCEPTIONS = (
  (64, 96, 128, 16, 32, 32),
  (128, 128, 192, 32, 96, 64),
  None,
  (192, 96, 208, 16, 48, 64),
  (160, 112, 224, 24, 64, 64),
  (128, 128, 256, 24, 64, 64),
  (112, 144, 288, 32, 64, 64),
  (256, 160, 320, 32, 128, 128),
  None,
  (256, 160, 320, 32, 128, 128),
  (384, 192, 384, 48, 128, 128),
)


def googlenet() -> Step:
  """GoogLeNet (Szegedy et al. 2014) with batch normalization and without auxiliary classifiers."""

  def make() -> keras.Model:
    images = keras.Input((224, 224, 3))
    hidden = layers.MaxPooling2D(3, 2, "same")(_convolution(images, 64, 7, 2))
    hidden = layers.MaxPooling2D(3, 2, "same")(_convolution(_convolution(hidden, 64, 1), 192, 3))
    for channels in _INCEPTIONS:
      hidden = _inception(hidden, channels) if channels else layers.MaxPooling2D(3, 2, "same")(hidden)
    return keras.Model(images, layers.Dense(_NUM_CLASSES)(layers.GlobalAveragePooling2D()(hidden)))

  return Step(make)


def _inception(hidden: keras.KerasTensor, channels: tuple[int, ...]) -> keras.KerasTensor:
  pooled = layers.MaxPooling2D(3, 1, "same")(hidden)
  return layers.Concatenate()(
    [
      _convolution(hidden, channels[0], 1),
      _convolution(_convolution(hidden, channels[1], 1), channels[2], 3),
      _convolution(_convolution(hidden, channels[3], 1), channels[4], 5),
      _convolution(pooled, channels[5], 1),
    ]
  )


def _convolution(hidden: keras.KerasTensor, filters: int, size: int, stride: int = 1) -> keras.KerasTensor:
  hidden = layers.Conv2D(filters, size, stride, "same", use_bias=False)(hidden)
  return layers.ReLU()(layers.BatchNormalization()(hidden))


def resnet3d(num_frames: int = 16, size: int = 112) -> Step:
  """R3D-18 on clips (Tran et al. 2017, table 1)."""

  def make() -> keras.Model:
    clips = keras.Input((num_frames, size, size, 3))
    hidden = layers.ReLU()(_normalized3d(clips, 64, (3, 7, 7), (1, 2, 2)))
    for filters, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
      shortcut = hidden if stride == 1 else _normalized3d(hidden, filters, 1, stride)
      inner = layers.ReLU()(_normalized3d(hidden, filters, 3, stride))
      hidden = layers.ReLU()(layers.Add()([shortcut, _normalized3d(inner, filters, 3, 1)]))
    return keras.Model(clips, layers.Dense(400)(layers.GlobalAveragePooling3D()(hidden)))

  return Step(make)


def _normalized3d(
  hidden: keras.KerasTensor, filters: int, size: int | tuple[int, ...], stride: int | tuple[int, ...]
) -> keras.KerasTensor:
  return layers.BatchNormalization()(layers.Conv3D(filters, size, stride, "same", use_bias=False)(hidden))


def unet(height: int = 460, width: int = 608, num_classes: int = 2) -> Step:
  """U-Net (Ronneberger et al. 2015) with padded, normalized convolutions; what is copied across is cropped to fit."""

  def make() -> keras.Model:
    hidden = images = keras.Input((height, width, 3))
    across = []
    for filters in (64, 128, 256, 512):
      across.append(_convolution(_convolution(hidden, filters, 3), filters, 3))
      hidden = layers.MaxPooling2D()(across[-1])
    hidden = _convolution(_convolution(hidden, 1024, 3), 1024, 3)
    for filters, skip in zip((512, 256, 128, 64), reversed(across), strict=True):
      up = layers.Conv2DTranspose(filters, 2, 2)(hidden)
      hidden = layers.Concatenate()([skip[:, : up.shape[1], : up.shape[2]], up])
      hidden = _convolution(_convolution(hidden, filters, 3), filters, 3)
    return keras.Model(images, layers.Conv2D(num_classes, 1)(hidden))

  return Step(make, (height // 16 * 16, width // 16 * 16))
