"""Blocks that a region repeats, and cuts between them."""

import itertools

import jax
import jax.numpy as jnp
import pytest

from coopjax.jaxpr.trace import differentiable, trace, with_respect_to
from coopjax.policy_engine.blocks import ways_to_tell_blocks
from coopjax.policy_engine.cuts import cut
from coopjax.policy_engine.repeats import repeated_blocks
from coopjax.policy_engine.residuals import forward_graph
from tests.support import models


def graph_of(loss, *args):
  traced = differentiable(trace(loss, args))
  names = [equation.primitive.name for equation in traced.inlined.eqns]
  return forward_graph(traced.inlined, traced.is_differentiable), names


def test_layers_of_an_mlp():
  # 12 layers of dot and tanh; the loss is what is left.
  graph, names = graph_of(*models.mlp())
  assert names[:4] == ["dot_general", "tanh"] * 2
  assert repeated_blocks(graph) == tuple(range(0, 25, 2))


@pytest.mark.parametrize("depth", [2, 5])
def test_blocks_of_a_decoder(depth):
  graph, names = graph_of(*models.gpt(depth))
  first = names.index("gather") + 1  # behind the embedding
  blocks = repeated_blocks(graph)
  assert len(blocks) == depth + 1 and blocks[0] == first
  period = blocks[1] - first
  assert blocks == tuple(range(first, first + depth * period + 1, period))
  # Between blocks a single value crosses, 4 x 64 tokens of width 64.
  assert set(graph.crossed_bytes()[list(blocks[1:])].tolist()) == {4 * 64 * 64 * 4}
  # One segment per block; the embedding, which leaves nothing, goes with the first.
  assert (0, *blocks[1:], graph.num_positions) in cut(graph)


def test_two_stacks_and_none():
  def stacks(wide, narrow, x):
    for weight in wide:
      x = jnp.tanh(x @ weight)
    x = x[:, :32]
    for weight in narrow:
      x = jax.nn.gelu(x @ weight)
    return jnp.sum(x**2)

  graph, names = graph_of(stacks, models.normal(0, 6, 64, 64), models.normal(1, 6, 32, 32), models.normal(2, 256, 64))
  blocks = repeated_blocks(graph)
  # Of the first six layers, 64 wide, and of the six behind them.
  between = names.index("erf" if "erf" in names else "integer_pow")
  assert sum(boundary < between for boundary in blocks) >= 6 and sum(boundary > between for boundary in blocks) >= 5
  assert repeated_blocks(graph_of(lambda x: jnp.sum(jnp.sin(x)), models.normal(0, 8))[0]) == ()


def test_layers_whose_first_is_differentiated_in_part():
  # Small weights beside those that nobody differentiates: attention of the first layer has no gradient, so behind each
  # attention a block could start, too. By hand it is a layer: 5 x 64 tokens cross on both sides.
  squashed = lambda x: x / (1 + jnp.abs(x).mean(-1, keepdims=True))
  frozen, x = (models.normal(0, 32, 96), models.normal(1, 32, 32)), models.normal(2, 5, 64, 32)

  def loss(adapters):
    y = x
    for small in adapters:
      query, key, value = jnp.split(squashed(y) @ frozen[0], 3, -1)
      y = y + jax.nn.softmax(query @ key.mT) @ value
      y = y + squashed(y) @ small @ small.T
      y = y + jnp.tanh(squashed(y) @ frozen[1]) @ frozen[1].T
    return jnp.mean(y**2)

  graph, _ = graph_of(loss, [models.normal(i, 32, 4) for i in range(5)])
  bounds = repeated_blocks(graph, as_by_hand=True)
  period = bounds[1] - bounds[0]
  assert bounds == tuple(range(0, 5 * period + 1, period))


def test_a_block_that_comes_once_between_others():
  """Attention between layers: as long as one, and it holds more."""

  def layer(x, weight):
    return x + jnp.tanh(jnp.sin(x / (1 + jnp.abs(x).mean(-1, keepdims=True))) @ weight) @ weight.T

  def loss(weights, between, x):
    x = layer(layer(x, weights[0]), weights[1])
    query, key, value = jnp.split(x @ between, 3, -1)
    x = x + jax.nn.softmax(query @ key.mT) @ value
    return jnp.mean(layer(layer(x, weights[2]), weights[3]) ** 2)

  args = [models.normal(i, 32, 64) for i in range(4)], models.normal(5, 32, 96), models.normal(6, 4, 64, 32)
  graph, names = graph_of(loss, *args)
  alike, whole = ways_to_tell_blocks(differentiable(trace(loss, args)).inlined, graph, frozenset())
  others = [each for each in whole if each.position not in {known.position for known in alike}]
  assert len(alike) == 4 and len(others) == 1
  assert "exp" in names[others[0].position : others[0].stop]


def test_two_calls_of_a_tower_beside_one_that_has_no_gradient():
  # The other one's layers come again as they do, and hold nothing; and what the first layer reads has no gradient.
  weights, frozen = ([models.normal(i, 32, 64) for i in range(at, at + 4)] for at in (0, 4))

  def tower(weights, x):
    for weight in weights:
      x = x + jnp.tanh((x / (1 + jnp.abs(x).mean(-1, keepdims=True))) @ weight) @ weight.T
    return x

  def loss(weights, x, y):
    unlike = lambda one, other: jnp.mean((tower(weights, one) - jnp.sin(tower(frozen, other))) ** 2)
    return unlike(x, y) + unlike(y, x)

  args = weights, models.normal(9, 64, 32), models.normal(10, 64, 32)
  traced = with_respect_to(trace(loss, args), 0)
  graph = forward_graph(traced.inlined, traced.is_differentiable)
  *_, found = ways_to_tell_blocks(traced.inlined, graph, frozenset())
  kept_bytes = graph.residual_bytes()
  found = [graph.primitives[each.position : each.stop] for each in found if kept_bytes[each.position : each.stop].any()]
  assert [primitives.count("dot_general") for primitives in found] == [2] * 8 and len(set(found)) == 1


def test_levels_of_unlike_sizes():
  """Down and up through a U-Net: no two blocks have one shape."""

  def unet(down, up, x):
    skips = []
    for weight in down:
      x = jnp.tanh(x @ weight)
      skips.append(x)
      x = x[::2]
    for weight, skip in zip(up, reversed(skips), strict=True):
      x = jnp.concatenate([jnp.repeat(x, 2, axis=0), skip], axis=1)
      x = jnp.tanh(x @ weight)
    return jnp.sum(x**2)

  widths = (8, 16, 32, 64)
  down = [models.normal(0, n // 2, n) for n in widths]
  up = [models.normal(1, below + n, n) for below, n in zip((64, 64, 32, 16), reversed(widths), strict=True)]
  graph, names = graph_of(unet, down, up, models.normal(2, 64, 4))
  blocks = repeated_blocks(graph)
  products = [position for position, name in enumerate(names) if name == "dot_general"]
  of_each = [sum(start <= product < stop for product in products) for start, stop in itertools.pairwise(blocks)]
  assert of_each.count(1) >= 6


def test_blocks_of_pieces_that_come_again_themselves():
  # A convolution with its norm comes again, two of them and what skips both are a block; the first of a stage has one
  # more. By hand a block is under a checkpoint: a single activation crosses on both sides.
  def normed(x, kernel, stride=1):
    layout = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=layout)
    return (y - y.mean((0, 1, 2))) * jax.lax.rsqrt(y.var((0, 1, 2)) + 1e-5)

  def loss(stem, blocks, x):
    x = normed(x, stem)
    for kernels in blocks:
      stride = kernels[0].shape[3] // x.shape[3]
      y = normed(jax.nn.relu(normed(x, kernels[0], stride)), kernels[1])
      x = jax.nn.relu(y + (normed(x, kernels[2], stride) if len(kernels) > 2 else x))
    return jax.nn.logsumexp(x.mean((1, 2)), -1).mean()

  blocks = []
  for width, out in ((8, 8), (8, 8), (8, 16), (16, 16), (16, 32), (32, 32)):
    shapes = [(3, 3, width, out), (3, 3, out, out), *[(1, 1, width, out)] * (width != out)]
    blocks.append([models.normal(i, *shape) for i, shape in enumerate(shapes)])
  args = models.normal(0, 3, 3, 3, 8), blocks, models.normal(1, 2, 16, 16, 3)
  traced = differentiable(trace(loss, args))
  graph = forward_graph(traced.inlined, traced.is_differentiable)
  _, found, *_ = ways_to_tell_blocks(traced.inlined, graph, frozenset())
  convolutions = [graph.primitives[each.position : each.stop].count("conv_general_dilated") for each in found]
  assert convolutions == [2, 2, 3, 2, 3, 2]
  crossed = graph.crossed_bytes()
  # 2 examples, of 16 x 16 with 8 channels to 4 x 4 with 32; the last is what the mean is taken of.
  sizes = [2 * 4 * size**2 * channels for size, channels in ((16, 8), (16, 8), (8, 16), (8, 16), (4, 32), (4, 32))]
  assert crossed[[each.stop for each in found]].tolist() == sizes
  layers = trace(*models.gpt(3)[:1], models.gpt(3)[1:])
  graph = forward_graph(layers.inlined, layers.is_differentiable)
  assert len(list(ways_to_tell_blocks(layers.inlined, graph, frozenset()))) == 1
