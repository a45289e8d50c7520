"""Policies of `jax.checkpoint` that a user gives a remat: what they save is not recomputed."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import coopjax
from coopjax.jaxpr.trace import trace
from coopjax.policy_engine.decisions import PolicyDecisions, Region, Segment
from coopjax.policy_engine.rewrite import rewrite
from tests.support.checks import SQUEEZED, assert_same, flags, num_dots, temp_bytes
from tests.support.layered import WEIGHTS, X, step


def named(x, weights):
  for i, weight in enumerate(weights):
    x = jnp.tanh(checkpoint_name(x @ weight, "kept" if i % 2 else "free"))
  return x


SAVE_KEPT = jax.checkpoint_policies.save_only_these_names("kept")


@pytest.mark.filterwarnings("ignore::coopjax.BudgetExceededWarning")
@pytest.mark.parametrize(
  ("engine", "remat3"), [("policy", False), pytest.param("policy", True, marks=pytest.mark.sweep), ("hlo", False)]
)
def test_what_the_users_policy_saves_is_not_recomputed(engine, remat3):
  with flags(jax_remat3=remat3):
    plain = step(named).lower(X, WEIGHTS).compile()
    remat = functools.partial(coopjax.remat, engine=engine, **SQUEEZED)
    free = step(named, remat).lower(X, WEIGHTS).compile()
    kept = step(named, functools.partial(remat, policy=SAVE_KEPT)).lower(X, WEIGHTS).compile()
  assert num_dots(plain) < num_dots(kept) <= num_dots(plain) + 3 and num_dots(kept) < num_dots(free)
  assert temp_bytes(kept) < temp_bytes(plain)
  assert_same(kept(X, WEIGHTS), plain(X, WEIGHTS), rtol=1e-4, atol=1e-6)


def around(inner):
  return lambda x, weights: jnp.mean(jnp.sin(inner(jnp.sin(x), weights)) ** 2)


@pytest.mark.filterwarnings("ignore::coopjax.RematNoEffectWarning")
@pytest.mark.parametrize("remat3", [False, True])
def test_a_segment_around_does_not_recompute_what_an_inner_regions_policy_saves(remat3):
  def compiled(policy):
    outer = around(coopjax.remat(named, policy=policy, budget="1GiB", engine="policy"))
    traced = trace(outer, (X, WEIGHTS))
    num = len(traced.inlined.eqns)
    body = PolicyDecisions((Region(None, (Segment(0, num - 4, True), Segment(num - 4, num))),))  # all but the mean
    return jax.jit(jax.grad(lambda *args: rewrite(traced, body)(*args)[0], argnums=(0, 1))).lower(X, WEIGHTS).compile()

  with flags(jax_remat3=remat3):
    free, kept = map(compiled, (None, SAVE_KEPT))
  assert num_dots(kept) == num_dots(free) - 3  # every second of six products is named
  assert_same(kept(X, WEIGHTS), free(X, WEIGHTS), rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore::coopjax.BudgetExceededWarning")
@pytest.mark.parametrize("is_step", [False, pytest.param(True, marks=pytest.mark.sweep)], ids=["function", "step"])
def test_clones_around_spare_what_an_inner_regions_policy_saves(is_step):
  squeeze = functools.partial(coopjax.remat, engine="hlo", planner="peak", **SQUEEZED)

  def compiled(policy):
    fn = jax.jit(jax.grad(squeeze(around(squeeze(named, policy=policy))), argnums=(0, 1)))
    if is_step:
      fn = coopjax.plan(fn, X, WEIGHTS, engine="hlo", planner="peak", **SQUEEZED).apply(fn)
    return fn.lower(X, WEIGHTS).compile()

  free, kept = map(compiled, (None, SAVE_KEPT))
  assert num_dots(kept) <= num_dots(free) - 3
  assert temp_bytes(free) < temp_bytes(kept)
  assert_same(kept(X, WEIGHTS), free(X, WEIGHTS), rtol=1e-4, atol=1e-6)
