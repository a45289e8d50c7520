"""Steps under `jax.checkpoint` while `coopjax.enable` has a budget: what is planned, and what is left alone."""

import functools

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax import launching
from tests.support.checkpointed_steps import bytes_of, flops_of
from tests.support.checks import assert_close, temp_bytes

WEIGHTS, X = jnp.stack([jnp.eye(64)] * 6), jnp.ones((256, 64))
LIMIT = 1300 * 1024  # 1,824 KiB without checkpoints, 736 with nothing saved


def make_step(wrap=jax.checkpoint, around=lambda loss: loss, **keywords):
  layer = wrap(lambda x, weight: jnp.sin(jnp.tanh(x @ weight) @ weight), **keywords)

  def loss(weights, x):
    return jnp.mean(jax.lax.scan(lambda x, weight: (layer(x, weight), None), x, weights)[0] ** 2)

  return jax.jit(lambda weights, x: jax.grad(around(loss))(weights, x))


def compiled_bytes(step):
  return bytes_of(step, WEIGHTS, X)


def flops(step):
  return flops_of(step, WEIGHTS, X)


def test_a_budget_decides_in_place_of_checkpoints():
  expected, hand_flops, plain_flops = make_step()(WEIGHTS, X), *map(flops, (make_step(), make_step(wrap=lambda fn: fn)))
  with coopjax.enable(LIMIT):
    step = make_step()
    assert compiled_bytes(step) <= LIMIT
    assert_close(step(WEIGHTS, X), expected)
    with coopjax.enable(LIMIT, existing="keep"):
      kept_bytes = compiled_bytes(step)
    (fitted,) = [fitted for (state, *_), fitted in step._known.items() if state.existing == "replace"]
    assert hasattr(make_step(), "_known")
  assert plain_flops < flops(fitted) < hand_flops and not hasattr(make_step(), "_known")
  assert kept_bytes <= compiled_bytes(make_step()) == compiled_bytes(step) < LIMIT  # nothing saved, as it was


def test_what_policies_save_stays_saved():
  everything = jax.checkpoint_policies.everything_saveable
  with coopjax.enable(LIMIT):
    assert compiled_bytes(make_step(policy=everything)) <= LIMIT
  with coopjax.enable(LIMIT, existing="at_least"), pytest.warns(coopjax.BudgetExceededWarning):
    assert compiled_bytes(make_step(policy=everything)) > LIMIT


def test_what_is_not_for_it_is_left_alone(monkeypatch):
  plans = []
  monkeypatch.setattr(launching.StandingSteps, "_plan", lambda *_: plans.append(1))
  own = make_step()
  with coopjax.enable():
    make_step()(WEIGHTS, X)  # no budget
  with coopjax.enable(LIMIT):
    double = jax.jit(lambda x: 2 * x)
    assert float(double(2.0)) == 4.0 and float(jax.grad(double)(2.0)) == 2.0
    make_step(wrap=lambda layer: layer).lower(WEIGHTS, X)  # no checkpoint
    own(WEIGHTS, X)
    assert not plans
    make_step()(WEIGHTS, X)
  assert plans == [1]


@pytest.mark.parametrize("is_jitted_before", [False, True])
@pytest.mark.parametrize("wrap", [lambda layer: layer, jax.checkpoint])
def test_what_the_hook_leaves_over_the_budget_is_planned_in_its_compile(wrap, is_jitted_before, recwarn):
  """A bare step, whose loop keeps what no order spares, and checkpoints that save too much for the budget."""
  everything = {} if wrap is not jax.checkpoint else {"policy": jax.checkpoint_policies.everything_saveable}
  step, compiled_by = make_step(wrap=wrap, **everything), lambda step: step.lower(WEIGHTS, X).compile()
  expected, plain = step(WEIGHTS, X), compiled_by(make_step(wrap=lambda layer: layer))
  with coopjax.enable(LIMIT):
    if not is_jitted_before:
      step = make_step(wrap=wrap, **everything)
    fitted = compiled_by(step)
    assert temp_bytes(fitted) <= LIMIT
    assert "rematted_computation" in fitted.as_text()
    assert_close(step(WEIGHTS, X), expected)
  assert plain.cost_analysis()["flops"] < fitted.cost_analysis()["flops"]  # of one turn
  assert not recwarn.list


def test_what_nothing_brings_within_the_budget_is_as_small_as_may_be_and_told_once():
  with coopjax.enable(LIMIT // 4, existing="keep"), pytest.warns(coopjax.BudgetExceededWarning):
    by_hook = compiled_bytes(make_step(wrap=lambda layer: layer))
  with coopjax.enable(LIMIT // 4), pytest.warns(coopjax.BudgetExceededWarning) as told:
    assert compiled_bytes(make_step(wrap=lambda layer: layer)) < by_hook
  assert len(told) == 1
  # Without a gradient there is nothing to keep.
  with coopjax.enable(1024), pytest.warns(coopjax.BudgetExceededWarning) as told:
    jax.jit(lambda x: jnp.sort(jnp.sin(x) @ x.T, axis=0) @ x).lower(X).compile()
  assert len(told) == 1


def test_a_remat_of_ours_goes_before():
  own = functools.partial(coopjax.remat, budget=LIMIT, engine="policy")
  with coopjax.enable("1GiB"):
    step = make_step(wrap=lambda layer: layer, around=own)
    step.lower(WEIGHTS, X)
    assert all(fitted is step._jitted for fitted in step._known.values())
  with coopjax.plan_steps(LIMIT, engine="policy") as steps:  # a region as any other
    make_step(wrap=lambda layer: layer, around=own).lower(WEIGHTS, X)
  assert len(steps.plans) == 1


def test_what_cannot_be_planned_runs_as_it_is(monkeypatch):
  def refuse(*_):
    raise RuntimeError("no compiler\nin the house")

  monkeypatch.setattr(launching.StandingSteps, "_plan", refuse)
  expected = make_step()(WEIGHTS, X)
  with coopjax.enable(LIMIT), pytest.warns(coopjax.RematNoEffectWarning, match="checkpoints: no compiler$"):
    assert_close(make_step()(WEIGHTS, X), expected)
  with pytest.raises(ValueError, match="existing="):
    coopjax.enable(LIMIT, existing="all")


def test_disable_and_other_blocks_leave_jit_as_they_found_it():
  former = jax.jit
  coopjax.enable(LIMIT)
  with coopjax.plan_steps(LIMIT, engine="policy") as steps:
    coopjax.disable()
    make_step().lower(WEIGHTS, X)
    assert len(steps.plans) == 1
  assert compiled_bytes(make_step()) == compiled_bytes(former(make_step()))
  with coopjax.enable(LIMIT):
    pass
  assert jax.jit is former
