"""A plan is for what the user differentiates by: told to `plan`, seen in the trace by `remat`."""

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax.jaxpr.trace import fn_and_gradient, trace, with_respect_to
from coopjax.planning import function_plan
from tests.support import models, sweeps
from tests.support.checks import assert_close, assert_same_bits, temp_bytes

LOSS, WEIGHTS, X = models.mlp(depth=8, batch=512)


def compiled(fn, argnums):
  return jax.jit(jax.value_and_grad(fn, argnums)).lower(WEIGHTS, X).compile()


@pytest.mark.parametrize("argnums", sweeps.all_but([0, -1], [0, 1, (0, 1), -1]), ids=str)
def test_a_plan_is_of_the_gradient_by_these_arguments(argnums):
  plan, plain = coopjax.plan(LOSS, WEIGHTS, X, budget=0.6, argnums=argnums), compiled(LOSS, argnums)
  fitted = compiled(plan.apply(LOSS), argnums)
  assert plan.baseline.temp_bytes == temp_bytes(plain)
  assert temp_bytes(fitted) == plan.measured.temp_bytes <= 0.6 * temp_bytes(plain)
  assert "coop_remat" in fitted.as_text()
  assert_same_bits(fitted(WEIGHTS, X), plain(WEIGHTS, X))


def test_they_differ_in_memory_so_a_frontier_is_of_them_too():
  by_weights, by_all = (
    coopjax.frontier(LOSS, WEIGHTS, X, budgets=[0.9], argnums=argnums, engine="hlo", planner="peak")
    for argnums in (0, None)
  )
  assert by_weights.references[0].temp_bytes == temp_bytes(compiled(LOSS, 0))
  assert by_all.references[0].temp_bytes == temp_bytes(compiled(LOSS, (0, 1))) != by_weights.references[0].temp_bytes


def test_what_is_not_there_or_no_functions_is_refused():
  with pytest.raises(ValueError, match="argnums=2: loss is called with 2 positional arguments"):
    coopjax.plan(LOSS, WEIGHTS, X, budget=0.6, argnums=2)
  with pytest.raises(ValueError, match="a step, which takes the gradients that it takes"):
    coopjax.plan(jax.grad(coopjax.remat(LOSS, budget=0.6)), WEIGHTS, X, budget=0.6, argnums=0)
  with pytest.raises(coopjax.NotDifferentiableError):
    coopjax.plan(lambda weights, x, step: LOSS(weights, x), WEIGHTS, X, jnp.int32(3), budget=0.6, argnums=2)


def test_remat_plans_the_gradient_that_is_taken():
  """512 KiB of 1.125 MiB are 46%: by weights alone, a gradient takes more, so a plan of all would keep too much."""
  plain = compiled(LOSS, 0)
  for share in (0.6, 0.47):
    fitted = compiled(coopjax.remat(LOSS, budget=share, engine="policy"), 0)
    assert temp_bytes(fitted) <= share * temp_bytes(plain)
    assert fitted.as_text().count(" dot(") > plain.as_text().count(" dot(")
    assert_close(fitted(WEIGHTS, X), plain(WEIGHTS, X))


def seen(argnums, transform=lambda fn: fn):
  found = []

  def looking(*args):
    found.append(trace(lambda x, y, z: x * y + z, args).is_differentiable)
    return args[0] * args[1] + args[2]

  jax.make_jaxpr(transform(jax.grad(looking, argnums)))(1.0, 2.0, 3.0)
  return found


def test_traces_show_what_a_gradient_is_taken_with_respect_to():
  assert seen(1) == [(False, True, False)]
  assert seen((0, 2), lambda fn: jax.grad(lambda *args: sum(fn(*args)))) == [(True, False, True)]
  assert seen(0, lambda fn: lambda x, y, z: jax.jvp(lambda y: fn(x, y, z), (y,), (y,))) == [(True, False, False)]
  assert seen(2, lambda fn: lambda x, y, z: jax.vmap(fn, (None, 0, None))(x, jnp.stack([y, y]), z)) == [
    (False, False, True)
  ]


def test_inside_a_jit_that_is_differentiated_they_do_not():
  found = []

  @jax.jit
  def looking(x, y):
    found.append(trace(jnp.multiply, (x, y)).is_differentiable)
    return x * y

  jax.make_jaxpr(jax.grad(looking))(1.0, 2.0)
  assert found == [(True, True)]


@pytest.mark.parametrize("share", [0.5, pytest.param(0.3, marks=pytest.mark.sweep)])
def test_a_best_effort_is_no_worse_than_no_remat(share):
  """A user's policy that keeps everything leaves nothing to win, and each checkpoint costs copies of what it keeps."""

  def loss(weights, x):
    for weight in weights:
      y = jnp.tanh(x @ weight)
      x = x + y * jax.nn.sigmoid(y)
    return jnp.mean(x.astype(jnp.float32) ** 2)

  weights, x = [models.normal(i, 64, 64).astype(jnp.bfloat16) for i in range(6)], models.normal(9, 256, 64)
  arguments = weights, x.astype(jnp.bfloat16)
  plain = jax.jit(jax.value_and_grad(loss)).lower(*arguments).compile()
  everything = jax.checkpoint_policies.everything_saveable
  with pytest.warns(coopjax.BudgetExceededWarning):
    fitted = jax.jit(
      jax.value_and_grad(
        coopjax.remat(loss, budget=share, engine="policy", policy=everything, on_infeasible="best_effort")
      )
    ).lower(*arguments)
  assert temp_bytes(fitted.compile()) <= temp_bytes(plain)
  assert_same_bits(fitted.compile()(*arguments), plain(*arguments))


def frozen_first(weights, x):
  """What a gradient by the weights alone keeps nothing of, and one by all inputs most; then what both keep."""
  for _ in range(12):
    x = jnp.tanh(x @ FROZEN)
  for weight in weights:
    x = x + jnp.tanh(x @ weight) * jax.nn.sigmoid(x)
  return x


FROZEN, BRANCH = models.normal(5, 64, 64) / 10, list(models.normal(6, 6, 64, 64) / 10)
ROWS = models.normal(7, 256, 64)


@pytest.mark.parametrize("engine", ["policy", pytest.param("auto", marks=pytest.mark.sweep)])
def test_a_share_of_a_function_of_arrays_is_of_the_gradient_that_is_taken(engine):
  """A plan for all inputs kept 0.8 of the temporaries for a share of 0.6: it had twice as many to take it of."""
  step = lambda fn: jax.jit(jax.grad(lambda weights: jnp.mean(fn(weights, ROWS) ** 2))).lower(BRANCH).compile()
  plain = step(frozen_first)
  by_all = jax.jit(jax.grad(lambda *args: jnp.mean(frozen_first(*args) ** 2), (0, 1))).lower(BRANCH, ROWS).compile()
  assert temp_bytes(by_all) > 1.5 * temp_bytes(plain)
  alone, avals = fn_and_gradient(with_respect_to(trace(frozen_first, (BRANCH, ROWS)), 0))
  alone_bytes = temp_bytes(jax.jit(alone).lower(*avals).compile())
  assert temp_bytes(plain) <= alone_bytes < 1.1 * temp_bytes(plain)
  for share in (0.6, 0.45):
    fitted = step(coopjax.remat(frozen_first, budget=share, engine=engine, effort="fast"))
    assert temp_bytes(fitted) <= share * alone_bytes
  assert_close(fitted(BRANCH), plain(BRANCH))


def test_a_layer_is_planned_as_it_is_differentiated_in_each_place(monkeypatch):
  found = []
  anew = function_plan.choose_anew
  monkeypatch.setattr(
    function_plan,
    "choose_anew",
    lambda traced, *args, **kwargs: (found.append(traced.is_differentiable), anew(traced, *args, **kwargs))[1],
  )
  layer = coopjax.remat(lambda weight, x: jnp.tanh(jnp.tanh(x @ weight) @ weight), budget=0.91, engine="policy")

  def loss(weights, x):
    for weight in weights:
      x = layer(weight, x)
    return jnp.mean(x**2)

  jax.jit(jax.grad(loss)).lower(BRANCH, ROWS)
  assert found == [(True, False), (True, True)]
