"""The HLO engine gives the bits of the undecorated program, however it is differentiated, at any budget."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.scipy.special import erf

import coopjax
from tests.support import models, sweeps
from tests.support.checks import assert_same_bits, temp_bytes

ARGUMENTS = tuple(models.normal(seed, 4096) for seed in range(3))
SUBSETS = [wrt for size in (1, 2, 3) for wrt in itertools.combinations(range(3), size)]
NESTED = {
  "forward over reverse": lambda fn: (
    lambda *args: jax.jvp(lambda b: jax.grad(fn, 1)(args[0], b, args[2]), args[1:2], (jnp.cos(args[1]),))
  ),
  "reverse over forward": lambda fn: jax.grad(
    lambda *args: jax.jvp(lambda b: fn(args[0], b, args[2]), args[1:2], (jnp.cos(args[1]),))[1], 1
  ),
  "reverse over reverse": lambda fn: jax.grad(lambda *args: jnp.sum(jnp.sin(jax.grad(fn, 1)(*args))), 1),
  "batched": lambda fn: jax.vmap(jax.grad(fn, 1), in_axes=(None, 0, None)),
}


@jax.custom_jvp
def ruled(x):
  return x * jnp.sin(x)


@ruled.defjvp
def _(primals, tangents):
  (x,), (dx,) = primals, tangents
  moved = dx + 0.0  # a call of jax.numpy, between two readers of the tangent
  return ruled(x), moved * jnp.sin(x) + 0.5 * dx * x * jnp.cos(x) + 0.5 * moved * x * jnp.cos(x)


def values_read_many_times(x, b, y):
  """Cotangents of `b` and of `g` are summed in an order of their own, as `b + y` is a call where JAX linearizes."""
  g = b + y
  h = ruled(erf(g)) + 0.1 * x
  return jnp.sin(b).mean() + jnp.sin(h).mean() + jnp.sin(g).mean() + jnp.sin(h).mean() + jnp.tanh(x).mean()


def compiled(fn, *args):
  return jax.jit(fn).lower(*args).compile()


@pytest.fixture
def planned():
  with warnings.catch_warnings():
    warnings.simplefilter(
      "ignore", coopjax.BudgetExceededWarning
    )  # a budget that nothing reaches: all that can be done
    yield lambda budget: coopjax.remat(
      values_read_many_times, budget=budget, engine="hlo", planner="peak", on_infeasible="best_effort"
    )


@pytest.mark.optimized
@pytest.mark.parametrize("wrt", sweeps.all_but([(0,), (1, 2), (0, 1, 2)], SUBSETS), ids=str)
def test_a_gradient_by_some_arguments(wrt, planned):
  plain = compiled(jax.value_and_grad(values_read_many_times, wrt), *ARGUMENTS)
  for budget in (1.0, 0.4):
    fitted = compiled(jax.value_and_grad(planned(budget), wrt), *ARGUMENTS)
    assert_same_bits(fitted(*ARGUMENTS), plain(*ARGUMENTS))
    assert temp_bytes(fitted) == temp_bytes(plain) if budget == 1.0 else temp_bytes(fitted) <= temp_bytes(plain)


def test_of_these_some_recompute(planned):
  plain = compiled(jax.value_and_grad(values_read_many_times, SUBSETS[-1]), *ARGUMENTS)
  fitted = compiled(jax.value_and_grad(planned(0.4), SUBSETS[-1]), *ARGUMENTS)
  assert temp_bytes(fitted) < temp_bytes(plain) and "coop_remat" in fitted.as_text()


@pytest.mark.optimized
@pytest.mark.parametrize("way", NESTED)
def test_derivatives_of_derivatives_and_batches(way, planned):
  x, b, y = ARGUMENTS
  args = (x, jnp.stack([b, 2 * b]), y) if way == "batched" else ARGUMENTS
  plain = compiled(NESTED[way](values_read_many_times), *args)
  for budget in (1.0, 0.4):
    assert_same_bits(compiled(NESTED[way](planned(budget)), *args)(*args), plain(*args))


def test_what_xla_is_given_is_the_program_of_the_undecorated_function(planned):
  plain = jax.make_jaxpr(jax.grad(values_read_many_times, 1))(*ARGUMENTS)
  fitted = jax.make_jaxpr(jax.grad(planned(1.0), 1))(*ARGUMENTS)
  assert str(fitted) == str(plain)
