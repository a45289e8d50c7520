"""A warning that a remat has no effect comes where that is so, of the program that is compiled, at the user's line."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coopjax
import coopjax.nnx
from tests.support import models

MLP, WEIGHTS, X = models.mlp(depth=6)
PROGRAMS = {
  "gradient": lambda fn: jax.jit(jax.grad(fn))(WEIGHTS, X),
  "forward": lambda fn: jax.jit(fn)(WEIGHTS, X),
  "eager": lambda fn: fn(WEIGHTS, X),
  "eager_gradient": lambda fn: jax.grad(fn)(WEIGHTS, X),
  "jvp": lambda fn: jax.jit(lambda x: jax.jvp(lambda x: fn(WEIGHTS, x), (x,), (x,)))(X),
  "hvp": lambda fn: jax.jit(lambda v: jax.jvp(lambda w: jax.grad(fn)(w, X), (WEIGHTS,), (v,)))(WEIGHTS),
  "twice": lambda fn: jax.jit(jax.grad(lambda w: fn(w, X) + fn(w, 2 * X)))(WEIGHTS),
}


def warned(name, **options):
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    jax.block_until_ready(PROGRAMS[name](coopjax.remat(MLP, planner="auto", **options)))
  assert {warning.filename for warning in caught} <= {__file__}
  return [(warning.category, str(warning.message)) for warning in caught]


@pytest.mark.parametrize(
  "name, engine",
  [
    *((name, "hlo") for name in PROGRAMS),
    ("eager_gradient", "policy"),
    pytest.param("hvp", "policy", marks=pytest.mark.sweep),
  ],
)
def test_nothing_is_said_where_a_share_is_held(name, engine):
  assert not warned(name, budget=0.8, engine=engine)


# The function and its gradient take 1.5 MiB: a budget of 2 MiB changes nothing of that, but of programs that take more.
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_is_planned_after_all_is_not_said_to_be_left_alone(name):
  said = warned(name, budget="2 MiB", engine="hlo")
  assert [category for category, _ in said] == [coopjax.RematNoEffectWarning] * (name == "gradient"), said


@pytest.mark.parametrize("engine", ["policy", "auto", "hlo"])
def test_a_program_over_its_budget_is_not_said_to_be_within_it(engine):
  """One without a gradient, which a budget promises nothing of, with more beside the remat than the budget."""
  fitted, large = coopjax.remat(MLP, budget="2 MiB", engine=engine), jnp.ones((1024, 1024))
  with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    tangents = lambda x: jax.jvp(lambda x: fitted(WEIGHTS, x), (x,), (x,))
    jax.block_until_ready(jax.jit(lambda x, large: (tangents(x), jnp.sin(large @ large) @ large))(X, large))
  categories = [warning.category for warning in said]
  assert categories == [coopjax.BudgetExceededWarning] * (engine != "policy"), list(map(str, said))


def test_a_program_over_its_share_is_told_once_and_of_the_share_that_was_asked_for():
  """What the engines divide the work by is another share, of other bytes."""

  def loss(weights, x):
    for weight in weights:
      x = jnp.tanh(x @ weight)
    return jnp.sum(x**2)

  fitted = coopjax.remat(loss, budget=0.5, engine="auto", on_infeasible="best_effort")
  square = jnp.ones((64, 64))
  with pytest.warns(coopjax.BudgetExceededWarning) as said:
    jax.jit(jax.grad(lambda weights, x: fitted(weights[:3], x)))([square] * 6, jnp.ones((128, 64)))
  messages = [str(warning.message) for warning in said]
  assert all("its budget of 64.00 KiB, 0.5 of" in message or "no plan brings loss" in message for message in messages)
  assert sum(message.startswith("the program") for message in messages) == 1, messages


@pytest.mark.parametrize("engine", ["policy", "hlo"])
def test_a_gradient_within_its_budget_is_told_once(engine):
  ((category, message),) = warned("gradient", budget="1 GiB", engine=engine)
  assert category is coopjax.RematNoEffectWarning and "within the budget of 1.00 GiB" in message


def test_what_has_no_gradient_is_said_only_where_one_is_taken():
  counts = coopjax.remat(lambda x: jnp.sum(x > 0), budget=0.5)
  jax.jit(counts)(X)
  with pytest.warns(coopjax.RematNoEffectWarning, match="no floating-point output") as caught:
    jax.jit(jax.grad(lambda x: jnp.sum(x) * counts(x)))(X)
  assert [warning.filename for warning in caught] == [__file__]


def remat_of(engine):
  return lambda loss: coopjax.remat(loss, budget=0.5, engine=engine)


@pytest.mark.parametrize(
  "wrap, is_told",
  [(remat_of("policy"), True), (remat_of("auto"), False), (lambda loss: coopjax.nnx.remat(loss, budget=0.5), True)],
  ids=["policy", "auto", "block"],
)
def test_what_can_be_differentiated_in_the_trace_around_alone_runs_as_it_is(wrap, is_told):
  """A `custom_vmap` has no gradient but by what its rule makes of the batch."""

  @jax.custom_batching.custom_vmap
  def doubled_sine(x):
    return 2 * jnp.sin(x)

  doubled_sine.def_vmap(lambda size, in_batched, x: (2 * jnp.sin(x), in_batched[0]))

  def loss(x):
    return jnp.sum(jnp.tanh(doubled_sine(x) @ WEIGHTS[0]) ** 2)

  batch = jnp.stack([X, 2 * X])
  with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    gradient = jax.jit(jax.grad(lambda x: jax.vmap(wrap(loss))(x).sum()))(batch)
  np.testing.assert_allclose(gradient, jax.jit(jax.grad(lambda x: jax.vmap(loss)(x).sum()))(batch), rtol=1e-5)
  if is_told:
    ((category, message),) = [(warning.category, str(warning.message)) for warning in said]
    assert category is coopjax.RematNoEffectWarning and "loss could not be planned: ValueError: Lin" in message
