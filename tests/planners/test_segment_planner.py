"""Planning programs of ten thousand ops and more, and that the way there is valid on small ones."""

import numpy as np
import pytest
from hypothesis import given, settings

from benchmarks.layered import Layers, layered
from coopjax import _core
from coopjax.planners.peak import PeakPlanner
from coopjax.planners.segments import SegmentPlanner
from coopjax.program.validate import validate
from tests.support import programs, sweeps
from tests.support.programs import peak_of
from tests.support.strategies import random_programs
from tests.support.transformer import transformer

UNPOLISHED = SegmentPlanner(max_polished_ops=0)


def check(program, result, budget_bytes: int):
  report = validate(
    program, result.schedule, claimed_peak_bytes=result.peak_live_bytes, claimed_cost_s=result.recompute_cost_s
  )
  assert report.is_valid, str(report)
  assert result.is_feasible == (report.peak_live_bytes <= budget_bytes)


@pytest.mark.parametrize(
  "is_varied, most",
  [
    pytest.param(False, {0.5: 0.02, 0.25: 0.11, 0.05: 0.31}, marks=pytest.mark.sweep),
    (True, {0.5: 0.019, 0.25: 0.095, 0.05: 0.3}),
  ],
)
def test_ten_thousand_ops(is_varied, most):
  program = layered(10_000, Layers(is_varied=is_varied))
  peak_bytes = peak_of(program)
  for share, most_overhead in most.items():
    budget_bytes = int(share * peak_bytes)
    result = UNPOLISHED.plan(program, budget_bytes)
    check(program, result, budget_bytes)
    assert result.is_feasible and result.overhead(program) <= most_overhead
    assert 0 < result.counters["first_plan_steps"] < 100_000_000
    assert np.array_equal(result.schedule, UNPOLISHED.plan(program, budget_bytes).schedule)


def test_polished_plans_are_as_good_as_the_peak_planners():
  program = layered(2000)
  for share in (0.5, 0.25, 0.12):
    budget_bytes = int(share * peak_of(program))
    result = SegmentPlanner().plan(program, budget_bytes)
    check(program, result, budget_bytes)
    assert result.is_feasible
    assert result.recompute_cost_s <= 1.03 * PeakPlanner().plan(program, budget_bytes).recompute_cost_s


def test_equal_layers_are_solved_once():
  few, many = (UNPOLISHED.plan(program, peak_of(program) // 4).counters for program in (layered(5000), layered(20_000)))
  assert many["segments"] > 3 * few["segments"]
  assert many["kinds"] < 1.5 * few["kinds"]
  assert many["cuts"] < 1.5 * few["cuts"]


def test_remakes_are_planned_anew_where_one_level_is_not_enough():
  program = programs.forward_backward(2000)
  assert peak_of(program) > 20_000
  assert not SegmentPlanner(max_levels=1, max_polished_ops=0).plan(program, 600).is_feasible
  result = UNPOLISHED.plan(program, 600)
  check(program, result, 600)
  assert result.is_feasible


def test_unrolled_steps_are_hills_of_their_own():
  once = transformer(num_layers=4)
  budget_bytes = peak_of(once) // 3
  single = UNPOLISHED.plan(once, budget_bytes, order=once.schedule)
  many = programs.unrolled(once, 8)
  result = UNPOLISHED.plan(many, budget_bytes, order=many.schedule)
  check(many, result, budget_bytes)
  assert single.is_feasible and result.is_feasible
  assert result.recompute_cost_s <= 8.2 * single.recompute_cost_s


@sweeps.of_each_share
@settings(max_examples=25)
@given(program=random_programs(max_ops=40))
def test_small_programs_of_any_shape(program, share):
  budget_bytes = int(share * peak_of(program))
  one_level = SegmentPlanner(clean_up=False, max_levels=1, max_polished_ops=0)
  for planner in (UNPOLISHED, one_level, SegmentPlanner(max_trials=500)):
    result = planner.plan(program, budget_bytes)
    check(program, result, budget_bytes)
    assert np.array_equal(result.schedule, planner.plan(program, budget_bytes).schedule)


def test_no_steps_still_give_a_valid_plan():
  program = layered(20_000)
  before = _core.steps_taken()
  result = SegmentPlanner().plan(program, peak_of(program) // 4, max_steps=0)
  assert _core.steps_taken() - before < 10_000_000
  check(program, result, peak_of(program) // 4)
  assert result.counters["is_cut_short"]


@pytest.mark.parametrize(
  "layers", [Layers(), Layers(is_varied=True), Layers(near_skip=0, far_skip_every=0), Layers(seed=3)]
)
def test_layered_programs_are_well_formed(layers):
  for num_ops in (1, 100, 3000):
    program = layered(num_ops, layers)
    assert not program.core.check()
    assert abs(program.num_ops - num_ops) <= 45
    assert np.array_equal(program.op_inputs[1], layered(num_ops, layers).op_inputs[1])
  forward_ops = int(np.argmin(program.op_can_recompute))
  assert forward_ops < 0.5 * program.num_ops
  assert (
    0.3 * program.num_ops < int(np.argmax(_core.live_bytes(program.core, program.schedule))) < 0.6 * program.num_ops
  )
