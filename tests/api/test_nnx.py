"""NNX functions and methods under a budget: state as without remat, compiled bytes, recompute in the HLO."""

import doctest
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import coopjax.nnx
from coopjax.planning import blocks
from tests.support import models
from tests.support.checks import assert_same_bits, temp_bytes

WIDTH, BATCH = 32, 512
HIDDEN_BYTES = 4 * BATCH * 4 * WIDTH
X = models.normal(1, BATCH, WIDTH, scale=1.0)
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=2e-5)  # of sums over the batch


def linear(inputs, outputs, rngs):
  return nnx.Linear(inputs, outputs, kernel_init=nnx.initializers.normal(0.1), rngs=rngs)


class Block(nnx.Module):
  """Keeps several values of HIDDEN_BYTES; batch statistics and a counter of random numbers change."""

  def __init__(self, rngs):
    self.up, self.down = linear(WIDTH, 4 * WIDTH, rngs), linear(4 * WIDTH, WIDTH, rngs)
    self.norm, self.dropout = nnx.BatchNorm(4 * WIDTH, rngs=rngs), nnx.Dropout(0.25, rngs=rngs)

  def __call__(self, x, scale=1.0):
    y = self.norm(nnx.gelu(jnp.tanh(self.up(x))))
    return x + scale * self.down(self.dropout(y))


class Model(nnx.Module):
  """Blocks in a row, each called through `call`."""

  def __init__(self, call, depth=4):
    self.call = call
    self.blocks = nnx.List([Block(nnx.Rngs(params=i, dropout=10 + i)) for i in range(depth)])

  def __call__(self, x):
    for block in self.blocks:
      x = self.call(block, x)
    return x


def loss_fn(model, x):
  return jnp.mean(model(x) ** 2)


def step_of(call, depth=4):
  """A compiled step, and what it gives: loss, gradients, and the state afterwards."""
  graph, state = nnx.split(Model(call, depth))

  def step(state, x):
    model = nnx.merge(graph, state)
    loss, grads = nnx.value_and_grad(loss_fn)(model, x)
    return loss, nnx.to_pure_dict(grads), nnx.to_pure_dict(nnx.state(model))

  compiled = jax.jit(step).lower(state, X).compile()
  loss, grads, after = compiled(state, X)
  return compiled, (loss, grads, after)


@functools.cache
def plain_step(depth=4, call=Block.__call__):
  return step_of(call, depth)


@functools.cache
def cost_of_a_call(call):
  """Compiled bytes that one more call in a row costs, and the program of six."""
  compiled = plain_step if call in (Block.__call__, FLAX_REMAT) else plain_step.__wrapped__
  steps = [compiled(depth, call)[0] for depth in (4, 6)]
  return (temp_bytes(steps[1]) - temp_bytes(steps[0])) / 2, steps[1].as_text()


FLAX_REMAT = nnx.remat(Block.__call__)


def as_arrays(tree):
  """Random keys as their data, so that they can be compared."""
  is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
  return [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(tree)]


@pytest.fixture
def decided(monkeypatch):
  """The names of the functions that are planned, one entry a plan."""
  names, choose = [], blocks.choose_anew
  monkeypatch.setattr(blocks, "_choices", type(blocks._choices)())
  monkeypatch.setattr(blocks, "choose_anew", lambda traced, *args: names.append(traced.name) or choose(traced, *args))
  return names


def test_marked_calls_hold_the_step_with_the_same_bits(decided):
  plain, expected = plain_step()
  step, actual = step_of(coopjax.nnx.remat(Block.__call__, budget=0.5, engine="hlo"))
  assert temp_bytes(step) <= 0.5 * temp_bytes(plain)
  assert_same_bits(as_arrays(actual), as_arrays(expected))
  assert decided == ["Block.__call__"]


@pytest.mark.sweep
@pytest.mark.parametrize("budget", [0, HIDDEN_BYTES])
def test_a_call_costs_its_budget_more_than_under_flax_remat(budget, decided):
  (least, _), (most, _) = cost_of_a_call(FLAX_REMAT), cost_of_a_call(Block.__call__)
  actual, text = cost_of_a_call(coopjax.nnx.remat(Block.__call__, budget=budget))
  assert 0.9 * least <= actual <= 1.1 * least + budget < most  # the order of a few small buffers differs
  assert "rematted_computation" in text
  assert len(decided) == 1  # for ten blocks in two models


def test_gradients_statistics_and_dropout_under_checkpoints():
  _, expected = plain_step()
  for budget in (0, 0.5):
    _, actual = step_of(coopjax.nnx.remat(Block.__call__, budget=budget))
    jax.tree.map(close, as_arrays(actual), as_arrays(expected))
  before = nnx.to_pure_dict(nnx.state(Model(Block.__call__)))
  after = actual[2]["blocks"][0]
  assert int(after["dropout"]["rngs"]["count"]) == int(before["blocks"][0]["dropout"]["rngs"]["count"]) + 1
  assert not np.array_equal(after["norm"]["mean"], before["blocks"][0]["norm"]["mean"])


def test_decorated_methods_bound_methods_modules_and_functions(decided):
  class Decorated(Block):
    @coopjax.nnx.remat(budget=0, static_argnames="scale")
    def __call__(self, x, scale=1.0):
      assert isinstance(scale, float)
      return super().__call__(x, scale)

  def run(make, call):
    block = make(nnx.Rngs(0))
    loss, grads = nnx.value_and_grad(lambda block, x: call(block, x).sum())(block, X)
    return as_arrays((loss, nnx.to_pure_dict(grads), nnx.to_pure_dict(nnx.state(block))))

  keep_none = functools.partial(coopjax.nnx.remat, budget=0)
  expected = run(Block, lambda block, x: block(x, 0.5))
  for make, call in (
    (Decorated, lambda block, x: block(x, scale=0.5)),
    (Decorated, lambda block, x: block(x, 0.5)),
    (Block, lambda block, x: keep_none(block.__call__, static_argnums=1)(x, 0.5)),
    (Block, lambda block, x: keep_none(block)(x, scale=0.5)),
    (Block, lambda block, x: keep_none(lambda pair, *, x: pair["block"](x, 0.5))({"block": block}, x=x)),
    (Block, lambda block, x: keep_none(lambda *blocks: blocks[0](x, 0.5))(block, block)),
  ):
    jax.tree.map(close, run(make, call), expected)
  assert len(decided) >= 3
  assert Decorated.__call__.__name__ == "__call__"


def test_new_variables_and_nested_remats():
  class Counting(nnx.Module):
    def __init__(self, rngs):
      self.layer = linear(WIDTH, WIDTH, rngs)

    @coopjax.nnx.remat(budget=0)
    def __call__(self, x):
      y = jnp.sin(coopjax.nnx.remat(lambda layer, x: jnp.cos(layer(x)), budget=0)(self.layer, x))
      self.mean = nnx.BatchStat(y.mean())
      return y

  module = Counting(nnx.Rngs(0))
  grads = nnx.grad(lambda module, x: module(x).sum())(module, X)
  close(module.mean[...], jnp.sin(jnp.cos(module.layer(X))).mean())
  expected = nnx.grad(lambda layer, x: jnp.sin(jnp.cos(layer(x))).sum())(module.layer, X)
  jax.tree.map(close, nnx.to_pure_dict(grads)["layer"], nnx.to_pure_dict(expected))


def test_layers_under_scan():
  class Layer(nnx.Module):
    def __init__(self, rngs):
      self.up, self.down = linear(WIDTH, 4 * WIDTH, rngs), linear(4 * WIDTH, WIDTH, rngs)

    def __call__(self, x):
      return x + self.down(nnx.gelu(jnp.tanh(self.up(x))))

  def step(call, length):
    layers = nnx.vmap(Layer)(nnx.Rngs(0).split(length))
    scan = nnx.scan(call, in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    graph, state = nnx.split(layers)
    loss = lambda state, x: jnp.mean(scan(nnx.merge(graph, state), x) ** 2)
    compiled = jax.jit(jax.value_and_grad(loss)).lower(state, X).compile()
    return temp_bytes(compiled), compiled(state, X)

  remat = coopjax.nnx.remat(Layer.__call__, budget=HIDDEN_BYTES)
  (short, _), (long, ours) = step(remat, 4), step(remat, 8)
  (plain_short, _), (plain_long, theirs) = step(Layer.__call__, 4), step(Layer.__call__, 8)
  assert (long - short) / 4 <= HIDDEN_BYTES + 1.05 * X.nbytes < (plain_long - plain_short) / 4
  jax.tree.map(close, as_arrays(ours), as_arrays(theirs))


def test_flags_that_are_not_static_are_explained():
  block = Block(nnx.Rngs(0))
  choose = lambda block, x, deep: block(block(x)) if deep else block(x)
  with pytest.raises(jax.errors.ConcretizationTypeError) as caught:
    coopjax.nnx.remat(choose, budget=0)(block, X, True)
  assert "static_argnums or static_argnames" in "".join(caught.value.__notes__)
  assert coopjax.nnx.remat(choose, budget=0, static_argnums=-1)(block, X, deep=True).shape == X.shape


def test_statistics_that_the_plain_function_loses_are_warned_of():
  class Normalized(nnx.Module):
    def __init__(self, rngs):
      self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)

  loss = lambda module, x: jnp.mean(module.norm(x) ** 2)
  module = Normalized(nnx.Rngs(0))
  with pytest.warns(coopjax.LostUpdateWarning, match=r"changes args\[0\].norm.mean.* in place.*coopjax.nnx.remat"):
    nnx.grad(coopjax.remat(loss, budget=1.0, engine="policy"))(module, X)
  assert not module.norm.mean[...].any()
  module.eval()  # warnings are errors here: nothing changes, and nothing is said
  nnx.grad(coopjax.remat(loss, budget=1.0, engine="policy"))(module, X)


@pytest.mark.parametrize(
  "fn, options, error, message",
  [
    (loss_fn, {"budget": None}, coopjax.InvalidBudgetError, "NoneType"),
    (loss_fn, {"budget": 1.5}, coopjax.InvalidBudgetError, "1.5"),
    (loss_fn, {"budget": coopjax.Budget.total("1GiB")}, coopjax.InvalidBudgetError, "a total is of a program"),
    (loss_fn, {"budget": 0, "engine": "auto"}, ValueError, "policy, hlo"),
    (loss_fn, {"budget": 0, "static_argnums": 2}, ValueError, "0 model, 1 x"),
    (loss_fn, {"budget": 0, "static_argnames": "train"}, ValueError, "model, x"),
    (Block, {"budget": 0}, TypeError, "decorate the method"),
    (3, {"budget": 0}, TypeError, "not 3"),
  ],
)
def test_bad_input_is_refused_at_once(fn, options, error, message):
  with pytest.raises(error, match=re.escape(message)):
    coopjax.nnx.remat(fn, **options)
  with pytest.raises(error, match=re.escape(message)):
    coopjax.nnx.remat(**options)(fn)


def test_docstring_examples():
  found = doctest.testmod(coopjax.nnx)
  assert found.attempted and not found.failed
