"""Six layers, large enough to have a budget, and a training step around whatever is made of them."""

import functools

import jax
import jax.numpy as jnp

import coopjax
from tests.support import models
from tests.support.checks import temp_bytes

X = models.normal(1, 256, 64)
WEIGHTS = models.normal(2, 6, 64, 64)


def layer(x, weight):
  return jnp.sin(jnp.tanh(x @ weight))


def step(fn, transform=lambda loss: loss):
  mean_square = transform(lambda x, w: jnp.mean(fn(x, w).astype(jnp.float32) ** 2))
  return jax.jit(jax.value_and_grad(mean_square, argnums=(0, 1)))


def remat(share, engine="auto", **options):
  """With a fast planner: there are many cases."""
  planner = "auto" if engine == "policy" else "peak"
  return functools.partial(coopjax.remat, budget=share, engine=engine, planner=planner, **options)


def assert_recomputes_within(limit_bytes, compiled):
  assert temp_bytes(compiled) <= limit_bytes
  text = compiled.as_text()
  assert "coop_remat" in text or "rematted_computation" in text
