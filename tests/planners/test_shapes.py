"""Every shape of graph that `benchmarks/shapes.py` builds: valid programs, plans at once, bounds near them."""

import importlib

import pytest

from coopjax import _core
from coopjax.planners.auto import AutoPlanner
from coopjax.planners.segments import SegmentPlanner
from coopjax.program.validate import validate
from tests.support import ROOT
from tests.support.programs import peak_of


@pytest.fixture
def shapes(monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  return importlib.import_module("shapes").SHAPES


@pytest.mark.parametrize(
  "shape, most_overhead",
  [
    ("chain", 0.08),
    ("layered", 0.03),
    ("wide", 0.03),
    *(pytest.param(*case, marks=pytest.mark.sweep) for case in (("unet", 0.03), ("random", 0.045), ("rnn", 0.08))),
  ],
)
def test_half_of_the_bytes(shapes, shape, most_overhead):
  program = shapes[shape](3000)
  assert 2800 < program.num_ops < 3200
  budget_bytes = peak_of(program) // 2
  result = AutoPlanner().plan(program, budget_bytes, max_steps=60_000_000)
  report = validate(program, result.schedule, budget_bytes=budget_bytes)
  assert report.is_valid, str(report)
  assert 0 < result.least_overhead(program) <= result.overhead(program) <= most_overhead


@pytest.mark.parametrize("share, most_overhead", [(0.5, 0.035), (0.25, 0.22)])  # by segments alone: 0.13 and none
@pytest.mark.parametrize("num_ops", [10_000, pytest.param(30_000, marks=pytest.mark.sweep)])
def test_what_is_read_far_away_is_planned_by_single_moves(shapes, num_ops, share, most_overhead):
  program = shapes["random"](num_ops)
  budget_bytes = int(share * peak_of(program))
  result = SegmentPlanner().plan(program, budget_bytes, max_steps=12_000 * num_ops)
  assert result.is_feasible and result.overhead(program) < most_overhead
  assert validate(program, result.schedule, budget_bytes=budget_bytes).is_valid


def test_a_large_plan_that_was_cut_short_is_lowered_further(shapes):
  program = shapes["random"](10_000)
  budget_bytes, max_steps = peak_of(program) // 4, 18_000_000
  cut_short = SegmentPlanner().plan(program, budget_bytes, max_steps=max_steps)
  assert not cut_short.is_feasible
  before = _core.steps_taken()
  _core.lower_bound(program.core)
  max_steps += _core.steps_taken() - before  # which the auto planner asks for first
  result = AutoPlanner(large_ops=1000).plan(program, budget_bytes, max_steps=max_steps)
  assert result.peak_live_bytes < cut_short.peak_live_bytes


@pytest.mark.sweep
def test_plans_of_larger_programs_are_no_worse(shapes):
  for shape in ("unet", "rnn"):
    small, large = (
      AutoPlanner().plan(program, peak_of(program) // 4, max_steps=6_000 * program.num_ops).overhead(program)
      for program in (shapes[shape](15_000), shapes[shape](30_000))
    )
    assert large <= 1.1 * small, shape


@pytest.mark.parametrize("shape, least", [("wide", 0.043), ("rnn", 0.14)])  # the plans take 0.044 and 0.144
@pytest.mark.parametrize("num_ops", [5000, pytest.param(60_000, marks=pytest.mark.sweep)])
def test_bounds_look_at_what_all_other_ops_come_before_or_after(shapes, shape, least, num_ops):
  program = shapes[shape](num_ops)
  assert _core.cost_bound(program.core, peak_of(program) // 4) > least * program.op_cost_s.sum()
