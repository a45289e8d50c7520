"""A decoder-only GPT in Flax NNX that learns to write Python, byte by byte.

Nothing here knows of coopjax: it is the model, the corpus and the loss as a user would have them.
"""

import dataclasses
import pathlib
import sysconfig
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

VOCAB_SIZE = 256  # the vocabulary is the byte


@dataclasses.dataclass(frozen=True)
class GPTConfig:
  """Sizes; the defaults take 2.6 GiB of temporaries for a training step on XLA:CPU beside 0.2 GiB of state."""

  num_layers: int = 24
  width: int = 256
  num_heads: int = 4
  context: int = 256
  batch_size: int = 12
  remat: Callable | None = None  # nnx.remat goes around every block, to compare with


class Block(nnx.Module):
  """Causal self-attention, then a two-layer perceptron, each normalized first and added to its input."""

  def __init__(self, config: GPTConfig, *, rngs: nnx.Rngs):
    width = config.width
    self.num_heads = config.num_heads
    self.attention_norm = nnx.LayerNorm(width, rngs=rngs)
    self.query_key_value = nnx.Linear(width, 3 * width, rngs=rngs)
    self.attention_out = nnx.Linear(width, width, rngs=rngs)
    self.mlp_norm = nnx.LayerNorm(width, rngs=rngs)
    self.mlp_up = nnx.Linear(width, 4 * width, rngs=rngs)
    self.mlp_down = nnx.Linear(4 * width, width, rngs=rngs)

  def __call__(self, x: jax.Array) -> jax.Array:
    batch, context, width = x.shape
    heads = self.query_key_value(self.attention_norm(x)).reshape(batch, context, 3, self.num_heads, -1)
    query, key, value = jnp.moveaxis(heads, 2, 0)
    mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    x = x + self.attention_out(mixed.reshape(batch, context, width))
    return x + self.mlp_down(jax.nn.gelu(self.mlp_up(self.mlp_norm(x))))


class GPT(nnx.Module):
  """Bytes in, logits of the next byte out; the embedding is also the output layer."""

  def __init__(self, config: GPTConfig, *, rngs: nnx.Rngs):
    self.config = config
    self.token_embedding = nnx.Embed(VOCAB_SIZE, config.width, rngs=rngs)
    self.position_embedding = nnx.Embed(config.context, config.width, rngs=rngs)
    self.blocks = nnx.List([Block(config, rngs=rngs) for _ in range(config.num_layers)])
    self.final_norm = nnx.LayerNorm(config.width, rngs=rngs)

  def __call__(self, tokens: jax.Array) -> jax.Array:
    x = self.token_embedding(tokens) + self.position_embedding(jnp.arange(tokens.shape[1]))
    apply_block = self.config.remat(Block.__call__) if self.config.remat else Block.__call__
    for block in self.blocks:
      x = apply_block(block, x)
    return self.token_embedding.attend(self.final_norm(x))


def make_loss(config: GPTConfig, seed: int = 0) -> tuple[Callable, nnx.State]:
  """The mean cross-entropy ``loss(params, batch)`` of a freshly initialized GPT, and its parameters.

  ``batch`` is uint8 ``[batch_size, context + 1]``: every byte but the last predicts the one after it.
  """
  graph, params = nnx.split(GPT(config, rngs=nnx.Rngs(seed)))

  def loss(params: nnx.State, batch: jax.Array) -> jax.Array:
    tokens = batch.astype(jnp.int32)
    logits = nnx.merge(graph, params)(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

  return loss, params


def make_train_step(loss: Callable, optimizer: optax.GradientTransformation) -> Callable:
  """The jitted ``step(params, state, batch) -> (params, state, loss)``; parameters and state are donated."""

  @jax.jit(donate_argnums=(0, 1))
  def train_step(params, state, batch):
    value, gradients = jax.value_and_grad(loss)(params, batch)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value

  return train_step


def read_corpus() -> np.ndarray:
  """The top-level modules of Python's standard library, some 4 MB of source, in alphabetical order, as uint8."""
  library = pathlib.Path(sysconfig.get_path("stdlib"))
  return np.frombuffer(b"".join(path.read_bytes() for path in sorted(library.glob("*.py"))), np.uint8)


def batches(corpus: np.ndarray, config: GPTConfig, seed: int = 0) -> Iterator[np.ndarray]:
  """Endless random excerpts of the corpus, the same for the same seed."""
  rng = np.random.default_rng(seed)
  excerpt = np.arange(config.context + 1)
  while True:
    starts = rng.integers(0, len(corpus) - config.context, config.batch_size)
    yield corpus[starts[:, None] + excerpt]
