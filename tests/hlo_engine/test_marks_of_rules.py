"""A derivative rule that one plan has traced under its mark carries none of it in the next plan of that function."""

import jax
import jax.numpy as jnp

import coopjax
from coopjax.jaxpr.trace import fn_and_gradient, trace
from coopjax.xla.compile import compile_abstract
from tests.support.checks import temp_bytes
from tests.support.models import normal


def loss(weights, x):
  for weight in weights:
    x = x + jax.nn.relu(jnp.concatenate([x, x * 0.5], -1) @ weight)  # a `custom_jvp`
  return jnp.mean(x**2)


def test_a_plan_is_carried_out_alike_whatever_was_planned_before(outcomes):
  args = [normal(i, 128, 64, scale=0.1) for i in range(6)], normal(9, 1024, 64, scale=1.0)

  def compiled(engine, budget):
    plan = coopjax.plan(loss, *args, budget=budget, engine=engine)
    outcomes.clear()
    program = compile_abstract(*fn_and_gradient(trace(plan.apply(loss), args)))
    return temp_bytes(program), len(outcomes)

  assert compiled("auto", 0.35)[1] == 1  # both engines: checkpoints under a mark
  assert compiled("policy", 0.7)[1] == 0
