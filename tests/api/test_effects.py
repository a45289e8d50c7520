"""Side effects under a remat: none that has an order, and prints no more often than under `jax.checkpoint`."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

import coopjax
from tests.support.checks import temp_bytes
from tests.support.layered import WEIGHTS, X, assert_recomputes_within, layer, remat, step


def prints_of(wrap, ordered=False):
  """Which layer printed, in order, in one step with its gradient; and that step, compiled."""
  seen = []

  def printing(x, weights):
    for i, weight in enumerate(weights):
      x = layer(x, weight)
      jax.debug.callback(lambda _, i=i: seen.append(i), x[0, 0], ordered=ordered)
    return x

  fitted = step(printing, wrap).lower(X, WEIGHTS).compile()
  jax.block_until_ready(fitted(X, WEIGHTS))
  jax.effects_barrier()
  return seen, fitted


@pytest.mark.parametrize("ordered", [False, True])
def test_prints_run_once_under_the_hlo_engine(ordered):
  seen, fitted = prints_of(remat(0.6, "hlo"), ordered)
  assert sorted(seen) == list(range(6)) and (seen == sorted(seen) or not ordered)
  assert_recomputes_within(0.6 * temp_bytes(prints_of(lambda fn: fn, ordered)[1]), fitted)


def test_prints_run_no_more_often_than_under_checkpoint():
  """The policy engine's checkpoints repeat what lies in them, prints included: at most what JAX's own repeat."""
  plain, checkpointed, (seen, fitted) = map(prints_of, (lambda fn: fn, jax.checkpoint, remat(0.7, "policy")))
  assert plain[0] == list(range(6)) and set(seen) == set(range(6))
  assert len(seen) <= len(checkpointed[0]) == 12
  assert_recomputes_within(0.7 * temp_bytes(plain[1]), fitted)


def test_ordered_effects_are_refused_under_a_gradient():
  def fn(x):
    io_callback(lambda _: None, None, x, ordered=True)
    return jnp.sin(x)

  def beside(x):
    return (fn(jax.lax.stop_gradient(x)), jnp.sin(x))[1]

  with pytest.raises(NotImplementedError):
    jax.grad(jax.checkpoint(beside))(1.0)
  for refused in (
    lambda: jax.jit(jax.grad(coopjax.remat(beside, budget=0.5)))(1.0),
    lambda: coopjax.plan(beside, 1.0, budget=0.5),
    lambda: coopjax.plan(jax.grad(coopjax.remat(beside, budget=0.5)), 1.0, budget=0.5),
  ):
    with pytest.raises(coopjax.OrderedEffectError, match=r"beside has an ordered side effect at .*test_effects.py:\d+"):
      refused()


def test_ordered_effects_without_a_gradient_happen_once():
  seen = []

  def fn(x):
    io_callback(lambda _: seen.append(1), None, x, ordered=True)
    return jnp.sin(x)

  for count, run in enumerate((coopjax.remat(fn, budget=0.5), jax.jit(coopjax.remat(fn, budget=0.5))), start=1):
    assert run(1.0) == jnp.sin(1.0)
    jax.effects_barrier()
    assert len(seen) == count
