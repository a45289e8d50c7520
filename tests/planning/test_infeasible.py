"""A budget that nothing reaches: the error names the op that forces it, with the user's line, in a loop's body too."""

import functools
import inspect
import re
import warnings

import jax
import jax.numpy as jnp
import pytest

import coopjax
from tests.support import models
from tests.support.checks import assert_same, assert_same_bits, num_dots, temp_bytes

X = models.normal(1, 256, 64)
WEIGHTS = models.normal(2, 2, 64, 64)
WIDE = 2048  # columns of the one large product


def large_product(x, weight):
  x = jnp.tanh(x @ weight)
  large = x @ jnp.tile(x.T, (1, WIDE // 256))  # the large one
  return x + jnp.sin(large).mean(1, keepdims=True)  # and its cosine


def straight(x, weights):
  return jnp.mean(large_product(x, weights[0]) ** 2)


def scanned(x, weights):
  return jnp.mean(jax.lax.scan(lambda x, weight: (large_product(x, weight), None), x, weights)[0] ** 2)


def lines_of(fn, *comments):
  lines, first = inspect.getsourcelines(fn)
  return [f"test_infeasible.py:{first + i}" for i, line in enumerate(lines) if any(each in line for each in comments)]


@pytest.mark.parametrize(
  ("fn", "engine", "is_step"),
  [
    (straight, "hlo", False),
    (straight, "policy", False),
    (straight, "auto", True),
    pytest.param(scanned, "policy", False, marks=pytest.mark.sweep),
    (scanned, "policy", True),
    (scanned, "auto", False),
  ],
)
def test_a_single_op_over_the_budget_is_named_with_its_line(fn, engine, is_step):
  weights, is_scanned = models.normal(2, 4, 64, 64), fn is scanned
  if is_step:
    loss = coopjax.remat(fn, budget=0.9)
    fn = jax.jit(lambda x, weights: jax.grad(loss, argnums=(0, 1))(x, weights))
  with pytest.raises(coopjax.BudgetInfeasibleError, match="what forces the smallest is") as caught:
    coopjax.plan(fn, X, weights, budget="1MiB", engine=engine)
  error = caught.value
  assert "test_infeasible.py:" in error.op  # a fusion has one line of several
  num_bytes, kind, source = error.largest[0]
  assert (num_bytes, kind) == (256 * WIDE * 4, f"f32[256,{WIDE}]")
  assert any(line in source for line in lines_of(large_product, "the large one", "its cosine"))
  assert is_scanned == bool(re.search(r"inside while\S* \S*test_infeasible.py", str(error)))


def test_what_a_loop_stacks_is_the_loops():
  weights = models.normal(2, 4, 64, 64)
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    coopjax.plan(scanned, X, weights, budget="1MiB", engine="hlo")
  assert "while" in caught.value.op and caught.value.largest[0][1] == f"f32[4,256,{WIDE}]"


def test_an_op_that_xla_made_without_a_line_is_named_with_what_leads_to_it():
  def convolutions(weights, x):
    for weight in weights:
      x = jax.nn.relu(
        jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
      )
    return x.mean()

  weights, images = [models.normal(i, 3, 3, 16, 16) for i in range(4)], models.normal(9, 4, 32, 32, 16)
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    coopjax.plan(convolutions, weights, images, budget="64KiB", engine="hlo", effort="fast")
  (bound,) = [line for line in str(caught.value).splitlines() if line.startswith("no schedule whatever")]
  (line,) = lines_of(convolutions, "conv_general_dilated")
  assert re.search(rf"convolution\S* \(of \S+ \S*{re.escape(line)}\) needs them around it", bound)


def two_losses(loss):
  """Both gradients are needed at once: a program larger than the function that is under remat."""
  return jax.jit(jax.grad(lambda x, weights: jnp.sin(loss(x, weights)) * jnp.cos(loss(jnp.sin(x), weights)), (0, 1)))


def layered(x, weights):
  for weight in weights:
    x = jnp.tanh(x @ weight)
  return jnp.mean(x**2)


def test_the_users_own_program_is_refused_too_and_the_least_it_names_is_reached():
  weights, loss = models.normal(2, 8, 64, 64), layered
  compiled = lambda fn: two_losses(fn).lower(X, weights).compile()
  remat = functools.partial(coopjax.remat, loss, engine="hlo", effort="fast")
  with pytest.raises(coopjax.BudgetInfeasibleError) as alone:
    coopjax.plan(loss, X, weights, budget=1, engine="hlo", effort="fast")
  least_alone = alone.value.smallest_bytes
  with pytest.raises(coopjax.BudgetInfeasibleError, match="what forces the smallest is") as caught:
    compiled(remat(budget=least_alone))
  error = caught.value
  assert error.budget_bytes == least_alone < error.smallest_bytes and len(error.largest) == 3
  plain, fitted = compiled(loss), compiled(remat(budget=error.smallest_bytes))
  assert temp_bytes(fitted) <= error.smallest_bytes < temp_bytes(plain) and "coop_remat" in fitted.as_text()
  assert_same_bits(fitted(X, weights), plain(X, weights))
  with pytest.warns(coopjax.BudgetExceededWarning):
    nearest = compiled(remat(budget=least_alone, on_infeasible="best_effort"))
  assert least_alone < temp_bytes(nearest) <= error.smallest_bytes


@pytest.mark.sweep
def test_what_the_policy_engine_plans_is_held_to_its_budget_when_it_is_compiled():
  weights = models.normal(2, 8, 64, 64)
  compiled = lambda fn: two_losses(fn).lower(X, weights).compile()
  remat = functools.partial(coopjax.remat, layered, engine="policy")
  with pytest.raises(coopjax.BudgetInfeasibleError) as alone:
    coopjax.plan(layered, X, weights, budget=1, engine="policy")
  least_alone = alone.value.smallest_bytes
  with pytest.raises(coopjax.BudgetInfeasibleError, match=r"no plan brings(?s:.*)what forces") as caught:
    compiled(remat(budget=least_alone))
  error = caught.value
  assert error.budget_bytes == least_alone < error.smallest_bytes < temp_bytes(compiled(layered))
  assert temp_bytes(compiled(remat(budget=error.smallest_bytes))) <= error.smallest_bytes
  with pytest.warns(coopjax.BudgetExceededWarning, match="over its budget"):
    nearest = compiled(remat(budget=least_alone, on_infeasible="best_effort"))
  assert least_alone < temp_bytes(nearest) < temp_bytes(compiled(layered))
  jax.jit(remat(budget=least_alone)).lower(X, weights).compile()  # without a gradient, nothing is promised
  total_bytes = coopjax.Budget.total(least_alone + X.nbytes + weights.nbytes)
  with pytest.raises(coopjax.BudgetInfeasibleError):
    compiled(remat(budget=total_bytes))


@pytest.mark.parametrize("engine", [pytest.param("policy", marks=pytest.mark.sweep), "hlo"])
def test_examples_of_a_vmap_share_a_budget_in_bytes(engine):
  weights, xs = list(models.normal(2, 8, 64, 64)), X.reshape(2, -1, 64)
  each = lambda fn: jax.jit(jax.vmap(jax.value_and_grad(fn, (0, 1)), in_axes=(0, None))).lower(xs, weights).compile()
  remat = functools.partial(coopjax.remat, layered, engine=engine, effort="fast")
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    each(remat(budget=1))
  plain, fitted = each(layered), each(remat(budget=caught.value.smallest_bytes))
  assert temp_bytes(fitted) <= caught.value.smallest_bytes < temp_bytes(plain)
  assert num_dots(fitted) > num_dots(plain)
  assert_same(fitted(xs, weights), plain(xs, weights))


def test_an_evaluation_misses_no_share():
  """Of a sum and what is added, live together, 60% are too little; but a share is of a gradient, which is not here."""
  weights = models.normal(2, 8, 64, 64)

  @functools.partial(coopjax.remat, budget=0.6, engine="hlo", effort="fast")
  def loss(x, weights):
    for weight in weights:
      x = x + jnp.sort(jnp.sin(x @ weight), 0)
    return jnp.mean(x**2)

  evaluate = jax.jit(lambda x: loss(x, weights)).lower(X)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    evaluate.compile()


def test_passes_that_are_compiled_apart_run():
  weights = models.normal(2, 8, 64, 64)

  def loss(x, weights):
    for weight in weights:
      x = x + jnp.sort(jnp.sin(x @ weight), 0)
    return jnp.mean(x**2)

  expected = jax.grad(jax.jit(loss))(X, weights)
  with pytest.warns(coopjax.RematNoEffectWarning, match="outside of the jax.jit"):
    fitted = jax.grad(jax.jit(coopjax.remat(loss, budget=0.6, engine="hlo", effort="fast")))(X, weights)
  assert_same_bits(fitted, expected)


@pytest.mark.parametrize("is_step", [False, True])
def test_where_a_gradient_of_a_loop_is_taken_inside_is_told(is_step):
  """What that keeps, no checkpoint around all of it can have it repeat."""

  def penalized(x, weights):
    value, slope = jax.value_and_grad(scanned)(x, weights)
    return value + jnp.sum(slope**2)

  def notes(fn):
    remat = coopjax.remat(fn, budget=1000, engine="policy")
    with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
      coopjax.plan(jax.grad(remat) if is_step else fn, X, WEIGHTS, budget=1000, engine="policy")
    return [note for note in caught.value.__notes__ if "takes the gradient of a loop" in note]

  assert len(told := notes(penalized)) == 1 and "around the function that penalized differentiates" in told[0]
  assert not notes(scanned)
