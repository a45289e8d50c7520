"""Keras models as abstract training steps: traced for their shapes, with no weight ever in memory.

Variables that are made inside a `keras.StatelessScope` have a shape and an initializer, but no value; as long as the
scope lives nobody initializes them. The step is then a plain JAX function of their types.
"""

import dataclasses
import warnings
from collections.abc import Callable, Mapping

import jax
import keras
import optax
from jax.extend import core


@dataclasses.dataclass(frozen=True)
class TracedStep:
  """A training step as a jaxpr.

  Attributes:
    jaxpr: from weights, statistics (of batch normalizations) and a batch to the loss and what is learned.
    donations: by index of an output, the index of the input that it replaces.
  """

  jaxpr: core.ClosedJaxpr
  donations: Mapping[int, int]


@dataclasses.dataclass(frozen=True)
class Step:
  """A model and what it is trained on.

  Attributes:
    make: builds the model; its outputs are logits.
    label_shape: of one example's labels, integers: ``()`` for a class, ``(length,)`` for tokens.
    input_shapes: of one example, by the input's name, where the model leaves dimensions open.
  """

  make: Callable[[], keras.Model]
  label_shape: tuple[int, ...] = ()
  input_shapes: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)

  def trace(self, batch: int, learning_rate: float | None = None) -> TracedStep:
    """Traces the mean cross entropy and its gradients.

    Args:
      batch: examples in the batch.
      learning_rate: of gradient descent: the step returns new weights, which replace the old ones, as do the
        statistics. None: it returns the gradients (and statistics), next to the weights.
    """
    if keras.backend.backend() != "jax":
      raise RuntimeError(f"the zoo needs Keras on JAX (KERAS_BACKEND=jax), not on {keras.backend.backend()}")
    try:
      with keras.StatelessScope(initialize_variables=False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Layer 'attn'.* does not support masking")  # KerasHub's Swin
        return self._trace(self.make(), batch, learning_rate)
    finally:
      keras.utils.clear_session()  # forgets the variables that were never initialized

  def _trace(self, model: keras.Model, batch: int, learning_rate: float | None) -> TracedStep:
    def loss(trainable, others, inputs, labels):
      logits, others = model.stateless_call(trainable, others, inputs, training=True)
      return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), others

    def step(trainable, others, inputs, labels):
      (value, others), gradients = jax.value_and_grad(loss, has_aux=True)(trainable, others, inputs, labels)
      if learning_rate is not None:
        gradients = [weight - learning_rate * gradient for weight, gradient in zip(trainable, gradients, strict=True)]
      return gradients, others, value

    trainable, others = _types(model.trainable_variables), _types(model.non_trainable_variables)
    inputs = jax.tree.map(lambda tensor: self._input_type(tensor, batch), model.input)
    labels = jax.ShapeDtypeStruct((batch, *self.label_shape), "int32")
    donated = range(len(trainable) + len(others)) if learning_rate is not None else ()
    return TracedStep(jax.make_jaxpr(step)(trainable, others, inputs, labels), {index: index for index in donated})

  def _input_type(self, tensor: keras.KerasTensor, batch: int) -> jax.ShapeDtypeStruct:
    shape = self.input_shapes.get(tensor.name, tensor.shape[1:])
    return jax.ShapeDtypeStruct((batch, *shape), tensor.dtype)


def _types(variables: list[keras.Variable]) -> list[jax.ShapeDtypeStruct]:
  return [jax.ShapeDtypeStruct(variable.shape, variable.dtype) for variable in variables]
