"""Linen modules under a budget: variables and random numbers as without, compiled bytes, recompute in the HLO."""

import doctest
import functools
import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import coopjax.linen
from coopjax.planning import blocks
from tests.support import ROOT, models
from tests.support.checks import assert_same_bits, temp_bytes

WIDTH, BATCH = 32, 512
INPUT_BYTES = 4 * BATCH * WIDTH
HIDDEN_BYTES = 4 * INPUT_BYTES  # of each of a block's wide values
X = models.normal(1, BATCH, WIDTH, scale=1.0)
RNGS = {"params": jax.random.key(0), "dropout": jax.random.key(2)}
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)


def dense(features):
  return nn.Dense(features, kernel_init=nn.initializers.normal(0.1))


class Block(nn.Module):
  """Keeps several values of HIDDEN_BYTES, and has a state and random numbers of its own."""

  @nn.compact
  def __call__(self, x, train):
    y = nn.tanh(dense(4 * WIDTH)(x))
    y = nn.BatchNorm(use_running_average=not train)(nn.gelu(dense(4 * WIDTH)(y)))
    y = nn.Dropout(0.25, deterministic=not train)(y)
    return x + dense(WIDTH)(y)


class Model(nn.Module):
  """Blocks in a row."""

  block: type[nn.Module] = Block
  depth: int = 4

  @nn.compact
  def __call__(self, x, train=True):
    for i in range(self.depth):
      x = self.block(name=f"block{i}")(x, train)
    return x


def fitted(**options):
  return coopjax.linen.remat(Block, static_argnums=2, **options)


@functools.cache
def variables_of(depth=4):
  return jax.jit(Model(depth=depth).init)(RNGS, X)


def compile_step(model, variables):
  def loss(params, state, x, key):
    y, updates = model.apply({"params": params, **state}, x, rngs={"dropout": key}, mutable=["batch_stats"])
    return jnp.mean(y**2), updates

  params, state = variables["params"], {k: v for k, v in variables.items() if k != "params"}
  arguments = (params, state, X, RNGS["dropout"])
  compiled = jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(*arguments).compile()
  return compiled, lambda: compiled(*arguments)


@pytest.fixture
def decided(monkeypatch):
  """The names of the functions that are planned, one entry a plan."""
  names, choose = [], blocks.choose_anew
  monkeypatch.setattr(blocks, "_choices", type(blocks._choices)())
  monkeypatch.setattr(blocks, "choose_anew", lambda traced, *args: names.append(traced.name) or choose(traced, *args))
  return names


FLAX_REMAT = nn.remat(Block, static_argnums=2)


@functools.cache
def plain_step(depth=4, block=Block):
  return compile_step(Model(block, depth), variables_of(depth))


def test_blocks_marked_for_the_hlo_engine_hold_the_step_with_the_same_bits(decided):
  plain, run_plain = plain_step()
  step, run = compile_step(Model(fitted(budget=0.5, engine="hlo")), variables_of())
  assert temp_bytes(step) <= 0.5 * temp_bytes(plain)
  assert_same_bits(run(), run_plain())  # losses, gradients, batch statistics
  assert len(decided) == 1 and decided[0].endswith("Block.__call__")


def test_a_share_of_one_leaves_blocks_as_they_are():
  step, run = compile_step(Model(fitted(budget=1.0)), variables_of())
  assert temp_bytes(step) == temp_bytes(plain_step()[0])
  assert_same_bits(run(), plain_step()[1]())


def test_initialization_is_the_plain_modules_and_plans_nothing(decided):
  assert_same_bits(jax.jit(Model(fitted(budget=0.5)).init)(RNGS, X), variables_of())
  assert not decided


@functools.cache
class Tied(Model):
  """One block, its parameters used at each depth."""

  @nn.compact
  def __call__(self, x, train=True):
    block = self.block(name="block0")
    for _ in range(self.depth):
      x = block(x, train)
    return x


@pytest.mark.sweep
def test_a_block_may_be_called_several_times(decided):
  variables = jax.jit(Tied().init)(RNGS, X)
  assert_same_bits(jax.jit(Tied(fitted(budget=0.5)).init)(RNGS, X), variables)
  plain, run_plain = compile_step(Tied(), variables)
  step, run = compile_step(Tied(fitted(budget=0.5, engine="hlo")), variables)
  assert temp_bytes(step) <= 0.5 * temp_bytes(plain)
  assert_same_bits(run(), run_plain())
  assert len(decided) == 1


@functools.cache
def cost_of_a_block(block):
  """Compiled bytes that one more block in a row costs, and bytes from its forward to its backward pass."""
  compiled = plain_step if block in (Block, FLAX_REMAT) else plain_step.__wrapped__
  steps = [compiled(depth, block)[0] for depth in (2, 4)]
  module, variables = block(), jax.eval_shape(lambda: Block().init(RNGS, X, True))
  apply = lambda v, x: module.apply(v, x, True, rngs={"dropout": RNGS["dropout"]}, mutable=["batch_stats"])
  handed = jax.eval_shape(lambda v, x: jax.vjp(apply, v, x)[1], variables, X)
  num_bytes = sum(
    leaf.size * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(handed)
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
  )
  return (temp_bytes(steps[1]) - temp_bytes(steps[0])) / 2, num_bytes, steps[1]


@pytest.mark.sweep
@pytest.mark.parametrize("budget", [0, "600 KB", 0.6], ids=str)
def test_a_block_costs_its_budget_more_than_under_flax_remat(budget, decided):
  budget_bytes = {"600 KB": 600_000, 0.6: 0.6 * 4 * HIDDEN_BYTES}.get(budget, budget)
  compiled, handed, step = cost_of_a_block(fitted(budget=budget))
  least_compiled, least_handed, _ = cost_of_a_block(FLAX_REMAT)
  most_compiled, most_handed, _ = cost_of_a_block(Block)
  assert least_handed <= handed <= least_handed + budget_bytes < most_handed
  assert least_compiled <= compiled <= least_compiled + budget_bytes < most_compiled
  assert (handed > least_handed) == (budget != 0)
  assert "rematted_computation" in step.as_text()
  assert len(decided) == 1  # for seven blocks in three models


def test_gradients_state_and_dropout_under_checkpoints():
  run_plain = plain_step()[1]
  for budget in (0, 0.5):
    _, run = compile_step(Model(fitted(budget=budget)), variables_of())
    jax.tree.map(close, run(), run_plain())


@pytest.mark.sweep
def test_nothing_kept_is_flax_remat_and_more_is_less_recompute():
  reference = plain_step(block=FLAX_REMAT)[0]
  steps = [compile_step(Model(fitted(budget=budget)), variables_of())[0] for budget in (0, 2 * HIDDEN_BYTES)]
  assert temp_bytes(steps[0]) <= 1.02 * temp_bytes(reference)
  flops = [step.cost_analysis()["flops"] for step in (*steps, plain_step()[0])]
  assert flops[0] > flops[1] >= flops[2]
  assert fitted(budget=0).__name__ == FLAX_REMAT.__name__ == "CheckpointBlock"


def test_dropout_masks_are_those_of_the_plain_module():
  class Mask(nn.Module):
    @nn.compact
    def __call__(self, x):
      return x * nn.Dropout(0.5, deterministic=False)(jnp.ones_like(x))

  remat = coopjax.linen.remat(Mask, budget=0)
  masks = [
    nn.Sequential([cls(name=f"m{i}") for i in range(2)]).apply({}, X, rngs={"dropout": RNGS["dropout"]})
    for cls in (Mask, remat)
  ]
  assert_same_bits(*masks)


class Layer(nn.Module):
  """A layer to scan over."""

  @nn.compact
  def __call__(self, x, _):
    y = nn.Dropout(0.1, deterministic=False)(nn.gelu(dense(4 * WIDTH)(x)))
    return x + dense(WIDTH)(nn.tanh(dense(4 * WIDTH)(y))), None


@pytest.mark.sweep
def test_layers_under_scan(decided):
  def step(layer, length):
    scanned = nn.scan(layer, variable_axes={"params": 0}, split_rngs={"params": True, "dropout": True}, length=length)()
    variables = jax.jit(scanned.init)(RNGS, X, None)
    loss = lambda v, x, key: jnp.mean(scanned.apply(v, x, None, rngs={"dropout": key})[0] ** 2)
    arguments = (variables, X, RNGS["dropout"])
    compiled = jax.jit(jax.value_and_grad(loss)).lower(*arguments).compile()
    return temp_bytes(compiled), compiled(*arguments)

  remat = coopjax.linen.remat(Layer, budget=HIDDEN_BYTES)
  (short, _), (long, ours) = step(remat, 4), step(remat, 8)
  (plain_short, _), (plain_long, theirs) = step(Layer, 4), step(Layer, 8)
  assert (long - short) / 4 <= HIDDEN_BYTES + 1.05 * INPUT_BYTES < (plain_long - plain_short) / 4
  jax.tree.map(close, ours, theirs)
  assert len(decided) == 1


def test_decorators_on_classes_methods_and_functions(decided):
  keep_none = functools.partial(coopjax.linen.remat, budget=0)

  @coopjax.linen.remat(budget=0)
  class Inner(nn.Module):
    features: int = WIDTH

    @nn.compact
    def __call__(self, x):
      return jnp.sin(dense(self.features)(x))

  class Outer(nn.Module):
    def setup(self):
      self.inner = functools.partial(Inner, features=WIDTH)()

    @coopjax.linen.remat(budget=0, static_argnames="scale")
    def __call__(self, x, scale="none"):
      y = keep_none(lambda module, x: module.inner(x) + 1)(self, jnp.cos(x))
      return 2 * y if scale == "twice" else y

    def decode(self, x):
      return self.inner(x)

  outer = Outer()
  variables = outer.init(RNGS, X)
  kernel, bias = jax.tree.leaves(variables)[::-1]
  loss = lambda v: outer.apply(v, X, scale="twice").mean()
  expected = lambda v: (2 * (jnp.sin(jnp.cos(X) @ jax.tree.leaves(v)[1] + jax.tree.leaves(v)[0]) + 1)).mean()
  assert kernel.shape == (WIDTH, WIDTH) and bias.shape == (WIDTH,)
  jax.tree.map(close, jax.jit(jax.value_and_grad(loss))(variables), jax.value_and_grad(expected)(variables))
  assert any(name.endswith("Outer.__call__") for name in decided)
  decided.clear()
  both = keep_none(functools.partial(Outer), methods=("__call__", "decode"))()
  jax.grad(lambda v: both.apply(v, X, method="decode").sum())(variables)
  assert any(name.endswith("Outer.decode") for name in decided)


def test_static_arguments_count_as_flax_counts_them():
  for numbers, names in ((2, ()), ((-1,), ()), ((), "train")):
    block = coopjax.linen.remat(Block, budget=0, static_argnums=numbers, static_argnames=names)()
    variables = block.init(RNGS, X, False)
    for args, kwargs in (((X, False), {}), ((X,), {"train": False})):
      close(block.apply(variables, *args, **kwargs), Block().apply(variables, X, False))
  with pytest.raises(jax.errors.ConcretizationTypeError) as caught:
    coopjax.linen.remat(Block, budget=0)().apply(variables, X, False)
  assert "static_argnums or static_argnames" in "".join(caught.value.__notes__)


@pytest.mark.parametrize(
  "target, options, error, message",
  [
    (Block, {"budget": None}, coopjax.InvalidBudgetError, "NoneType"),
    (Block, {"budget": "12 bananas"}, coopjax.InvalidBudgetError, "12 bananas"),
    (Block, {"budget": coopjax.Budget.total("1GiB")}, coopjax.InvalidBudgetError, "a total is of a program"),
    (Block, {"budget": -1}, coopjax.InvalidBudgetError, "positive"),
    (Block, {"budget": 0, "engine": "hlo"}, coopjax.InvalidBudgetError, "positive"),
    (Block, {"budget": 0, "engine": "auto"}, ValueError, "policy, hlo"),
    (Block, {"budget": 0, "planner": "best"}, ValueError, "best"),
    (Block, {"budget": 0, "static_argnums": 0}, ValueError, "the module"),
    (Block, {"budget": 0, "static_argnums": (1, 3)}, ValueError, "0 self, 1 x, 2 train"),
    (Block, {"budget": 0, "static_argnames": "training"}, ValueError, "self, x, train"),
    (Block, {"budget": 0, "methods": "encode"}, ValueError, "no such method"),
    (lambda module, x: x, {"budget": 0, "methods": "encode"}, ValueError, "only for a module class"),
    (Block(), {"budget": 0}, TypeError, "wrap its class"),
    (int, {"budget": 0}, TypeError, "module class"),
    (3, {"budget": 0}, TypeError, "module class"),
  ],
)
def test_bad_input_is_refused_at_once(target, options, error, message):
  with pytest.raises(error, match=re.escape(message)):
    coopjax.linen.remat(target, **options)
  with pytest.raises(error, match=re.escape(message)):
    coopjax.linen.remat(**options)(target)


def test_a_budget_that_changes_nothing_says_so(decided):
  with pytest.warns(coopjax.RematNoEffectWarning, match="keeps .* within the budget of 1.00 GiB as it is"):
    step, _ = compile_step(Model(fitted(budget="1GiB")), variables_of())
  assert temp_bytes(step) == temp_bytes(plain_step()[0])

  class Integers(nn.Module):
    def __call__(self, x):
      return x + 1

  block = coopjax.linen.remat(Integers, budget=0)()
  assert block.apply({}, 3) == 4
  with pytest.warns(coopjax.RematNoEffectWarning, match="no floating-point"):
    assert jax.grad(lambda x: x * block.apply({}, 3))(1.0) == 4


def test_flax_is_imported_when_it_is_asked_for():
  code = (
    "import sys, coopjax, coopjax.api\nassert 'flax' not in sys.modules\n"
    "coopjax.linen.remat, coopjax.nnx.remat\nassert 'flax' in sys.modules"
  )
  subprocess.run([sys.executable, "-c", code], check=True)
  code = (
    "import sys; sys.modules['flax'] = None\nfor name in ('linen', 'nnx'):\n"
    "  try: __import__(f'coopjax.{name}')\n  except ImportError as error: print(error)"
  )
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
  for name in ("linen", "nnx"):
    assert f"coopjax.{name} needs Flax: pip install 'coopjax[flax]'" in done.stdout, done.stderr


@pytest.mark.sweep
def test_example_resnet_holds_what_it_promises():
  small = ["--width", "8", "--blocks", "1", "--batch-size", "16", "--steps", "2"]
  command = [sys.executable, "-m", "tests.support.quick", str(ROOT / "examples" / "flax_resnet.py"), *small]
  done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "JAX_PLATFORMS": "cpu"})
  assert done.returncode == 0, json.dumps([done.stdout, done.stderr])
  assert re.search(r"step in 40% .*\(same bits\)", done.stdout) and "blocks keep 50%" in done.stdout


def test_docstring_examples():
  found = doctest.testmod(coopjax.linen)
  assert found.attempted and not found.failed
