"""Arrays that a function closes over are constants of the program that runs, and so of those that plans go by."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coopjax
from tests.support import models
from tests.support.checks import assert_same, num_dots, temp_bytes

FROZEN = [np.random.default_rng(i).integers(-127, 127, (64, 64), np.int8) for i in range(6)]
ADAPTERS = [(models.normal(i, 64, 4), models.normal(10 + i, 4, 64)) for i in range(6)]
X = models.normal(20, 256, 64)


def quantized(frozen, adapters, x):
  """XLA makes the constants floats when it compiles; of arguments, in every step."""
  for weight, (down, up) in zip(frozen, adapters, strict=True):
    x = jnp.tanh(x @ (0.01 * weight.astype(jnp.float32)) + (x @ down) @ up)
  return jnp.mean(x**2)


def compiled(loss):
  return jax.jit(jax.value_and_grad(loss)).lower(ADAPTERS, X).compile()


@pytest.mark.parametrize(
  "kind, engine",
  [
    (np.asarray, "policy"),
    (jnp.asarray, "hlo"),
    pytest.param(np.asarray, "hlo", marks=pytest.mark.sweep),
    pytest.param(jnp.asarray, "policy", marks=pytest.mark.sweep),
  ],
)
def test_a_plans_numbers_are_those_of_the_program_with_constants(engine, kind):
  frozen = list(map(kind, FROZEN))
  loss = lambda adapters, x: quantized(frozen, adapters, x)
  plain, as_arguments = compiled(loss), jax.jit(jax.value_and_grad(quantized, 1)).lower(FROZEN, ADAPTERS, X).compile()
  assert temp_bytes(plain) < temp_bytes(as_arguments)
  plan = coopjax.plan(loss, ADAPTERS, X, budget=0.8, engine=engine, argnums=0)
  fitted = compiled(plan.apply(loss))
  assert plan.baseline.temp_bytes == temp_bytes(plain)
  assert plan.measured.temp_bytes == temp_bytes(fitted) <= plan.budget_bytes == int(0.8 * temp_bytes(plain))
  assert num_dots(fitted) >= num_dots(plain)
  assert_same(*(jax.jit(jax.value_and_grad(fn))(ADAPTERS, X) for fn in (plan.apply(loss), loss)))
