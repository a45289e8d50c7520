"""Planners against literal plans, exact search, each other and the independent validator."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopjax import _core
from coopjax.errors import BudgetInfeasibleError, InvalidProgramError
from coopjax.planners import base
from coopjax.planners.auto import AutoPlanner
from coopjax.planners.coop import CoopPlanner
from coopjax.planners.exact.planner import ExactPlanner
from coopjax.planners.fastsa import FastSAPlanner
from coopjax.planners.model.planner import ModelPlanner
from coopjax.planners.peak import PeakPlanner
from coopjax.planners.segments import SegmentPlanner
from coopjax.program import liveness
from coopjax.program.validate import Rule, validate
from tests.support import oracles, programs, sweeps
from tests.support.programs import peak_of, with_repeats
from tests.support.strategies import random_programs
from tests.support.transformer import transformer

SHARES = st.sampled_from([1.0, 0.85, 0.7, 0.5, 0.3])
PEAK_SWITCHES = [
  PeakPlanner(
    exponent=exponent, num_price_rounds=rounds, merge_repeats=merge, clean_up=clean_up, swap=swap, max_trials=4000
  )
  for exponent, rounds, merge, clean_up, swap in itertools.product([1.0, 2.0], [0, 5], *[[False, True]] * 3)
]


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
  assert result.peak_step == report.peak_step
  assert result.recompute_flops == pytest.approx(report.recompute_flops)


# ---- liveness ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", programs.NAMED)
def test_named_peaks(name):
  make, peak = programs.NAMED[name]
  assert peak_of(make()) == peak


@pytest.mark.parametrize("num_repeats", sweeps.all_but([0, 3], range(6)))
@settings(max_examples=25)
@given(program=random_programs(max_ops=14), random=st.randoms(use_true_random=False))
def test_four_ways_to_count_live_bytes_agree(program, num_repeats, random):
  steps = with_repeats(program, random, num_repeats)
  schedule = steps.tolist()
  expected = oracles.live_bytes(program, schedule)
  assert _core.live_bytes(program.core, steps).tolist() == expected
  assert liveness.live_bytes(program, steps).tolist() == expected
  assert validate(program, schedule).peak_live_bytes == max(expected, default=0)


@pytest.mark.parametrize("num_changes", sweeps.all_but([1, 2], range(4)))
@settings(max_examples=25)
@given(program=random_programs(), random=st.randoms(use_true_random=False))
def test_core_and_validator_agree_on_what_is_valid(program, random, num_changes):
  schedule = program.schedule.tolist()
  for _ in range(num_changes):
    if schedule:
      schedule[random.randrange(len(schedule))] = random.randrange(program.num_ops)
      schedule.insert(random.randrange(len(schedule)), random.randrange(program.num_ops))
  fault = _core.check_schedule(program.core, np.array(schedule, np.int32))
  assert validate(program, schedule).is_valid == (not fault)


# ---- plans -------------------------------------------------------------------------------------


def test_skip_connection_is_made_again():
  program = programs.skip()
  for planner in (PeakPlanner(), CoopPlanner.published(alignment_bytes=1, partition="off"), AutoPlanner()):
    result = planner.plan(program, 17)
    assert result.schedule.tolist() == [0, 1, 2, 3, 0, 4]
    assert result.recompute_cost_s == 3.0
    assert planner.plan(program, 19).num_recomputed == 0  # Coop's arena loses 1 byte between c and d
  assert PeakPlanner().plan(program, 18).num_recomputed == 0
  assert PeakPlanner().plan(program, 14).is_feasible
  assert not AutoPlanner().plan(program, 13).is_feasible  # the last op alone needs 8 + 5 + 1


def test_overwritten_weight_is_not_read_again():
  program = programs.donated_step()
  for budget_bytes in (30, 29, 20):
    for planner in (PeakPlanner(), CoopPlanner(alignment_bytes=1), AutoPlanner()):
      check(program, planner.plan(program, budget_bytes), budget_bytes)


@sweeps.of_each_share
@settings(max_examples=15)
@given(program=random_programs())
def test_peak_switches_stay_valid(program, share):
  budget_bytes = int(share * peak_of(program))
  for planner in PEAK_SWITCHES:
    result = planner.plan(program, budget_bytes)
    check(program, result, budget_bytes)
    assert np.array_equal(result.schedule, planner.plan(program, budget_bytes).schedule)


@settings(max_examples=80)
@given(random_programs(max_ops=7, plain=True), SHARES)
def test_no_plan_beats_exact_search(program, share):
  budget_bytes = int(share * peak_of(program))
  best = oracles.cheapest_recompute(program, budget_bytes)
  result = PeakPlanner().plan(program, budget_bytes, order=program.schedule)
  first_runs = list(dict.fromkeys(result.schedule.tolist()))
  if result.is_feasible and first_runs == program.schedule.tolist():
    assert best is not None and result.recompute_cost_s >= best - 1e-9
  if best is not None:
    assert budget_bytes >= _core.lower_bound(program.core)[0]


# ---- transformers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
  "share, most_overhead, most_flops", [(0.5, 0.06, 0.01), (0.25, 0.17, 0.12), (0.12, 0.255, 0.205)]
)
def test_transformer_recomputes_little(share, most_overhead, most_flops):
  program = transformer(num_layers=12)
  budget_bytes = int(share * peak_of(program))
  result = PeakPlanner().plan(program, budget_bytes)
  check(program, result, budget_bytes)
  assert result.is_feasible
  assert result.overhead(program) <= most_overhead
  assert result.recompute_flops / program.op_flops.sum() <= most_flops


def test_unrolled_steps_are_planned_one_by_one():
  once, twice = transformer(num_layers=4), programs.unrolled(transformer(num_layers=4), 2)
  budget_bytes = peak_of(once) // 5
  single, double = (PeakPlanner().plan(program, budget_bytes) for program in (once, twice))
  check(twice, double, budget_bytes)
  assert single.is_feasible and double.is_feasible
  assert double.recompute_cost_s <= 2.02 * single.recompute_cost_s


def test_memory_order_defers_nothing_to_luck():
  program = transformer(num_layers=3)
  shuffled = _random_order(program, seed=0)
  assert not _core.check_schedule(program.core, shuffled)
  given_peak = peak_of(program, shuffled)
  assert peak_of(program, _core.schedule_for_memory(program.core)) <= peak_of(program) <= given_peak


def _random_order(program, seed) -> np.ndarray:
  rng = np.random.default_rng(seed)
  ready, done, order = [], set(), []
  waiting = {
    op: {int(program.value_producer[value]) for value in program.inputs(op)} - {-1} for op in range(program.num_ops)
  }
  while len(order) < program.num_ops:
    ready = [op for op, before in waiting.items() if op not in done and before <= done]
    order.append(int(rng.choice(ready)))
    done.add(order[-1])
  return np.array(order, np.int32)


# ---- limits and bad input ----------------------------------------------------------------------


def test_empty_and_single_op_programs():
  empty = programs.Builder().build()
  for name in base.PLANNERS:
    result = base.get_planner(name).plan(empty, 0)
    assert result.is_feasible and len(result.schedule) == 0 and result.peak_step == -1
  single = programs.Builder()
  single.op([], 5, workspace=3)
  for name in base.PLANNERS:
    assert base.get_planner(name).plan(single.build(), 8).is_feasible
    assert not base.get_planner(name).plan(single.build(), 7).is_feasible


@pytest.mark.parametrize("planner", base.PLANNERS)
def test_malformed_programs_are_refused_with_the_fault(planner):
  def broken(change) -> str:
    builder = programs.Builder()
    a = builder.op([builder.value(1)], 1)
    builder.op([a], 1)
    change(builder)
    with pytest.raises(InvalidProgramError) as error:
      base.get_planner(planner).plan(builder.build(), 10)
    return str(error.value)

  assert "cycle" in broken(lambda b: b.inputs[0].append(2))
  assert "negative size" in broken(lambda b: b.bytes.__setitem__(1, -1))
  assert "unknown value 9" in broken(lambda b: b.inputs[1].append(9))
  assert "cost" in broken(lambda b: b.cost_s.__setitem__(0, float("inf")))


@pytest.mark.parametrize("planner", base.PLANNERS)
def test_budgets_out_of_reach_are_refused_with_what_forces_them(planner):
  options = {"stage1_iterations": 200_000, "stage2_iterations": 20_000} if planner == "fastsa" else {}
  plan = dataclasses.replace(base.get_planner(planner), **options).plan
  result = plan(programs.skip(), 13)
  with pytest.raises(
    BudgetInfeasibleError, match="no schedule whatever has fewer than 14 B live, .*: op 4 needs them"
  ) as caught:
    result.require_feasible(programs.skip())
  assert caught.value.budget_bytes == 13 and caught.value.smallest_bytes == result.peak_live_bytes >= 14
  assert caught.value.largest
  enough = plan(programs.skip(), 30)
  assert enough.require_feasible(programs.skip()) is enough


@settings(max_examples=60)
@given(random_programs(max_ops=10), st.sampled_from([1.0, 0.7, 0.4]))
def test_every_planner_is_valid_and_the_same_twice(program, share):
  """Aliases, in-place pairs, pinned ops, several outputs, zero bytes; the empty program too."""
  budget_bytes = int(share * peak_of(program))
  for planner in (
    CoopPlanner(),
    FastSAPlanner(stage1_iterations=3000, stage2_iterations=3000),
    ModelPlanner(),
    ExactPlanner(heuristic="peak"),
    SegmentPlanner(),
    PeakPlanner.greedy(),
  ):
    result = planner.plan(program, budget_bytes)
    check(program, result, budget_bytes)
    assert np.array_equal(result.schedule, planner.plan(program, budget_bytes).schedule)
    assert 0 <= result.gap(program) <= result.overhead(program) + 1e-9


def test_unknown_names():
  with pytest.raises(ValueError, match="auto, coop, exact, fastsa, model, peak, segments"):
    base.get_planner("greedy")


# ---- the validator -----------------------------------------------------------------------------


@pytest.mark.parametrize(
  "schedule, rule",
  [
    ([0, 1, 2, 3], Rule.MISSING_OP),
    ([1, 0, 1, 2, 3, 4], Rule.READ_BEFORE_MADE),
    ([0, 1, 2, 3, 9, 4], Rule.UNKNOWN_OP),
  ],
)
def test_validator_names_a_broken_order(schedule, rule):
  assert rule in {violation.rule for violation in validate(programs.skip(), schedule).violations}


def test_validator_names_broken_storage_and_claims():
  pair = programs.in_place_pair()
  assert validate(pair, [0, 1, 1, 2]).violations[0].rule is Rule.READ_AFTER_OVERWRITE
  assert validate(pair, [0, 1, 2, 2]).violations[0].rule is Rule.FORBIDDEN_REPEAT
  builder = programs.Builder()
  builder.op([], 1)
  builder.op([], 1, control=[0])
  assert validate(builder.build(), [1, 0]).violations[0].rule is Rule.CONTROL_ORDER
  skip = programs.skip()
  report = validate(skip, skip.schedule, budget_bytes=17, claimed_peak_bytes=1, claimed_cost_s=1.0)
  assert [violation.rule for violation in report.violations] == [Rule.OVER_BUDGET, Rule.WRONG_PEAK, Rule.WRONG_COST]
  assert "step 3" in str(report)


def test_validator_names_what_should_be_in_place():
  pair = programs.in_place_pair()  # value 1 is overwritten by value 2; the output has no placement
  assert validate(pair, pair.schedule, placements=[(1, 0, 8), (2, 1, 8)]).is_valid
  moved = validate(pair, pair.schedule, placements=[(1, 0, 8), (2, 1, 16)]).violations
  assert [violation.rule for violation in moved] == [Rule.NOT_IN_PLACE]


@pytest.mark.parametrize(
  "change, rule",
  [
    (lambda rows: rows[:-1], Rule.WRONG_PLACEMENT),
    (lambda rows: [*rows, (1, 3, 0)], Rule.WRONG_PLACEMENT),
    (lambda rows: [(value, step, offset + 20) for value, step, offset in rows], Rule.OUTSIDE_ARENA),
    (lambda rows: [(value, step, 0) for value, step, offset in rows], Rule.OVERLAP),
    (lambda rows: [(value, step, offset + 1) for value, step, offset in rows], Rule.MISALIGNED),
  ],
)
def test_validator_names_a_broken_placement(change, rule):
  program = programs.skip()
  rows = [(1, 0, 0), (2, 1, 8), (3, 2, 16), (4, 3, 8), (5, 4, 16)]
  sound = {"arena_bytes": 24, "alignment_bytes": 8}
  assert validate(program, program.schedule, placements=rows, **sound).is_valid
  found = validate(program, program.schedule, placements=change(rows), **sound).violations
  assert rule in {violation.rule for violation in found}
