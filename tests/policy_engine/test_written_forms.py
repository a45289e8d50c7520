"""One computation, written in several ways: what is reached for one of them is reached for all."""

import functools

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax.jaxpr.trace import differentiable, trace
from coopjax.policy_engine.calls import repeated_calls
from coopjax.policy_engine.residuals import forward_graph
from tests.support.checks import assert_close, temp_bytes
from tests.support.models import normal


def layer(x, weight):
  return jnp.tanh(x @ weight)


def last(x, weight):
  return jnp.mean(layer(x, weight) ** 2)


def as_a_loop(weights, x):
  for weight in weights:
    x = jnp.tanh(x @ weight)
  return jnp.mean(x**2)


def of_calls(weights, x):
  return jnp.mean(functools.reduce(layer, weights, x) ** 2)


@functools.wraps(as_a_loop)
def called(*args):
  return as_a_loop(*args)


def by_hand(weights, x):
  x = functools.reduce(jax.checkpoint(layer), weights[:-1], x)
  return jax.checkpoint(last)(x, weights[-1])


ARGUMENTS = [normal(i, 64, 64, scale=0.2) for i in range(5)], normal(9, 512, 64, scale=1.0)


def penalty(fn):
  """The gradient of a gradient's square."""

  def step(weights, x):
    return jax.grad(lambda weights: sum(jnp.vdot(leaf, leaf) for leaf in jax.grad(fn)(weights, x)))(weights)

  return jax.jit(step).lower(*ARGUMENTS).compile()


@pytest.fixture(scope="module")
def hand_bytes():
  return temp_bytes(penalty(by_hand))


@pytest.mark.parametrize("fn", [as_a_loop, called, of_calls])
def test_the_least_of_a_gradient_penalty_is_held(fn, hand_bytes):
  plain, planned = (penalty(each) for each in (fn, coopjax.remat(fn, budget=hand_bytes, engine="policy")))
  assert temp_bytes(planned) <= hand_bytes < 0.8 * temp_bytes(plain)
  assert "rematted_computation" in planned.as_text()
  assert_close(planned(*ARGUMENTS), plain(*ARGUMENTS), rtol=1e-4, atol=1e-6)


def test_blocks_do_not_depend_on_who_calls_a_function():
  def blocks(fn):
    traced = differentiable(trace(fn, ARGUMENTS))
    return repeated_calls(traced.inlined, forward_graph(traced.inlined, traced.is_differentiable))

  assert blocks(as_a_loop) == blocks(called)
  assert [len(spans) for spans in blocks(called)] == [5]
