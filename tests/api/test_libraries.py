"""Equinox modules and Keras models through the plain function: gradients, compiled bytes, recomputed ops."""

import functools
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import coopjax
from tests.support import models, sweeps
from tests.support.checks import assert_same, temp_bytes

# The policy engine plans the function and its gradient with respect to every argument, not the step around it.
BUDGETS = {"hlo": 0.5, "policy": 0.55}
COMPILED = {"hlo": 0.5, "policy": 0.62}


def check(step, args, engine):
  """A step with and without remat: bytes, recomputed ops, results (the same bits under the HLO engine); the results."""
  wrappers = lambda fn: fn, functools.partial(coopjax.remat, budget=BUDGETS[engine], engine=engine)
  steps = [step(wrap) for wrap in wrappers]
  plain, fitted = (jax.jit(lambda *args, step=step: step(*args)).lower(*args).compile() for step in steps)
  assert temp_bytes(fitted) <= COMPILED[engine] * temp_bytes(plain)
  assert ("coop_remat" if engine == "hlo" else "rematted_computation") in fitted.as_text()
  exact, actual = {"rtol": 0.0, "atol": 0.0} if engine == "hlo" else {"rtol": 1e-4, "atol": 1e-6}, fitted(*args)
  assert_same(actual, plain(*args), **exact)
  return actual


# --- Equinox ----------------------------------------------------------------------------------------------------


class Residual(eqx.Module):
  """A normalized two-layer perceptron, added to its input."""

  norm: eqx.nn.LayerNorm
  mlp: eqx.nn.MLP

  def __init__(self, width, key):
    self.norm = eqx.nn.LayerNorm(width)
    self.mlp = eqx.nn.MLP(width, width, 2 * width, 1, activation=jnp.tanh, key=key)

  def __call__(self, x):
    return x + self.mlp(self.norm(x))


class Network(eqx.Module):
  """Blocks one after the other, for one example ``[width]``."""

  blocks: list[Residual]

  def __init__(self, depth, width):
    self.blocks = [Residual(width, key) for key in jax.random.split(jax.random.key(0), depth)]

  def __call__(self, x):
    for block in self.blocks:
      x = block(x)
    return x

  def of_rows(self, rows):
    return jax.vmap(self)(rows)


@pytest.fixture(scope="module")
def network():
  return Network(depth=4, width=32), models.normal(1, 1024, 32)


@pytest.mark.sweep
def test_equinox_value_and_grad_of_the_array_partition(network):
  model, rows = network
  arrays, static = eqx.partition(model, eqx.is_array)

  def loss(arrays, rows):
    return jnp.mean(eqx.combine(arrays, static).of_rows(rows) ** 2)

  check(lambda wrap: eqx.filter_value_and_grad(wrap(loss)), (arrays, rows), "policy")


@pytest.mark.parametrize(
  "method, engine", [("__call__", "hlo"), pytest.param("of_rows", "policy", marks=pytest.mark.sweep)]
)
def test_equinox_bound_methods(network, method, engine):
  """The module's arrays are tracers that the method closes over; their gradients flow all the same.

  ``__call__`` is of one example, and batched from outside: only the HLO engine sees all of them.
  """
  model, rows = network
  arrays, static = eqx.partition(model, eqx.is_array)

  def step(wrap):
    def loss(arrays, rows):
      bound = wrap(getattr(eqx.combine(arrays, static), method))
      return jnp.mean((jax.vmap(bound) if method == "__call__" else bound)(rows) ** 2)

    return eqx.filter_value_and_grad(loss)

  check(step, (arrays, rows), engine)


@pytest.mark.sweep
def test_equinox_filtered_transformations(network):
  """Modules whole, static leaves and all, through Equinox's own jit and gradient."""
  model, rows = network

  @eqx.filter_jit
  def step(model, rows, remat):
    def loss(model):
      arrays, static = eqx.partition(model, eqx.is_array)
      of_arrays = lambda arrays: jnp.mean(eqx.combine(arrays, static).of_rows(rows) ** 2)
      return (coopjax.remat(of_arrays, budget=0.5, engine="hlo") if remat else of_arrays)(arrays)

    return eqx.filter_value_and_grad(loss)(model)

  plain, fitted = (step.lower(model, rows, remat).compile() for remat in (False, True))
  assert temp_bytes(fitted.compiled) <= 0.5 * temp_bytes(plain.compiled)
  assert "coop_remat" in fitted.compiled.as_text()
  actual, expected = (jax.tree.leaves(eqx.filter(step(model, rows, remat), eqx.is_array)) for remat in (True, False))
  assert_same(actual, expected, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("engine", sweeps.all_but(["policy"], ["hlo", "policy"]))
def test_equinox_modules_with_leaves_that_are_no_arrays(network, engine):
  """As Equinox's own transformations have it, activation functions and all; results may have such leaves, too."""
  model, rows = network
  assert not all(map(eqx.is_array, jax.tree.leaves(model)))

  def loss(model, rows, form):
    return jnp.mean(model.of_rows(rows) ** 2), (model.blocks[0].mlp, form)

  kinds = []

  def step(wrap):
    def of_arrays(arrays, rows):
      whole = eqx.combine(arrays, eqx.filter(model, eqx.is_array, inverse=True))
      (value, (mlp, form)), grads = eqx.filter_value_and_grad(wrap(loss), has_aux=True)(whole, rows, "square")
      kinds.append((mlp.layers[0].weight.shape, mlp.activation, form))
      return value, eqx.filter(grads, eqx.is_array)

    return of_arrays

  check(step, (eqx.filter(model, eqx.is_array), rows), engine)
  assert set(kinds) == {((64, 32), model.blocks[0].mlp.activation, "square")}


@pytest.mark.sweep
def test_equinox_steps_are_planned(network):
  """A step of modules, with a jit of Equinox's."""
  model, rows = network
  fitted = coopjax.remat(lambda model, rows: jnp.mean(model.of_rows(rows) ** 2), budget=0.9)

  @eqx.filter_jit
  def step(model, rows):
    value, grads = eqx.filter_value_and_grad(fitted)(model, rows)
    return eqx.apply_updates(model, jax.tree.map(lambda grad: -0.1 * grad, grads)), value

  plan = coopjax.plan(step, model, rows, budget=0.5)
  assert plan.fits and plan.regions and any(decision.decision == "recomputed" for decision in plan.decisions)
  (updated, value), (expected, expected_value) = plan.apply(step)(model, rows), step(model, rows)
  assert updated.blocks[0].mlp.activation is model.blocks[0].mlp.activation
  assert_same(
    eqx.filter((updated, value), eqx.is_array),
    eqx.filter((expected, expected_value), eqx.is_array),
    rtol=1e-5,
    atol=1e-8,
  )


# --- Keras ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classifier():
  """``(loss, args)`` of a Keras model that normalizes over the batch and drops units at random."""
  os.environ["KERAS_BACKEND"] = "jax"  # read once, when Keras is imported
  import keras

  keras.utils.set_random_seed(0)
  layers = [keras.Input((32,))]
  for _ in range(5):
    layers += [keras.layers.Dense(64, activation="tanh"), keras.layers.BatchNormalization()]
  model = keras.Sequential([*layers, keras.layers.Dropout(0.1), keras.layers.Dense(10)])

  def loss(trainable, non_trainable, rows, labels):
    logits, non_trainable = model.stateless_call(trainable, non_trainable, rows, training=True)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), non_trainable

  values = lambda variables: [variable.value for variable in variables]
  labels = jax.random.randint(jax.random.key(3), (2048,), 0, 10)
  args = values(model.trainable_variables), values(model.non_trainable_variables), models.normal(2, 2048, 32), labels
  return loss, args


@pytest.mark.sweep
@pytest.mark.parametrize("engine", ["hlo", "policy"])
def test_keras_stateless_call(classifier, engine):
  """The moving averages and the state of the dropout's generator come out as without remat."""
  loss, args = classifier
  step = lambda wrap: jax.value_and_grad(wrap(loss), has_aux=True)
  (_, state), _ = check(step, args, engine)
  assert len(state) == len(args[1]) and all((np.asarray(a) != np.asarray(b)).any() for a, b in zip(state, args[1]))


@pytest.mark.sweep
def test_keras_model_trains_in_a_plan(classifier):
  """A plan made from shapes is carried out in a jitted step that updates parameters and state."""
  loss, args = classifier
  plan = coopjax.plan(loss, *jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args), budget=0.5)
  assert plan.fits and any(decision.decision == "recomputed" for decision in plan.decisions)

  def train(loss):
    trainable, non_trainable, rows, labels = args

    @jax.jit
    def step(trainable, non_trainable):
      (value, state), grads = jax.value_and_grad(loss, has_aux=True)(trainable, non_trainable, rows, labels)
      return [p - 0.1 * g for p, g in zip(trainable, grads)], state, value

    values = []
    for _ in range(3):
      trainable, non_trainable, value = step(trainable, non_trainable)
      values.append(float(value))
    return values

  planned, plain = train(plan.apply(loss)), train(loss)
  assert planned == plain and planned[-1] < planned[0]
