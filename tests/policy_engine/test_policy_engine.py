"""The policy engine from plan to compiled bytes.

Gradients are compared with the original's, compiled temporaries with the budget, and the dots of the optimized HLO
are counted: a plan that recomputes must have more of them.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

import coopjax
from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.jaxpr.trace import differentiable, fn_and_gradient, trace
from coopjax.policy_engine.decisions import PolicyDecisions
from coopjax.policy_engine.rewrite import rewrite
from coopjax.policy_engine.search import plan_policy
from coopjax.xla.compile import compile_abstract
from tests.support import models
from tests.support.checks import assert_close, num_dots, temp_bytes
from tests.support.policy_models import baseline, call_with, decoder


def with_gradient(form):
  """`jax.value_and_grad` by whatever a plan of that model is for."""
  is_differentiable = baseline(form)[2].is_differentiable
  return functools.partial(jax.value_and_grad, argnums=(0, 1) if is_differentiable[-1] else 0)


@functools.cache
def results(form):
  loss, args, *_ = baseline(form)
  return jax.jit(with_gradient(form)(loss))(*args)


@pytest.mark.parametrize(
  ("form", "share"),
  [
    pytest.param("mlp", 0.75, marks=pytest.mark.sweep),
    ("mlp", 0.5),
    pytest.param("unrolled", 0.3, marks=pytest.mark.sweep),
    pytest.param("scan", 0.35, marks=pytest.mark.sweep),
    ("checkpoint", 0.75),
  ],
)
def test_a_plan_holds_its_budget_with_the_same_gradients(form, share):
  _, args, traced, plain = baseline(form)
  budget = int(share * temp_bytes(plain))
  plan = plan_policy(traced, budget, compile_abstract, temp_bytes(plain))
  assert plan.is_feasible and plan.temp_bytes <= budget and 1 <= len(plan.rounds) <= 6
  assert plan.smallest_bytes <= plan.temp_bytes
  assert 0 < plan.recompute_flops < 1.5 * plan.forward_flops
  fn, avals = fn_and_gradient(traced, rewrite(traced, plan.decisions))
  compiled = compile_abstract(fn, avals)
  assert temp_bytes(compiled) == plan.temp_bytes
  assert "rematted_computation" in compiled.as_text()
  if share < 0.6:  # above, repeating elementwise work is enough
    assert num_dots(compiled) > num_dots(plain)
  # As the user calls it, with the gradients that were planned for: an output more is scratch space for XLA.
  step = jax.jit(with_gradient(form)(call_with(traced, rewrite(traced, plan.decisions))))
  fitted = step.lower(*args).compile()
  assert temp_bytes(fitted) <= budget
  assert_close(fitted(*args), results(form))


def test_no_more_recompute_than_a_checkpoint_around_every_block_at_its_bytes():
  """Of a scan, see `test_hand_rungs`."""
  _loss, args, traced, plain = baseline("unrolled")
  by_hand_loss, *_ = decoder(form="unrolled by_hand")
  by_hand = fn_and_gradient(differentiable(trace(by_hand_loss, args)))
  budget = temp_bytes(compile_abstract(*by_hand))
  plan = plan_policy(traced, budget, compile_abstract, temp_bytes(plain))
  ours = fn_and_gradient(traced, rewrite(traced, plan.decisions))
  assert plan.is_feasible and temp_bytes(compile_abstract(*ours)) <= budget
  repeated = [flops_of(*program) - flops_of(*fn_and_gradient(traced)) for program in (ours, by_hand)]
  assert 0 < repeated[0] <= repeated[1]


def flops_of(fn, avals):
  """FLOPs as traced, loops with all their steps; without what nothing reads."""
  return cost.jaxpr_flops(compat.dce(jax.make_jaxpr(fn)(*avals).jaxpr))


def test_nested_scans_and_only_scans():
  def loss(weights, x):
    def inner(x, weight):
      return jnp.tanh(x @ weight), None

    def outer(x, _):
      x, _ = jax.lax.scan(inner, x, weights)
      return jax.nn.gelu(x), None

    x, _ = jax.lax.scan(outer, jnp.sin(x), None, length=4)
    return jnp.mean(jnp.cos(x) ** 2)

  args = (models.normal(3, 4, 32, 32), models.normal(4, 256, 32))
  traced = trace(loss, args)
  fn, avals = fn_and_gradient(traced)
  plain = compile_abstract(fn, avals)
  plan = plan_policy(traced, int(0.6 * temp_bytes(plain)), compile_abstract, temp_bytes(plain), only_scans=True)
  assert plan.is_feasible and all(region.equation_id is not None for region in plan.decisions.regions)
  rewritten = call_with(traced, rewrite(traced, plan.decisions))
  assert_close(jax.jit(jax.value_and_grad(rewritten))(*args), jax.jit(jax.value_and_grad(loss))(*args))


def added_to_a_reference(x, sums):
  sums[...] += x.mean(0)


def sent_to_the_host(x, _):
  io_callback(lambda _: None, None, jax.lax.stop_gradient(x.mean()))


@pytest.mark.parametrize("effect", [added_to_a_reference, sent_to_the_host])
def test_around_effects_in_every_layer(effect):
  """`jax.checkpoint` refuses such layers as they are; what lies before and behind the effect is planned."""

  def loss(weights, x):
    sums = jax.new_ref(jnp.zeros(64))
    for weight in weights:
      x = jnp.tanh(jnp.sin(x @ weight) * x)
      effect(x, sums)
    return jnp.sum(x**2) + jnp.sum(sums[...] ** 2)

  args = [models.normal(i, 64, 64, scale=0.2) for i in range(12)], models.normal(99, 256, 64, scale=1.0)
  plain = jax.jit(jax.grad(loss)).lower(*args).compile()
  planned = coopjax.remat(loss, budget=0.6, engine="policy")
  compiled = jax.jit(jax.grad(planned)).lower(*args).compile()
  assert temp_bytes(compiled) <= 0.6 * temp_bytes(plain)
  assert num_dots(compiled) > num_dots(plain) and "rematted_computation" in compiled.as_text()
  assert_close(compiled(*args), plain(*args))


def test_fits_as_it_is_and_out_of_reach():
  _, _, traced, plain = baseline("mlp")
  roomy = plan_policy(traced, temp_bytes(plain), compile_abstract, temp_bytes(plain))
  assert roomy.is_feasible and roomy.decisions == PolicyDecisions() and not roomy.rounds
  tight = plan_policy(traced, 1000, compile_abstract, temp_bytes(plain))
  assert not tight.is_feasible and 1000 < tight.smallest_bytes < temp_bytes(plain)
  assert tight.temp_bytes == tight.smallest_bytes
