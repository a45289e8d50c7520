"""What is asked is what is done: planners steer the policy engine or are refused, and seconds are the target's."""

import jax
import pytest

import coopjax
import coopjax.linen
from coopjax.jaxpr.tags import tagged_fn
from coopjax.jaxpr.trace import differentiable, fn_and_gradient, trace
from coopjax.planning import assemble
from coopjax.policy_engine.candidates import Candidates
from coopjax.policy_engine.compiled_profile import profile_of
from coopjax.policy_engine.decisions import PolicyDecisions, Region, Segment
from coopjax.xla import targets
from coopjax.xla.compile import compile_abstract
from tests.support import models


@pytest.mark.parametrize("planner", ["peak", "exact", "model", "fastsa"])
def test_a_planner_of_schedules_is_refused_by_the_policy_engine(planner):
  for wrap in (coopjax.remat, lambda fn, **asked: coopjax.plan(fn, 1.0, **asked)):
    with pytest.raises(ValueError, match=f"planner='{planner}' schedules instructions.* auto, segments, coop"):
      wrap(lambda x: x, budget=0.5, engine="policy", planner=planner)


@pytest.mark.parametrize("planner", ["peak", "segments", "coop"])
def test_a_block_has_one_way_to_be_planned_by_the_policy_engine(planner):
  with pytest.raises(ValueError, match=f"planner='{planner}'"):
    coopjax.linen.remat(budget=0.5, planner=planner)


def test_a_planner_says_how_the_policy_engine_finds_what_to_save(monkeypatch):
  monkeypatch.setenv("COOPJAX_CACHE_DIR", "")
  loss, params, x = models.mlp(depth=8)
  traced = differentiable(trace(loss, (params, x), {}))
  profile = profile_of(traced, compile_abstract(*fn_and_gradient(traced, tagged_fn(traced))))
  found = {
    planner: {one.decisions for one in Candidates(traced, False, profile, planner=planner).found}
    for planner in ("auto", "segments", "coop")
  }
  assert found["segments"] | found["coop"] == found["auto"]
  assert found["segments"] - found["coop"] and found["coop"] - found["segments"]
  plain = jax.jit(jax.value_and_grad(loss)).lower(params, x).compile().as_text().count(" dot(")
  for planner in ("segments", "coop"):
    plan = coopjax.plan(loss, params, x, budget=0.6, engine="policy", planner=planner)
    assert plan.fits and plan.planner == planner and plan.policy in found[planner]
    assert jax.jit(jax.value_and_grad(plan.apply(loss))).lower(params, x).compile().as_text().count(" dot(") > plain


def test_a_step_is_divided_without_coops_windows():
  step = lambda x: jax.grad(coopjax.remat(lambda x: x**2, budget=0.5))(x)
  with pytest.raises(ValueError, match="planner='coop'"):
    coopjax.plan(step, 1.0, budget=0.5, engine="policy", planner="coop")


def test_seconds_are_the_targets():
  loss, params, x = models.mlp(depth=2)
  traced = trace(loss, (params, x), {})
  whole = PolicyDecisions((Region(None, (Segment(0, len(traced.inlined.eqns), True),)),))
  here, there = (assemble.jaxpr_decisions(traced, whole, targets.resolve(name)) for name in ("cpu", "tpu:v5e:2x2"))
  ratio = targets.resolve("tpu:v5e:2x2").flops_per_s / targets.resolve("cpu").flops_per_s
  assert here and all(a.cost_s == pytest.approx(ratio * b.cost_s) for a, b in zip(here, there, strict=True))
