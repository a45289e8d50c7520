"""A step as it is: what its regions were found in is what is compiled, unless a policy around them could tell."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax.planning import steps
from coopjax.planning.choice import Choice
from tests.support.checks import assert_close, temp_bytes
from tests.support.models import normal

WEIGHTS, X = normal(1, 6, 64, 64) / 10, normal(2, 256, 64)
named = functools.partial(jax.ad_checkpoint.checkpoint_name, name="named")
remat = functools.partial(coopjax.remat, budget=0.6)


def block(x, weight):
  return x + jnp.tanh(jnp.sin(x @ weight) @ weight)


def unrolled(wrap):
  return lambda weights, x: jnp.mean(functools.reduce(wrap(block), weights, x) ** 2)


def scanned(wrap):
  layer = wrap(block)
  return lambda weights, x: jnp.mean(jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)[0] ** 2)


def of_examples(wrap):
  return lambda weights, x: jnp.mean(jax.vmap(scanned(wrap), (None, 0))(weights, x[:, None]))


def whole(wrap):
  return wrap(unrolled(lambda block: jax.checkpoint(block)))


def under_names(wrap):
  """The policy saves all that has a name but one: the results of regions have names where these are looked for."""
  policy = jax.checkpoint_policies.save_any_names_but_these("named")
  layer, x_of = wrap(block), lambda x, weight: named(jnp.cos(x) @ weight)
  around = jax.checkpoint(lambda x, weight: x_of(layer(layer(x, weight), weight), weight), policy=policy)
  return lambda weights, x: jnp.mean(functools.reduce(around, weights, x) ** 2)


def step_of(loss, traces=None):
  def step(weights, x):
    if traces is not None:
      traces.append("step")
    value, grads = jax.value_and_grad(loss)(weights, x)
    return weights - 0.1 * grads, value

  return jax.jit(step, donate_argnums=0)


@pytest.mark.parametrize("loss_of", [unrolled, scanned, of_examples, whole, under_names])
def test_is_compiled_as_a_trace_of_its_own_would_be(loss_of):
  step = steps.find_step(step_of(loss_of(remat)), (WEIGHTS, X), {}, existing="keep")
  assert step is not None and step.has_regions
  as_it_is = step.program(step.each(Choice()))
  anew = dataclasses.replace(as_it_is, is_traced=False)
  as_traced = dataclasses.replace(as_it_is, is_traced=True)
  is_same = as_traced.lower().as_text() == anew.lower().as_text() == as_it_is.lower().as_text()
  assert as_it_is.is_traced == is_same == (loss_of is not under_names)
  assert as_it_is.lower().as_text() == anew.lower().as_text()
  assert as_it_is.flops(1) == anew.flops(1)
  assert not step.program(step.each(Choice("a mark"))).is_traced


def test_a_share_of_a_step_takes_one_trace_more_than_the_step():
  traces = list[str]()
  loss = unrolled(lambda block: block)
  as_it_is, step = step_of(loss), step_of(remat(loss, engine="policy"), traces)
  lowered = step.lower(WEIGHTS, X)
  assert len(traces) == 1
  planned, compiled = lowered.compile(), as_it_is.lower(WEIGHTS, X).compile()
  assert len(traces) == 2
  assert temp_bytes(planned) <= 0.6 * temp_bytes(compiled)
  assert "rematted_computation" in planned.as_text()
  for ours, expected in zip(planned(jnp.array(WEIGHTS), X), compiled(jnp.array(WEIGHTS), X), strict=True):
    assert_close(ours, expected, rtol=1e-5, atol=1e-6)
