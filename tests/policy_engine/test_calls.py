"""Layers as they are written: functions that are called again, whatever sizes each has."""

import functools
import itertools

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax.jaxpr.trace import TracedFn, differentiable, trace
from coopjax.policy_engine.calls import repeated_calls
from coopjax.policy_engine.residuals import forward_graph
from tests.support import hand_rungs, models
from tests.support.checks import assert_close, temp_bytes

WIDTHS = (24, 32, 32, 48, 48, 64, 96)


def calls_of(loss, *args) -> tuple[TracedFn, list[list[tuple[int, int]]]]:
  traced = differentiable(trace(loss, args))
  return traced, repeated_calls(traced.inlined, forward_graph(traced.inlined, traced.is_differentiable))


def products(traced: TracedFn, spans: list[tuple[int, int]]) -> list[int]:
  names = [equation.primitive.name for equation in traced.inlined.eqns]
  return [names[start:stop].count("dot_general") for start, stop in spans]


def dense(x, weights):
  y = jax.nn.gelu(x @ weights[0]) @ weights[1]
  return y + (x @ weights[2] if len(weights) > 2 else x)


def pyramid(layer):
  """Layers of growing widths, some with a product more."""
  weights = []
  for i, (width, out) in enumerate(itertools.pairwise(WIDTHS)):
    shapes = [(width, 4 * width), (4 * width, out), *[(width, out)] * (width != out)]
    weights.append([models.normal(10 * i + j, *shape) for j, shape in enumerate(shapes)])
  loss = lambda weights, x: jnp.mean(functools.reduce(layer, weights, x) ** 2)
  return loss, weights, models.normal(99, 64, WIDTHS[0])


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, lambda f: jax.vmap(f, (0, None))], ids=["plain", "jit", "vmap"])
def test_a_function_of_unlike_widths(wrap):
  loss, weights, x = pyramid(wrap(dense))
  traced, (spans, *_) = calls_of(loss, weights, x)
  assert products(traced, spans) == [len(of_layer) for of_layer in weights]


def test_a_jitted_function_that_was_traced_elsewhere():
  layer = jax.jit(lambda x, weights: dense(x, weights))
  loss, weights, x = pyramid(layer)
  elsewhere = jax.jit(lambda x: [layer(x, weights[1]) for _ in range(3)][-1])
  _, fresh = calls_of(*pyramid(jax.jit(lambda x, weights: dense(x, weights))))
  elsewhere.trace(models.normal(0, 64, WIDTHS[1]))
  assert calls_of(loss, weights, x)[1] == fresh


def test_two_functions_and_one_that_is_called_once():
  def narrow(x, weights):
    return jnp.tanh(x @ weights)

  def last(x, weights):
    return jax.nn.sigmoid(x @ weights[0]) * (x @ weights[1])

  def loss(weights, x):
    for weight in weights[0]:
      x = narrow(x, weight)
    for layer, weight in zip((dense, dense, last), weights[1], strict=True):
      x = layer(x, weight)
    return jnp.mean(x**2)

  square, wide = models.normal(0, 16, 16), models.normal(1, 16, 64)
  weights = [square] * 3, [[wide, wide.T], [wide, wide.T], [square, square]]
  traced, (spans, *_) = calls_of(loss, weights, models.normal(2, 8, 16))
  assert products(traced, spans) == [1, 1, 1, 2, 2, 2]


def test_methods_that_call_themselves():
  class Level:
    def __init__(self, depth):
      self.weight, self.inner = models.normal(depth, 16, 16), Level(depth - 1) if depth else None

    def block(self, x):
      return jnp.tanh(jnp.sin(x) @ self.weight)

    def __call__(self, x):
      y = self.block(x)
      return y if self.inner is None else self.block(x + self.inner(y[::2]).repeat(2, 0))

  traced, (spans, *_) = calls_of(lambda x: jnp.sum(Level(3)(x)), models.normal(9, 32, 16))
  assert products(traced, spans) == [1] * 7


def test_nothing_is_called_again():
  assert not calls_of(lambda x: jnp.sum(jnp.tanh(jnp.sin(x))), models.normal(0, 8, 8))[1]


def skips(layer):
  """Dilated convolutions whose outputs are summed on the side, for nobody to keep."""

  def loss(weights, x):
    total = 0.0
    for kernel, out in weights:
      x, skipped = layer(x, (kernel, out))
      total = total + skipped
    return jnp.mean(jnp.square(jax.nn.relu(total)))

  weights = [(models.normal(i, 16 + 16 * (i % 3), 32), models.normal(20 + i, 16, 48)) for i in range(6)]
  return loss, weights, models.normal(99, 256, 16)


def gated(x, weights):
  kernel, out = weights
  value, gate = jnp.split(jnp.tile(x, kernel.shape[0] // 16) @ kernel, 2, -1)
  y = jnp.tanh(value) * jax.nn.sigmoid(gate)
  return x + y, y @ out


def pooled(layer):
  """Layers with a maximum between them, which nobody repeats by hand."""

  def loss(weights, x):
    for weight in weights:
      x = jax.lax.reduce_window(layer(x, weight), -jnp.inf, jax.lax.max, (2, 1), (1, 1), "SAME")
    return jnp.mean(x**2)

  weights = [(models.normal(i, 16, 16 * (i + 1)), models.normal(10 + i, 16 * (i + 1), 16)) for i in range(5)]
  return loss, weights, models.normal(99, 128, 16)


@pytest.mark.parametrize(
  ("program", "layer", "policy"),
  [
    pytest.param(pyramid, dense, None, id="pyramid, nothing"),
    pytest.param(skips, gated, jax.checkpoint_policies.dots_saveable, id="skips, products"),
    *(
      pytest.param(*case, marks=pytest.mark.sweep)
      for case in (
        (pyramid, dense, jax.checkpoint_policies.dots_saveable),
        (skips, gated, None),
        (pooled, dense, None),
        (pooled, dense, jax.checkpoint_policies.dots_saveable),
      )
    ),
  ],
)
def test_unlike_layers_repeat_no_more_than_by_hand(program, layer, policy):
  plain, *args = program(layer)
  by_hand, *_ = program(jax.checkpoint(layer, policy=policy))
  hand_bytes = temp_bytes(hand_rungs.compiled(by_hand, args))
  plan = coopjax.plan(plain, *args, budget=hand_bytes, engine="policy")
  hand_rungs.check_no_more(plain, by_hand, plan.apply(plain), args)


def strided(wrap):
  """An encoder and a decoder of convolutions, each layer with a size of its own."""
  norm = lambda x: x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)
  layout = ("NHWC", "HWIO", "NHWC")

  def encode(x, kernel):
    return jax.nn.silu(norm(jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=layout)))

  def decode(x, kernel):
    return jax.nn.silu(norm(jax.lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=layout)))

  encode, decode = wrap(encode), wrap(decode)
  widths = (4, 16, 32, 64)
  inward = [models.normal(i, 3, 3, *pair) for i, pair in enumerate(itertools.pairwise(widths))]
  outward = [models.normal(9 + i, 3, 3, *pair) for i, pair in enumerate(itertools.pairwise(widths[::-1]))]

  def loss(kernels, x):
    y = functools.reduce(encode, kernels[0], x)
    return jnp.mean((functools.reduce(decode, kernels[1], y) - x) ** 2)

  return loss, (inward, outward), models.normal(99, 4, 64, 64, widths[0])


def test_auto_asks_for_checkpoints_where_people_repeat_less():
  plain, *args = strided(lambda layer: layer)
  by_hand, *_ = strided(functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable))
  hand_bytes = temp_bytes(hand_rungs.compiled(by_hand, args))
  plan = coopjax.plan(plain, *args, budget=hand_bytes)
  ours, as_it_is = (hand_rungs.compiled(fn, args) for fn in (plan.apply(plain), plain))
  assert "policy" in plan.engine and "rematted_computation" in ours.as_text()
  assert temp_bytes(ours) <= hand_bytes < temp_bytes(as_it_is)
  assert plan.recompute_flops <= hand_rungs.flops(by_hand, args) - hand_rungs.flops(plain, args)
  assert_close(ours(*args), as_it_is(*args))
