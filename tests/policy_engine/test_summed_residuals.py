"""Layers that XLA:CPU fuses into one op that reads them all: no order helps, a checkpoint between layers does."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coopjax
from coopjax import compat
from coopjax.hlo_engine import hook
from coopjax.hlo_engine.mark import Mark
from coopjax.jaxpr import cost
from coopjax.planning import function_plan
from tests.support import models, sweeps
from tests.support.checks import assert_close, temp_bytes

WEIGHTS = [models.normal(i, 64, 64) for i in range(12)]


def loss(weights, x):
  for weight in weights:
    x = 1.1 * (jnp.tanh(x @ weight) + 0.1 * x)
  return jnp.mean(x**2)


def test_what_the_hlo_engine_can_not_do_for_one_example_is_left_to_checkpoints_under_vmap():
  examples = models.normal(50, 8, 512, 64)

  def compiled(fn):
    of_all = lambda weights, x: jax.vmap(fn, in_axes=(None, 0))(weights, x).mean()
    return jax.jit(jax.value_and_grad(of_all)).lower(WEIGHTS, examples).compile()

  plain = compiled(loss)
  with warnings.catch_warnings():  # all examples together take somewhat more than in proportion
    warnings.simplefilter("ignore", coopjax.BudgetExceededWarning)
    fitted = compiled(coopjax.remat(loss, budget=0.5))
  plain_bytes, fitted_bytes = (each.memory_analysis().temp_size_in_bytes for each in (plain, fitted))
  assert fitted_bytes <= 0.6 * plain_bytes  # the HLO engine alone: 0.92
  assert "rematted_computation" in fitted.as_text()
  expected = plain(WEIGHTS, examples)
  jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-8), fitted(WEIGHTS, examples), expected)


def test_of_each_examples_gradient_auto_repeats_no_more_than_checkpoints_around_blocks(monkeypatch):
  def block(x, weights):
    up, down = weights
    return x + jax.nn.gelu(x @ up) @ down

  def loss_with(wrap):
    def loss(weights, x):
      for layer in zip(*weights):
        x = wrap(block)(x, layer)
      return jnp.mean(x**2)

    return loss

  args = (models.normal(51, 6, 64, 256) / 8, models.normal(52, 6, 256, 64) / 16), models.normal(53, 16, 64, 64)

  def traced(loss):
    return jax.jit(jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0))).trace(*args)

  dots = lambda fn: jax.checkpoint(fn, policy=jax.checkpoint_policies.dots_saveable)
  plain, by_hand = traced(loss_with(lambda fn: fn)), traced(loss_with(dots))
  as_it_is, hand_bytes = plain.lower().compile(), temp_bytes(by_hand.lower().compile())
  ours = traced(coopjax.remat(loss_with(lambda fn: fn), budget=hand_bytes))
  made, plan_module = [], hook.plan_module
  monkeypatch.setattr(hook, "plan_module", lambda *args, **how: made.append(plan_module(*args, **how)) or made[-1])
  planned = ours.lower().compile()
  flops = lambda program: cost.jaxpr_flops(compat.dce(program.jaxpr.jaxpr))
  repeated = flops(ours) - flops(plain) + sum(outcome.recompute_flops for outcome in made)
  assert 0 < repeated <= flops(by_hand) - flops(plain)  # the HLO engine alone: eight times as much
  assert temp_bytes(planned) <= hand_bytes < temp_bytes(as_it_is)
  assert "rematted_computation" in planned.as_text()
  assert_close(planned(*args), as_it_is(*args), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("what", sweeps.all_but(["remat"], ["remat", "plan", "step"]))
def test_trials_are_made_with_less_effort(monkeypatch, what):
  given, plan = [], hook._plan

  def recording(module_bytes, marks, *args, **kwargs):
    given.extend(mark.effort for mark in marks if isinstance(mark, Mark))
    return plan(module_bytes, marks, *args, **kwargs)

  monkeypatch.setattr(hook, "_plan", recording)
  monkeypatch.setattr(function_plan, "_choices", function_plan.KeptChoices())
  monkeypatch.setenv("COOPJAX_CACHE_DIR", "")
  weights, rows = WEIGHTS[:6], models.normal(51, 500, 64)
  options = {"budget": 0.4, "on_infeasible": "best_effort"}
  with warnings.catch_warnings():  # whether it is reached is not the question here
    warnings.simplefilter("ignore", coopjax.BudgetExceededWarning)
    if what == "plan":
      coopjax.plan(loss, weights, rows, **options)
    elif what == "remat":
      jax.jit(jax.grad(coopjax.remat(loss, **options))).lower(weights, rows).compile()
    else:
      region = coopjax.remat(loss, budget=0.5)
      step = lambda weights, x: jax.tree.map(jnp.subtract, weights, jax.grad(region)(weights, x))
      assert "policy" in coopjax.plan(step, weights, rows, **options).engine
  # The program that runs; of the function, whose budget is missed, what comes nearest to it, and the least, too.
  most = 3 if what == "remat" else 1
  assert set(given) <= {"fast", "normal"} and "fast" in given and given.count("normal") <= most
  assert given[-1] == "normal" or what == "step"  # whose last compile is a trial if the budget is not reached
