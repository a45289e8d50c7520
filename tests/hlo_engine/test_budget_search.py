"""The rounds of a module's plan: what XLA's heap makes of one is seen in time to make another."""

import jax
import jax.numpy as jnp

from benchmarks import hlo_corpus
from coopjax import _core
from coopjax.budget import Budget
from coopjax.hlo_engine import module_plan, recompute_order
from coopjax.hlo_engine.mark import Mark
from coopjax.hlo_engine.module_plan import plan_module
from coopjax.planners import base


def _module():
  """Gradients of eight networks at once: a plan for live bytes alone takes 14% more in the heap."""

  def loss(weights, x):
    for weight in weights:
      x = jnp.tanh(x @ weight)
    return jnp.mean(x**2)

  weights = [jax.ShapeDtypeStruct((8, 32, 32), "float32")] * 5
  step = jax.jit(jax.vmap(jax.value_and_grad(loss), in_axes=(0, None)))
  return _bytes_of(step.lower(weights, jax.ShapeDtypeStruct((64, 32), "float32")))


def _bytes_of(lowered):
  compiled = lowered.compile()
  return compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()


def test_what_is_nearest_to_a_budget_out_of_reach_loses_nothing_between_buffers():
  outcome = plan_module(_module(), [Mark(Budget(share=0.2))])
  assert not outcome.fits and outcome.predicted.temp_bytes == 192 * 1024


def test_the_least_that_a_budget_out_of_reach_was_told_is_reached(monkeypatch):
  # A search that aims at a budget may miss it by little where one that aims at nothing at all does not, as in the
  # step of a scanned model (15,840,136 of 15,831,880 bytes).
  module, least_bytes = _module(), 192 * 1024
  search_once, asked = module_plan._search_once, []

  def missing(module, planner, budget_bytes, *others):
    asked.append(budget_bytes)
    return search_once(
      module, planner, int(budget_bytes * 1.04) if budget_bytes == least_bytes else budget_bytes, *others
    )

  monkeypatch.setattr(module_plan, "_search_once", missing)
  outcome = plan_module(module, [Mark(Budget(least_bytes))])
  assert outcome.fits and outcome.predicted.temp_bytes == least_bytes and asked[0] == least_bytes
  assert outcome.num_recomputed and outcome.module_bytes != module
  asked.clear()  # far below, the same search is made once
  assert not plan_module(module, [Mark(Budget(least_bytes // 2))]).fits
  assert set(asked) == {least_bytes // 2}


def test_a_plan_that_repeats_nothing_ends_the_search(monkeypatch):
  module = _bytes_of(hlo_corpus.PROGRAMS["cumulative"]().lower())  # whose outputs have room for what it needs before
  search_once, num_searches = module_plan._search_once, []
  monkeypatch.setattr(module_plan, "_search_once", lambda *args: num_searches.append(args) or search_once(*args))
  outcome = plan_module(module, [Mark(Budget(share=0.8), effort="best")])
  assert outcome.fits and outcome.module_bytes is not None and outcome.num_recomputed == 0
  assert len(outcome.rounds) == len(num_searches) == 1


def test_runs_are_moved_about_only_in_plans_that_may_be_taken():
  module = _bytes_of(hlo_corpus.PROGRAMS["eigenvalues_gradient"]().lower())
  smallest, near = (recompute_order.recompute_order(module, 1, near_smallest=share) for share in (1.0, 1.01))
  # What is within 1% of the smallest recomputes nothing; moving runs about aims at what their buffers take at least,
  # below that.
  assert near.recompute_cost_s == 0 and near.after.temp_bytes == smallest.after.temp_bytes
  are_moved = [
    any(1 < each.limit_bytes < near.after.temp_bytes for each in result.rounds) for result in (smallest, near)
  ]
  assert are_moved == [True, False]


def test_a_planner_that_takes_all_its_steps_leaves_some_for_the_next_round(monkeypatch):
  planner_of = base.get_planner

  class Slow:
    def __init__(self, name):
      self._planner = planner_of(name)

    def plan(self, program, budget_bytes, *, max_steps, order=None):
      before = _core.steps_taken()
      result = self._planner.plan(program, budget_bytes, max_steps=max_steps, order=order)
      _core.count_steps(max(max_steps - (_core.steps_taken() - before), 0))
      return result

  monkeypatch.setattr(recompute_order, "get_planner", Slow)
  outcome = plan_module(_module(), [Mark(Budget(share=0.5), "peak")])
  assert len(outcome.rounds) > 1 and "heap 256.00 KiB" in outcome.rounds[0] and outcome.fits
