"""What a budget is missed by is found once: for equal blocks, for all calls in a process, for the program around."""

import functools
import gc

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax.errors import copy_of
from coopjax.planning import around, function_plan, plannable
from tests.support import models
from tests.support.checks import assert_close, assert_same, temp_bytes

WEIGHTS = list(models.normal(4, 5, 64, 64) / 10)
X = models.normal(3, 128, 64)


def blocks(remat, traces=None):
  """Blocks that alone keep what they must, and together more."""

  @remat
  def block(weight, x):
    return jnp.tanh(x @ weight) + jnp.sin(x)

  def loss(weights, x):
    if traces is not None:
      traces.append("loss")
    for weight in weights:
      x = block(weight, x)
    return jnp.mean(x**2)

  return loss


@pytest.fixture
def planned(monkeypatch):
  """The names of what is planned, in turn."""
  names = []

  def noted(make):
    def noting(program, *args, **kwargs):
      names.append(program.name)
      return make(program, *args, **kwargs)

    return noting

  monkeypatch.setattr(function_plan, "choose_anew", noted(function_plan.choose_anew))
  monkeypatch.setattr(plannable, "plan_step", noted(plannable.plan_step))
  monkeypatch.setattr(function_plan, "_choices", function_plan.KeptChoices())
  monkeypatch.setenv("COOPJAX_CACHE_DIR", "")
  return names


def remat(share, **asked):
  return functools.partial(coopjax.remat, budget=share, engine="policy", effort="fast", **asked)


def test_blocks_that_miss_their_share_are_planned_once_and_the_program_around_them_once(planned):
  traces = []
  fitted = jax.jit(jax.grad(blocks(remat(0.7), traces)))
  gradients = fitted(WEIGHTS, X)
  assert planned == ["block", "loss"]
  of_plan = len(traces)
  assert_same(gradients, jax.jit(jax.grad(blocks(lambda block: block)))(WEIGHTS, X))
  fitted(WEIGHTS, X)
  assert planned == ["block", "loss"] and len(traces) == of_plan


def test_a_function_alone_in_a_program_that_misses_is_planned_for_less(planned):
  """The norm needs all gradients at once, of which the function's plan knows nothing."""
  weights, x = list(models.normal(4, 8, 64, 64) / 10), models.normal(5, 512, 64)

  def loss(weights, x):
    for weight in weights:
      x = x + jnp.tanh(jnp.sin(x @ weight) @ weight)
    return jnp.mean(x**2)

  def step_of(loss):
    def step(weights, x):
      grads = jax.grad(loss)(weights, x)
      norm = jnp.sqrt(sum(jnp.vdot(grad, grad) for grad in grads))
      return [weight - grad / norm for weight, grad in zip(weights, grads, strict=True)]

    return jax.jit(step, donate_argnums=0).lower(weights, x).compile()

  plain, fitted = step_of(loss), step_of(coopjax.remat(loss, budget=0.4, engine="policy"))
  assert planned == ["loss", "loss"]
  assert temp_bytes(fitted) <= 0.4 * temp_bytes(plain)
  assert "rematted_computation" in fitted.as_text()
  for ours, expected in zip(*(each(list(map(jnp.array, weights)), x) for each in (fitted, plain)), strict=True):
    assert_close(ours, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
  "kind",
  [
    jax.jit,
    jax.grad,
    pytest.param(jax.jacrev, marks=pytest.mark.sweep),
    pytest.param(lambda loss: jax.grad(jax.jit(loss)), marks=pytest.mark.sweep),
  ],
)
def test_where_no_program_holds_them_they_are_planned_once(planned, kind):
  for _ in range(2):
    kind(blocks(remat(0.7)))(WEIGHTS, X)
  assert set(planned) == {"block"}
  assert len(planned) <= 2  # as differentiated in the first place, and in the others


def test_a_program_that_misses_is_not_planned_again(planned):
  fitted = jax.jit(jax.grad(blocks(remat(0.05))))
  errors = []
  for _ in range(2):
    with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
      fitted(WEIGHTS, X)
    errors.append(caught.value)
  assert planned == ["block", "loss"]
  assert str(errors[0]) == str(errors[1]) and errors[0].smallest_bytes == errors[1].smallest_bytes > 0
  assert errors[0].__notes__ == errors[1].__notes__ and errors[0] is not errors[1]
  least = errors[0].smallest_bytes
  assert temp_bytes(jax.jit(jax.grad(blocks(remat(0.7)))).lower(WEIGHTS, X).compile()) >= least


def test_a_plan_that_was_not_found_is_not_looked_for_again(planned):
  loss = blocks(lambda block: block)
  for _ in range(2):
    with pytest.raises(coopjax.BudgetInfeasibleError):
      coopjax.plan(jax.jit(jax.grad(blocks(remat(0.7)))), WEIGHTS, X, budget=0.05, engine="policy")
  assert planned == ["loss"]
  for _ in range(2):  # a fuse may have ended the search
    with pytest.raises(coopjax.BudgetInfeasibleError):
      coopjax.plan(jax.jit(jax.grad(blocks(remat(0.7)))), WEIGHTS, X, budget=0.06, engine="policy", time_limit_s=1000)
  assert planned == ["loss"] * 3
  assert coopjax.plan(loss, WEIGHTS, X, budget=0.9, engine="policy").fits


def test_nothing_of_a_trace_is_kept_once_it_is_over():
  before = set(around._programs)  # of tests that hold theirs
  jax.jit(jax.grad(blocks(remat(0.7))))(WEIGHTS, X)
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    jax.jit(jax.grad(blocks(remat(0.05))))(WEIGHTS, X)
  del caught
  gc.collect()
  assert set(around._programs) <= before


def test_an_error_raised_again_has_its_own_notes_and_place():
  error = coopjax.BudgetInfeasibleError("no plan", budget_bytes=1, smallest_bytes=2, op="dot", largest=())
  error.add_note("a note")
  try:
    raise error
  except coopjax.BudgetInfeasibleError:
    again = copy_of(error)
  again.add_note("another")
  assert str(again) == "no plan" and vars(again) | {"__notes__": error.__notes__} == vars(error)
  assert again.__traceback__ is None and error.__notes__ == ["a note"]


def test_an_unreachable_share_of_all_of_a_region_is_left_to_the_region():
  loss = blocks(lambda block: block)
  fitted = jax.jit(jax.value_and_grad(remat(0.9)(remat(0.2)(loss)))).lower(WEIGHTS, X).compile()
  as_it_is = jax.jit(jax.value_and_grad(loss)).lower(WEIGHTS, X).compile()
  assert temp_bytes(fitted) <= 0.9 * temp_bytes(as_it_is)
  assert "rematted_computation" in fitted.as_text()
  assert_same(fitted(WEIGHTS, X), as_it_is(WEIGHTS, X))


@pytest.mark.parametrize("budget", [0.2, 60_000])
def test_a_program_that_is_a_function_and_its_gradient_is_not_planned_once_more(planned, budget):
  loss = blocks(lambda block: block)
  with pytest.raises(coopjax.BudgetInfeasibleError) as missed:
    jax.jit(jax.value_and_grad(coopjax.remat(loss, budget=budget, engine="policy")))(WEIGHTS, X)
  assert planned == ["loss"]
  as_it_is = jax.jit(jax.value_and_grad(loss)).lower(WEIGHTS, X).compile()
  assert missed.value.unaided_bytes == temp_bytes(as_it_is) > missed.value.smallest_bytes
  held = jax.jit(jax.value_and_grad(coopjax.remat(loss, budget=missed.value.smallest_bytes, engine="policy")))
  assert temp_bytes(held.lower(WEIGHTS, X).compile()) <= missed.value.smallest_bytes
