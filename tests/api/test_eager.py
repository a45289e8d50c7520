"""Calls outside of `jax.jit`: operations run one by one, so no mark asks anything of them; a gradient repeats
what it needs, as under `jax.checkpoint`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coopjax
from coopjax.planning.blocks import block_remat
from tests.support import models
from tests.support.checks import assert_close, assert_same_bits

MLP, WEIGHTS, X = models.mlp(depth=6)
REMAT = functools.partial(coopjax.remat, budget=0.8, engine="hlo")


def loss(weights, x):
  """With operations that take temporaries of their own: by themselves, they miss every share."""
  return MLP(weights, jax.nn.softmax(jnp.sort(x, axis=0))) / x.shape[0]


def step(loss):
  return lambda weights, x: jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights, x))


def without_jit(fn, *args):
  with jax.disable_jit():
    return jax.jit(fn)(*args)


NOTHING_KEPT = {
  "plain": lambda fn: fn(WEIGHTS, X),
  "jvp": lambda fn: jax.jvp(functools.partial(fn, WEIGHTS), (X,), (X,)),
  "vmap": lambda fn: jax.vmap(fn, (None, 0))(WEIGHTS, jnp.stack([X, X + 1])),
  "disable_jit": lambda fn: without_jit(fn, WEIGHTS, X),
}


@pytest.mark.parametrize("call", NOTHING_KEPT.values(), ids=NOTHING_KEPT)
@pytest.mark.parametrize("engine, budget", [("auto", 0.5), ("hlo", "1 KiB"), ("policy", "1 KiB"), ("auto", "1 GiB")])
def test_where_nothing_is_kept_for_a_backward_pass_nothing_is_planned(call, engine, budget, outcomes):
  assert_same_bits(call(coopjax.remat(loss, budget=budget, engine=engine)), call(loss))
  assert not outcomes


GRADIENTS = {
  "grad": jax.grad(REMAT(loss)),
  "vjp": lambda *args: jax.vjp(REMAT(loss), *args)[1](1.0)[0],
  "nested": jax.grad(coopjax.remat(lambda *args: REMAT(loss)(*args), budget=0.9)),
  "block": jax.grad(block_remat(budget=0.8, engine="hlo", planner="peak", effort="fast", time_limit_s=None)(loss)),
}


@pytest.mark.parametrize("gradient", GRADIENTS.values(), ids=GRADIENTS)
def test_a_gradient_outside_of_jit_repeats_what_it_needs_and_operations_are_let_alone(gradient, outcomes):
  actual = gradient(WEIGHTS, X)
  assert all(outcome.name.endswith("_and_gradient") for outcome in outcomes)  # of the planning, no operation's
  assert_same_bits(actual, jax.grad(loss)(WEIGHTS, X))


@pytest.mark.parametrize("engine", ["policy", "hlo"])
def test_a_remat_has_its_effect_outside_of_jit(engine):
  fitted = coopjax.remat(MLP, budget=0.8, engine=engine)
  assert_same_bits(jax.grad(fitted)(WEIGHTS, X), jax.grad(MLP)(WEIGHTS, X))
  kept = [sum(leaf.nbytes for leaf in jax.tree.leaves(jax.vjp(fn, WEIGHTS, X)[1])) for fn in (fitted, MLP)]
  assert kept[0] < 0.9 * kept[1]


@pytest.mark.parametrize("engine", ["policy", "auto"])
def test_a_share_that_can_not_be_reached_repeats_all_where_the_passes_are_compiled_apart(engine):
  """No program holds both, so there is nothing that the share could be of."""
  kept = lambda fn: sum(leaf.nbytes for leaf in jax.tree.leaves(jax.vjp(fn, WEIGHTS, X)[1]))
  fitted = coopjax.remat(MLP, budget=0.01, engine=engine, effort="fast")
  for fn, by_hand in ((fitted, jax.checkpoint(MLP)), (jax.jit(fitted), jax.jit(jax.checkpoint(MLP)))):
    assert_close(jax.grad(fn)(WEIGHTS, X), jax.grad(MLP)(WEIGHTS, X))
    assert kept(fn) == kept(by_hand) < kept(MLP)


def test_a_jit_inside_the_gradient_keeps_its_mark_for_a_jit_around_it():
  """JAX keeps the trace of a jitted function, and may come upon it again where the HLO engine can do its work."""
  fitted = jax.jit(coopjax.remat(MLP, budget="1.25 MiB", engine="hlo"))
  with pytest.warns(coopjax.RematNoEffectWarning, match="outside of the jax.jit") as caught:
    grads = jax.grad(fitted)(WEIGHTS, X)
  assert {warning.filename for warning in caught} == {__file__}
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), grads, jax.grad(MLP)(WEIGHTS, X))
  compiled = jax.jit(jax.value_and_grad(fitted)).lower(WEIGHTS, X).compile()
  assert "coop_remat" in compiled.as_text() and compiled.memory_analysis().temp_size_in_bytes <= 1.25 * 2**20


def test_the_plan_of_a_step_that_is_run_without_a_jit(outcomes):
  plan = coopjax.plan(step(REMAT(loss)), WEIGHTS, X, budget=0.8, engine="hlo", planner="peak")
  outcomes.clear()
  updated = plan.apply(step(REMAT(loss)))(WEIGHTS, X)
  assert not outcomes
  assert_same_bits(updated, step(loss)(WEIGHTS, X))
