"""Steps without remat regions: the HLO engine plans all of the step, or one error says what to wrap and where."""

import jax
import pytest

import coopjax
from coopjax.xla.compile import measure
from tests.support import models
from tests.support.checkpointed_steps import arguments, make_step
from tests.support.checks import assert_same_bits, temp_bytes

MLP, WEIGHTS, X = models.mlp(depth=6)


def sgd(weights, x):
  value, grads = jax.value_and_grad(MLP)(weights, x)
  return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), value


@pytest.mark.parametrize("wrap", [jax.jit, pytest.param(lambda step: step, marks=pytest.mark.sweep)])
def test_the_module_of_the_step_is_planned_and_keeps_its_bits(wrap, tmp_path):
  step = wrap(sgd)
  plan = coopjax.plan(step, WEIGHTS, X, budget=0.5, engine="hlo", planner="peak", effort="fast")
  plan.save(tmp_path / "plan.json")
  applied = coopjax.RematPlan.load(tmp_path / "plan.json").apply(step)
  compiled = jax.jit(applied).lower(WEIGHTS, X).compile()
  assert plan.engine == "hlo" and plan.fits and measure(compiled) == plan.measured
  assert "coop_remat" in compiled.as_text() and plan.recompute_flops > 0
  assert_same_bits(jax.jit(applied)(WEIGHTS, X), jax.jit(sgd)(WEIGHTS, X))
  with pytest.raises(coopjax.PlanMismatchError, match="another step, other shapes"):
    applied(WEIGHTS, X[:8])
  with pytest.raises(coopjax.NoRegionsError, match="by which enable"):
    coopjax.enable(plan=plan)


def test_without_an_engine_for_it_the_error_says_what_to_wrap():
  with pytest.raises(coopjax.NoRegionsError, match=r"sgd has none: wrap the function that is differentiated, or each"):
    coopjax.plan(jax.jit(sgd), WEIGHTS, X, budget=0.5, engine="policy")
  where = r"wrap the body of the scan at \S+hand_rungs.py:\d+ \(loss\) in jax.checkpoint: its 4 turns keep 8.04 MiB"
  with pytest.raises(coopjax.NoRegionsError, match=where):
    coopjax.plan(make_step(wrap=None), *arguments(), budget=0.5, names_only=True)
  with pytest.raises(coopjax.BudgetInfeasibleError) as caught:
    coopjax.plan(make_step(wrap=None), *arguments(), budget=2_000_000, engine="hlo", planner="peak", effort="fast")
  assert any("wrap the body of the scan" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("argnums", [0, None])
def test_a_loss_that_takes_gradients_is_a_function_that_is_differentiated(argnums):
  penalized = lambda weights, x: MLP(weights, x) + (jax.grad(MLP, argnums=1)(weights, x) ** 2).sum()
  plan = coopjax.plan(penalized, WEIGHTS[:3], X, budget=0.9, argnums=argnums, planner="peak", effort="fast")
  gradient = jax.value_and_grad(penalized, (0, 1) if argnums is None else argnums)
  assert plan.fits and not plan.regions
  assert plan.baseline.temp_bytes == temp_bytes(jax.jit(gradient).lower(WEIGHTS[:3], X).compile())


def test_with_argnums_what_takes_gradients_is_no_step():
  with_gradient = jax.value_and_grad(MLP, argnums=1)
  plan = coopjax.plan(with_gradient, WEIGHTS[:3], X, budget=0.9, argnums=0, planner="peak", effort="fast")
  assert plan.fits and plan.baseline.temp_bytes > temp_bytes(jax.jit(with_gradient).lower(WEIGHTS[:3], X).compile())
