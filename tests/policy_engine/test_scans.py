"""Scan bodies cut into pieces, and a checkpoint around the pieces."""

import pytest

import coopjax
from coopjax.jaxpr.trace import differentiable, trace
from coopjax.policy_engine.candidates import Candidates
from coopjax.policy_engine.decisions import PolicyDecisions
from tests.support import models
from tests.support.checks import assert_close, compile_step


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
