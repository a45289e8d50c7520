"""FastSA: switches, exactness of its incremental bytes, warm starts, limits."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopjax import _core
from coopjax.errors import InvalidProgramError
from coopjax.planners.fastsa import FastSAPlanner
from coopjax.program.validate import validate
from tests.support import oracles, programs, sweeps
from tests.support.programs import peak_of
from tests.support.strategies import random_programs
from tests.support.transformer import block_checkpoint, transformer

SHARES = st.sampled_from([1.0, 0.85, 0.7, 0.5, 0.3])
QUICK = FastSAPlanner(num_slots=0, stage1_iterations=3000, stage2_iterations=3000)
SWITCHES = [
  dataclasses.replace(
    QUICK,
    group=group,
    retry_ungrouped=retry,
    order_only=order_only,
    seed=seed,
    num_slots=num_slots,
    stage1_iterations=stage1,
  )
  for group, retry, order_only, (seed, num_slots, stage1) in itertools.product(
    *[[True, False]] * 3, [(0, 0, 3000), (1, 1 << 12, 0)]
  )
] + [FastSAPlanner.improved(num_slots=0, stage1_iterations=3000, stage2_iterations=3000)]


def check(program, result, budget_bytes) -> None:
  report = validate(
    program,
    result.schedule,
    budget_bytes=budget_bytes if result.is_feasible else None,
    claimed_peak_bytes=result.peak_live_bytes,
    claimed_cost_s=result.recompute_cost_s,
  )
  assert report.is_valid, str(report)
  assert result.is_feasible == (result.peak_live_bytes <= budget_bytes)


@sweeps.of_each_share
@settings(max_examples=12)
@given(program=random_programs())
def test_product_of_switches_is_valid_and_deterministic(program, share):
  given_peak = peak_of(program)
  budget_bytes = int(share * given_peak)
  for planner in SWITCHES:
    result = planner.plan(program, budget_bytes)
    check(program, result, budget_bytes)
    assert result.peak_live_bytes <= given_peak
    assert np.array_equal(result.schedule, planner.plan(program, budget_bytes).schedule)
    if planner.order_only:
      assert sorted(result.schedule) == list(range(program.num_ops))


@settings(max_examples=60)
@given(random_programs(), SHARES)
def test_a_plan_handed_in_comes_back_no_worse(program, share):
  budget_bytes = int(share * peak_of(program))
  polisher = dataclasses.replace(QUICK, seed=7)
  for planner in (QUICK, dataclasses.replace(QUICK, group=False)):
    plan = planner.plan(program, budget_bytes)
    polished = polisher.plan(program, budget_bytes, order=plan.schedule)
    check(program, polished, budget_bytes)
    assert polished.is_feasible or not plan.is_feasible
    if plan.is_feasible:
      assert polished.recompute_cost_s <= plan.recompute_cost_s + 1e-9
    else:
      assert polished.peak_live_bytes <= plan.peak_live_bytes


@settings(max_examples=30)
@given(random_programs(max_ops=6, plain=True), SHARES)
def test_no_plan_in_the_same_order_beats_exact_search(program, share):
  budget_bytes = int(share * peak_of(program))
  result = QUICK.plan(program, budget_bytes)
  first_runs = list(dict.fromkeys(result.schedule.tolist()))
  if result.is_feasible and first_runs == program.schedule.tolist():
    best = oracles.cheapest_recompute(program, budget_bytes)
    assert best is not None and result.recompute_cost_s >= best - 1e-9


@settings(max_examples=30)
@given(random_programs(max_ops=6))
def test_order_only_comes_down_to_the_least_peak_of_all_orders(program):
  orders = [
    order
    for order in itertools.permutations(range(program.num_ops))
    if not _core.check_schedule(program.core, np.array(order, np.int32))
  ]
  least = min(peak_of(program, np.array(order, np.int32)) for order in orders)
  planner = dataclasses.replace(QUICK, order_only=True, start_temperature=0.3)
  assert planner.plan(program, least).peak_live_bytes == least


def test_chain_reaches_constant_memory():
  program = programs.forward_backward(40)  # 41 values of 10 bytes live in the given order
  result = dataclasses.replace(QUICK, stage2_iterations=100_000).plan(program, 80)
  check(program, result, 80)
  assert result.is_feasible
  without = dataclasses.replace(QUICK, group=False, retry_ungrouped=False).plan(program, 80)
  assert without.peak_live_bytes > 80


@pytest.mark.parametrize("share, most_overhead", [(0.5, 0.12), (0.25, 0.3)])
def test_transformer(share, most_overhead):
  program = transformer(num_layers=6)
  budget_bytes = int(share * peak_of(program))
  planner = FastSAPlanner(num_slots=1 << 14, stage1_iterations=300_000, stage2_iterations=300_000)
  result = planner.plan(program, budget_bytes)
  check(program, result, budget_bytes)
  assert result.is_feasible
  assert result.overhead(program) <= most_overhead


def test_a_wasteful_plan_is_cleaned_up():
  program = transformer(num_layers=4)
  wasteful = block_checkpoint(program, 4)
  budget_bytes = peak_of(program, wasteful)
  planner = FastSAPlanner(num_slots=0, stage2_iterations=200_000, start_temperature=1e-7)
  result = planner.plan(program, budget_bytes, order=wasteful)
  check(program, result, budget_bytes)
  assert result.is_feasible
  assert result.counters["num_groups"] == 0  # stage 2 alone
  assert result.recompute_cost_s < 0.8 * validate(program, wasteful).recompute_cost_s


def test_cold_limits():
  program = transformer(num_layers=2)
  budget_bytes = peak_of(program) // 4
  stopped = FastSAPlanner().plan(program, budget_bytes, max_steps=0)
  check(program, stopped, budget_bytes)
  assert stopped.counters["is_cut_short"]
  roomy = FastSAPlanner().plan(program, peak_of(program))
  assert roomy.num_recomputed == 0 and roomy.counters["tried"] == 0


def test_empty_single_and_malformed_programs():
  assert QUICK.plan(programs.Builder().build(), 0).is_feasible
  single = programs.Builder()
  single.op([], 5, workspace=3)
  assert QUICK.plan(single.build(), 8).is_feasible
  assert not QUICK.plan(single.build(), 7).is_feasible
  free = programs.Builder()
  made = [free.op([], 4, cost_s=0.0) for _ in range(3)]
  free.op(made, 0, cost_s=0.0)
  assert QUICK.plan(free.build(), 11).peak_live_bytes == 12
  cyclic = programs.Builder()
  value = cyclic.op([cyclic.value(1)], 1)
  cyclic.op([value], 1)
  cyclic.inputs[0].append(2)
  with pytest.raises(InvalidProgramError, match="cycle"):
    QUICK.plan(cyclic.build(), 10)
