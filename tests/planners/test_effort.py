"""Effort: counted in steps, the same on every machine, and the fuse that may end it."""

import pytest

from coopjax import _core
from coopjax.planners import base, effort
from coopjax.planners.fastsa import FastSAPlanner
from tests.support.programs import peak_of
from tests.support.transformer import transformer


def test_steps_grow_with_effort_and_program():
  assert effort.EFFORTS == ("fast", "normal", "best") and effort.up_to("normal") == ("fast", "normal")
  for num_instructions in (0, 100, 5_000, 10**6):
    sketch, fast, normal, best = (effort.steps_of(each, num_instructions) for each in (effort.SKETCH, *effort.EFFORTS))
    assert 0 < sketch < fast < normal < best / 2
  assert effort.steps_of("normal", 5_000) > effort.steps_of("normal", 100)


def test_an_allowance_counts_what_the_core_does():
  allowance = effort.Allowance(1000)
  _core.count_steps(400)
  assert allowance.left == 600 and not allowance.is_over
  program, num_cuts = transformer(num_layers=2), _core.num_cuts()
  _core.plan_peak(program.core, program.schedule, peak_of(program) // 2)
  assert allowance.is_over and _core.num_cuts() > num_cuts


@pytest.mark.parametrize("planner", base.PLANNERS)
def test_every_planner_ends_when_its_steps_are_taken(planner):
  program = transformer(num_layers=6)
  before = _core.steps_taken()
  base.get_planner(planner).plan(program, peak_of(program) // 3, max_steps=10_000_000)
  assert _core.steps_taken() - before < 60_000_000  # Coop, bounds and what is under way are not cut short


def test_the_clock_decides_nothing(monkeypatch):
  program = transformer(num_layers=3)
  budget_bytes = peak_of(program) // 2
  plans = [base.get_planner("auto").plan(program, budget_bytes, max_steps=20_000_000)]
  monkeypatch.setattr("time.perf_counter", lambda: 1e9 * len(plans))
  plans.append(base.get_planner("auto").plan(program, budget_bytes, max_steps=20_000_000))
  assert plans[0].schedule.tobytes() == plans[1].schedule.tobytes()


def test_a_fuse_ends_what_is_under_way():
  program = transformer(num_layers=24)
  with effort.fuse(0.01):
    stopped = FastSAPlanner().plan(program, peak_of(program) // 2, max_steps=_core.UNLIMITED_STEPS)
    assert _core.is_fuse_blown()
  assert stopped.counters["is_cut_short"] and not _core.is_fuse_blown()


def test_the_fuse_around_goes_on_being_lit():
  with effort.fuse(100.0):
    with effort.fuse(50.0):
      assert _core.fuse_seconds_left() <= 50
    assert 50 < _core.fuse_seconds_left() <= 100
    with effort.fuse(200.0):
      assert _core.fuse_seconds_left() <= 100
  assert _core.fuse_seconds_left() == float("inf")
