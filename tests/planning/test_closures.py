"""Arrays that a function closes over are constants of the program that runs, and so of those that plans go by."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coopjax
from coopjax.jaxpr import cost
from tests.support import models
from tests.support.checks import assert_close, assert_same, num_dots, temp_bytes

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


def flops_of(loss, *args):
  return cost.jaxpr_flops(jax.make_jaxpr(jax.value_and_grad(loss))(*args).jaxpr)


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


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_frozen_layers_of_a_scan_are_kept_as_in_the_program_with_constants(kind):
  """JAX hands its own arrays on to the backward loop; slices of NumPy's are stacked once more."""
  frozen = kind(models.normal(1, 6, 64, 64))
  adapters = models.normal(2, 6, 64, 4), models.normal(3, 6, 4, 64)
  x = models.normal(4, 512, 64)

  def loss_under(wrap):
    layer = wrap(lambda x, weights: x + jnp.tanh(x @ weights[0] + (x @ weights[1]) @ weights[2]))
    return lambda adapters, x: jnp.mean(
      jax.lax.scan(lambda x, weights: (layer(x, weights), None), x, (frozen, *adapters))[0] ** 2
    )

  compiled = lambda loss: jax.jit(jax.value_and_grad(loss)).lower(adapters, x).compile()
  plain, by_hand = loss_under(lambda layer: layer), compiled(loss_under(jax.checkpoint))
  plan = coopjax.plan(plain, adapters, x, budget=temp_bytes(by_hand), engine="policy", argnums=0)
  fitted, as_it_is = compiled(plan.apply(plain)), compiled(plain)
  assert plan.baseline.temp_bytes == temp_bytes(as_it_is)
  assert plan.measured.temp_bytes == temp_bytes(fitted) <= temp_bytes(by_hand)
  repeated = flops_of(loss_under(jax.checkpoint), adapters, x) - flops_of(plain, adapters, x)
  assert 0 < plan.recompute_flops <= repeated
  assert "rematted_computation" in fitted.as_text()
  assert_close(fitted(adapters, x), as_it_is(adapters, x), rtol=1e-5, atol=1e-6)
