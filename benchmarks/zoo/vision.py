"""Image models, from Keras and KerasHub."""

from collections.abc import Callable

import keras
import keras_hub.models as hub
from keras import layers

from zoo.step import Step

_IMAGE = (224, 224, 3)
_NUM_CLASSES = 1000


def application(name: str, **options) -> Step:
  """A model of `keras.applications` at its own image size, without its softmax."""
  return Step(lambda: getattr(keras.applications, name)(weights=None, classifier_activation=None, **options))


def mobilenet_v3_large() -> Step:
  """Howard et al. 2019, without dropout."""
  return application("MobileNetV3Large", input_shape=_IMAGE, dropout_rate=0.0)


def vgg11() -> Step:
  """Configuration A (Simonyan and Zisserman 2014)."""

  def make() -> keras.Model:
    backbone = hub.VGGBackbone(
      stackwise_num_repeats=[1, 1, 2, 2, 2], stackwise_num_filters=[64, 128, 256, 512, 512], image_shape=_IMAGE
    )
    hidden = layers.Flatten()(backbone.output)
    for _ in range(2):
      hidden = layers.Dense(4096, "relu")(hidden)
    return keras.Model(backbone.input, layers.Dense(_NUM_CLASSES)(hidden))

  return Step(make)


def resnet18() -> Step:
  """He et al. 2015, table 1."""
  return _classifier(
    lambda: hub.ResNetBackbone(
      input_conv_filters=[64],
      input_conv_kernel_sizes=[7],
      stackwise_num_filters=[64, 128, 256, 512],
      stackwise_num_blocks=[2, 2, 2, 2],
      stackwise_num_strides=[1, 2, 2, 2],
      block_type="basic_block",
      image_shape=_IMAGE,
    ),
    layers.GlobalAveragePooling2D,
  )


def vit(num_layers: int, num_heads: int, hidden_dim: int) -> Step:
  """Dosovitskiy et al. 2020, patches of 16x16; the class token is classified."""
  return _classifier(
    lambda: hub.ViTBackbone(
      image_shape=_IMAGE,
      patch_size=16,
      num_layers=num_layers,
      num_heads=num_heads,
      hidden_dim=hidden_dim,
      mlp_dim=4 * hidden_dim,
    ),
    lambda: lambda tokens: tokens[:, 0],
  )


def deit_base() -> Step:
  """Touvron et al. 2021, with a distillation token; the class token is classified."""
  return _classifier(
    lambda: hub.DeiTBackbone(
      image_shape=_IMAGE, patch_size=16, num_layers=12, num_heads=12, hidden_dim=768, intermediate_dim=3072
    ),
    lambda: lambda tokens: tokens[:, 0],
  )


def swin_tiny() -> Step:
  """Liu et al. 2021."""
  return _classifier(
    lambda: hub.SwinTransformerBackbone(
      image_shape=_IMAGE, embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24), window_size=7, drop_path=0.0
    ),
    layers.GlobalAveragePooling1D,
  )


def _classifier(backbone: Callable[[], keras.Model], pool: Callable[[], Callable]) -> Step:
  def make() -> keras.Model:
    trunk = backbone()
    return keras.Model(trunk.input, layers.Dense(_NUM_CLASSES)(pool()(trunk.output)))

  return Step(make)
