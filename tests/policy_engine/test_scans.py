"""Scan bodies: cut into pieces, a checkpoint around the pieces, and what of them has a gradient."""

import jax
import jax.numpy as jnp
import pytest

import coopjax
from coopjax import compat
from coopjax.jaxpr import cost
from coopjax.jaxpr.trace import differentiable, fn_and_gradient, trace, with_respect_to
from coopjax.policy_engine.candidates import Candidates
from coopjax.policy_engine.decisions import PolicyDecisions
from coopjax.policy_engine.rewrite import rewrite
from tests.support import models
from tests.support.checks import assert_close, compile_step, temp_bytes


def decoder():
  return models.gpt(depth=8, width=64, batch=8, length=128, scan=True)


def test_a_checkpoint_around_the_pieces_goes_below_what_one_piece_or_pieces_alone_need():
  loss, *arguments = decoder()
  bare = [
    candidate for candidate in Candidates(differentiable(trace(loss, arguments, {})), True).found if candidate.is_bare
  ]
  nested = [candidate for candidate in bare if candidate.decisions.regions[0].segments[0].inner]
  flat = [candidate for candidate in bare if not candidate.decisions.regions[0].segments[0].inner]
  # One piece holds a step's residuals, pieces stack what passes between them; nested, neither: for one more forward
  # run.
  assert min(one.estimated_bytes for one in nested) < 0.85 * min(one.estimated_bytes for one in flat)
  assert min(one.flops for one in nested) > max(one.flops for one in flat)


@pytest.mark.sweep
def test_a_budget_that_only_nesting_reaches_is_held():
  loss, *arguments = decoder()
  plan = coopjax.plan(loss, *arguments, budget="9 MiB", engine="policy")
  (region,) = plan.policy.regions
  (segment,) = region.segments
  assert segment.is_wrapped and len(segment.inner) > 1
  assert plan.fits and plan.measured.temp_bytes < 0.2 * plan.baseline.temp_bytes
  assert coopjax.RematPlan.from_json(plan.to_json()).policy == plan.policy
  assert PolicyDecisions((region,)) == plan.policy
  planned, plain = compile_step(plan.apply(loss), *arguments), compile_step(loss, *arguments)
  flops = [compiled.cost_analysis()["flops"] for compiled in (planned, plain)]
  assert flops[0] > 1.2 * flops[1]  # a step's body is counted once: its forward run stands there three times
  assert_close(planned(*arguments), plain(*arguments), rtol=1e-4, atol=1e-6)


def test_a_loop_repeats_nothing_for_what_has_no_gradient():
  """Adapters beside frozen weights in a loop, and the frozen model's own, as preferences are learned."""

  def loss(adapters, frozen, x):
    ours, _ = jax.lax.scan(lambda x, both: (jnp.sin(x @ both[1]) + jnp.tanh(x @ both[0]), None), x, (adapters, frozen))
    theirs, _ = jax.lax.scan(lambda x, weight: (jnp.sin(x @ weight), None), x, frozen)
    again, _ = jax.lax.scan(lambda x, weight: (jnp.tanh(x @ weight), None), x, jax.lax.stop_gradient(adapters))
    return jnp.mean((ours - theirs + again) ** 2)

  stack = models.normal(0, 8, 32, 32, scale=0.2)
  traced = with_respect_to(trace(loss, (stack, stack, models.normal(1, 64, 32))), 0)
  flops = lambda fn: cost.jaxpr_flops(compat.dce(jax.make_jaxpr(fn_and_gradient(traced, fn)[0])(*traced.in_avals)))
  bare = next(candidate for candidate in Candidates(traced, only_scans=True).found if candidate.is_bare)
  assert len(bare.decisions.regions) == 1
  repeated = flops(rewrite(traced, bare.decisions)) - flops(traced.evaluate)
  assert 0 < repeated == pytest.approx(bare.flops, rel=0.02)


@pytest.mark.parametrize("engine", ["policy", "auto"])
def test_a_loop_of_no_turns_is_left_as_it_is(engine):
  """Layers that a configuration has none of."""
  body = lambda x, weight: (x + jnp.tanh(jnp.sin(x) @ weight), None)

  def loss_with(wrap):
    def loss(weights, none, x):
      turn = wrap(body)
      return jnp.mean(jax.lax.scan(turn, jax.lax.scan(turn, x, weights)[0], none)[0] ** 2)

    return loss

  args = models.normal(71, 8, 64, 64) / 8, jnp.zeros((0, 64, 64)), models.normal(72, 512, 64)
  compiled = lambda loss: jax.jit(jax.grad(loss)).lower(*args).compile()
  plain, hand = loss_with(lambda fn: fn), compiled(loss_with(lambda fn: jax.checkpoint(fn, prevent_cse=False)))
  as_it_is, planned = compiled(plain), compiled(coopjax.remat(plain, budget=temp_bytes(hand), engine=engine))
  assert temp_bytes(planned) <= temp_bytes(hand) < temp_bytes(as_it_is)
  assert "rematted_computation" in planned.as_text()
  assert_close(planned(*args), as_it_is(*args), rtol=1e-4, atol=1e-6)
