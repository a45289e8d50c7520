"""The auto planner: never worse than the others, improvement, limits, budgets out of reach."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopjax import _core
from coopjax.planners import base
from coopjax.planners.auto import AutoPlanner
from coopjax.planners.fastsa import FastSAPlanner
from coopjax.planners.peak import PeakPlanner
from coopjax.program.validate import validate
from tests.support import oracles, programs, sweeps
from tests.support.programs import peak_of
from tests.support.strategies import random_programs
from tests.support.transformer import block_checkpoint, transformer

SHARES = st.sampled_from([1.0, 0.85, 0.7, 0.5, 0.3])


def unit_costs(program):
  return dataclasses.replace(program, op_cost_s=np.ones(program.num_ops))


def plan(program, budget_bytes, **options):
  result = AutoPlanner().plan(program, budget_bytes, **options)
  report = validate(
    program,
    result.schedule,
    budget_bytes=budget_bytes if result.is_feasible else None,
    claimed_peak_bytes=result.peak_live_bytes,
    claimed_cost_s=result.recompute_cost_s,
  )
  assert report.is_valid, str(report)
  assert result.budget_bytes == budget_bytes
  assert result.is_feasible == (result.peak_live_bytes <= budget_bytes)
  return result


# ---- never worse, near optimal -----------------------------------------------------------------


@settings(max_examples=60)
@given(random_programs(), SHARES)
def test_auto_is_never_worse(program, share):
  budget_bytes = int(share * peak_of(program))
  result = plan(program, budget_bytes)
  for name in ("coop", "peak"):
    other = base.get_planner(name).plan(program, budget_bytes)
    if other.is_feasible:
      assert result.is_feasible
      assert result.recompute_cost_s <= other.recompute_cost_s * (1 + 1e-9)
    elif not result.is_feasible:
      assert result.peak_live_bytes <= 1.01 * other.peak_live_bytes


@sweeps.of_each_share
@settings(max_examples=5)
@given(program=random_programs())
def test_auto_is_deterministic(program, share):
  first, second = (plan(program, int(share * peak_of(program))) for _ in range(2))
  assert np.array_equal(first.schedule, second.schedule)


def test_annealing_in_the_programs_own_order_counts():
  """From the best order FastSA finds 18 s; from the order that the program came in, half of that."""
  builder = programs.Builder()
  x, y = builder.value(0), builder.value(0)
  a = builder.op([], 10, cost_s=6.0)
  b, _, c = builder.op([x, a], 0, 4, 4, cost_s=3.0)
  builder.op([b], 9, cost_s=0.0)
  _, d, e = builder.op([], 1, 8, 9, cost_s=9.0, workspace=5)
  builder.op([y, d, c], 0, cost_s=0.0, control=[0])
  builder.op([e, b], 0, cost_s=6.0, workspace=5)
  builder.op([], cost_s=1.0)
  program = builder.build()
  assert plan(program, 26).recompute_cost_s == 9.0  # the op that reads y, d and c needs 26 bytes in every order


@settings(max_examples=15)
@given(random_programs(), SHARES)
def test_auto_is_never_worse_than_fastsa(program, share):
  budget_bytes = max(int(share * peak_of(program)), _core.lower_bound(program.core)[0])
  other = FastSAPlanner(stage1_iterations=1_000_000, stage2_iterations=1_000_000).plan(program, budget_bytes)
  if other.is_feasible:
    result = plan(program, budget_bytes)
    assert result.is_feasible and result.recompute_cost_s <= other.recompute_cost_s * (1 + 1e-9)


@settings(max_examples=40)
@given(random_programs(max_ops=7, plain=True), SHARES)
def test_finds_what_exact_search_finds(program, share):
  budget_bytes = int(share * peak_of(program))
  best = oracles.cheapest_recompute(program, budget_bytes)
  result = plan(program, budget_bytes)
  assert result.is_feasible or best is None
  if best is not None:
    assert result.recompute_cost_s <= best + 1e-9


@pytest.mark.parametrize("num_layers", [4, 5, pytest.param(6, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("budget_bytes", [40, 50, 60])
def test_chains_are_optimal(num_layers, budget_bytes):
  program = programs.forward_backward(num_layers)
  plain = programs.Builder()
  forward = [plain.value(10)]
  for _ in range(num_layers):
    forward.append(plain.op([forward[-1]], 10))
  back = []
  for layer in range(num_layers, 0, -1):
    back = [plain.op([forward[layer - 1], forward[layer], *back], 10)]
  best = oracles.cheapest_recompute(plain.build(), budget_bytes)
  result = plan(program, budget_bytes)
  assert result.is_feasible == (best is not None)
  if best is not None:
    assert result.recompute_cost_s <= best


@pytest.mark.parametrize("num_layers", [6, pytest.param(12, marks=pytest.mark.sweep)])
def test_beats_checkpointing_every_block(num_layers):
  program = transformer(num_layers)
  checkpointed = validate(program, block_checkpoint(program, num_layers))
  assert checkpointed.is_valid
  result = plan(program, checkpointed.peak_live_bytes)
  assert result.is_feasible
  assert result.recompute_flops < 0.9 * checkpointed.recompute_flops
  assert result.recompute_cost_s < 0.9 * checkpointed.recompute_cost_s


@pytest.mark.parametrize("share, most_gap", [(0.8, 0.0), (0.5, 0.0), (0.25, 0.012)])
def test_unit_costs_stay_near_the_bound(share, most_gap):
  program = unit_costs(transformer(num_layers=8))
  budget_bytes = int(share * peak_of(program))
  result = plan(program, budget_bytes)
  assert result.is_feasible
  assert result.recompute_cost_s <= _core.cost_bound(program.core, budget_bytes) + most_gap * program.num_ops


# ---- improvement -------------------------------------------------------------------------------


@settings(max_examples=60)
@given(random_programs(), SHARES, st.integers(0, 3))
def test_neighbourhood_search_never_worsens(program, share, seed):
  budget_bytes = int(share * peak_of(program))
  before = PeakPlanner(num_price_rounds=0, clean_up=False, swap=False).plan(program, budget_bytes)
  found = _core.search_neighbourhood(program.core, before.schedule, budget_bytes, patience=30, seed=seed)
  again = _core.search_neighbourhood(program.core, before.schedule, budget_bytes, patience=30, seed=seed)
  assert np.array_equal(found["schedule"], again["schedule"])
  report = validate(program, found["schedule"])
  assert report.is_valid, str(report)
  assert max(report.peak_live_bytes, budget_bytes) <= max(before.peak_live_bytes, budget_bytes)
  if before.is_feasible:
    assert report.recompute_cost_s <= before.recompute_cost_s * (1 + 1e-9)


def test_neighbourhood_search_stops_at_the_bound():
  program = unit_costs(transformer(num_layers=3))
  budget_bytes = peak_of(program) // 2
  start = PeakPlanner(num_price_rounds=0, clean_up=False, swap=False).plan(program, budget_bytes)
  found = _core.search_neighbourhood(program.core, start.schedule, budget_bytes, stop_at_cost_s=start.recompute_cost_s)
  assert found["rounds"] == 0
  improved = _core.search_neighbourhood(program.core, start.schedule, budget_bytes)
  assert improved["improvements"] > 0
  assert _core.recompute_totals(program.core, improved["schedule"])[0] < start.recompute_cost_s


@settings(max_examples=60)
@given(random_programs(), SHARES, st.integers(0, 3))
def test_exchanges_never_worsen(program, share, seed):
  budget_bytes = int(share * peak_of(program))
  before = PeakPlanner(num_price_rounds=0, clean_up=False, swap=False).plan(program, budget_bytes)
  found = _core.search_exchanges(program.core, before.schedule, budget_bytes, patience=3, seed=seed)
  again = _core.search_exchanges(program.core, before.schedule, budget_bytes, patience=3, seed=seed)
  assert np.array_equal(found["schedule"], again["schedule"])
  report = validate(program, found["schedule"])
  assert report.is_valid, str(report)
  if before.is_feasible:
    assert report.peak_live_bytes <= budget_bytes
    assert report.recompute_cost_s <= before.recompute_cost_s * (1 + 1e-9)
  else:
    assert np.array_equal(found["schedule"], before.schedule)


def test_exchanges_improve_until_the_bound_or_their_work_ends_them():
  program = unit_costs(transformer(num_layers=8))
  budget_bytes = peak_of(program) // 4
  start = PeakPlanner(num_price_rounds=0, clean_up=False, swap=False).plan(program, budget_bytes)
  improved = _core.search_exchanges(program.core, start.schedule, budget_bytes)
  assert improved["improvements"] > 0
  assert _core.recompute_totals(program.core, improved["schedule"])[0] < start.recompute_cost_s
  for limits in ({"stop_at_cost_s": start.recompute_cost_s}, {"max_work": 0}, {"max_steps": 0}):
    found = _core.search_exchanges(program.core, start.schedule, budget_bytes, **limits)
    assert found["rounds"] == 0 and np.array_equal(found["schedule"], start.schedule)
  a_little = _core.search_exchanges(program.core, start.schedule, budget_bytes, max_work=1)
  assert a_little["rounds"] == 1


def test_exchanges_swap_three_for_one():
  # Three values of 10 bytes and 2 s each, one of 30 bytes and 5 s, all read at the end, next to two of 40: 140 bytes.
  # For 110 the plan to improve makes the three again (6 s); only all of them together are worth the large one (5 s).
  b = programs.Builder()
  x = b.value(1)
  held = [b.op([x], 10, cost_s=2.0) for _ in range(3)] + [b.op([x], 30, cost_s=5.0)]
  last = b.op([b.op([b.op(held, 40)], 40)], 1)
  for value in held:
    last = b.op([value, last], 1)
  program = b.build()
  dear = np.array([0, 1, 2, 3, 4, 5, 6, 0, 7, 1, 8, 2, 9, 10], np.int32)
  assert (peak_of(program), peak_of(program, dear)) == (140, 110)
  found = _core.search_exchanges(program.core, dear, 110)
  assert found["schedule"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 10]


# ---- limits and budgets out of reach -----------------------------------------------------------


@pytest.mark.parametrize("missing_bytes", [1, pytest.param(10, marks=pytest.mark.sweep)])
@settings(max_examples=20)
@given(program=random_programs())
def test_budgets_out_of_reach_get_the_smallest_peak(program, missing_bytes):
  bound, _ = _core.lower_bound(program.core)
  result = plan(program, bound - missing_bytes)
  assert not result.is_feasible or program.num_ops == 0
  assert bound <= result.peak_live_bytes <= peak_of(program)


def test_the_last_percent_is_not_bought_at_any_price():
  # a (8000 bytes, 1 s) and t (60 bytes, 100 s) are read before and after c and d (5000 each). Without a the peak is
  # 10060, without t too it is 10000: less than one percent for 100 seconds.
  b = programs.Builder()
  a, t = b.op([b.value(9)], 8000), b.op([b.value(9)], 60, cost_s=100.0)
  d = b.op([b.op([b.op([a, t], 10)], 5000)], 5000)
  end = b.op([d], 1)
  b.op([a, t, end], 1)
  result = plan(b.build(), 9000)
  assert (result.peak_live_bytes, result.recompute_cost_s) == (10060, 1.0)
  assert PeakPlanner().plan(b.build(), 9000).peak_live_bytes == 10000


def test_no_steps_still_give_a_valid_plan():
  program = transformer(num_layers=4)
  plan(program, peak_of(program) // 4, max_steps=0)


def test_steps_bound_the_search():
  program = unit_costs(transformer(num_layers=24))
  before = _core.steps_taken()
  plan(program, peak_of(program) // 8, max_steps=50_000_000)
  assert _core.steps_taken() - before < 100_000_000


def test_large_programs_are_planned_in_segments():
  program = transformer(num_layers=6)
  budget_bytes = peak_of(program) // 2
  result = AutoPlanner(large_ops=100).plan(program, budget_bytes)
  assert result.is_feasible and result.overhead(program) < 0.3
