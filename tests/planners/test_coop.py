"""Coop, DTR and DTE: switches, presets, counters, placements."""

import dataclasses
import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopjax.errors import InvalidProgramError
from coopjax.planners.coop import ABLATIONS, COSTS, EVICTIONS, NUM_GROUPS, CoopPlanner
from coopjax.program.validate import validate
from tests.support import programs, sweeps
from tests.support.programs import peak_of
from tests.support.strategies import random_programs
from tests.support.transformer import transformer

_PARTITIONS = [("off", 1), *itertools.product(("density", "op_list"), NUM_GROUPS)]
SWITCHES = [
  CoopPlanner(
    eviction,
    cost,
    partition,
    num_groups,
    recomputes_in_place=in_place,
    evicts_eagerly=eager,
    knows_future=future,
    reuses_costs=reuses,
    num_small_pieces=small,
    small_piece_bytes=2,
    alignment_bytes=1,
  )
  for eviction, cost, (partition, num_groups), in_place, eager, future, reuses, small in itertools.product(
    EVICTIONS, COSTS, _PARTITIONS, *[[False, True]] * 4, [0, 3]
  )
]


def with_kinds(program):
  return dataclasses.replace(
    program, op_kinds=tuple(("dot_general", "exp", "add")[op % 3] for op in range(program.num_ops))
  )


def check(program, planner, budget_bytes):
  result = planner.plan(program, budget_bytes)
  is_placed = result.counters["failed_step"] < 0
  report = validate(
    program,
    result.schedule,
    budget_bytes=budget_bytes if is_placed else None,
    claimed_peak_bytes=result.peak_live_bytes,
    claimed_cost_s=result.recompute_cost_s,
    placements=result.placements if is_placed else None,
    arena_bytes=budget_bytes,
    alignment_bytes=planner.alignment_bytes,
  )
  assert report.is_valid, f"{planner}: {report}"
  return result


@sweeps.of_each_share
@settings(max_examples=12)
@given(program=random_programs(), seed=st.integers(0, 2**32))
def test_product_of_switches_is_valid_with_placements(program, share, seed):
  program, budget_bytes = with_kinds(program), int(share * peak_of(program))
  for planner in random.Random(seed).sample(SWITCHES, 60):
    check(program, planner, budget_bytes)


@sweeps.of_each_share
@settings(max_examples=10)
@given(program=random_programs())
def test_presets_are_valid_and_deterministic(program, share):
  program, budget_bytes = with_kinds(program), int(share * peak_of(program))
  for planner in ABLATIONS.values():
    planner = dataclasses.replace(planner, alignment_bytes=1)
    first, second = check(program, planner, budget_bytes), planner.plan(program, budget_bytes)
    assert np.array_equal(first.schedule, second.schedule)
    assert np.array_equal(first.placements, second.placements)


def test_skip_connection_is_made_again():
  program = programs.skip()
  result = CoopPlanner.published(alignment_bytes=1, partition="off").plan(program, 17)
  assert result.schedule.tolist() == [0, 1, 2, 3, 0, 4]
  assert result.recompute_cost_s == 3.0


@pytest.mark.parametrize("share", [0.25, 0.4, 0.6])
def test_costs_reused_find_the_same_windows(share):
  program = transformer(num_layers=4)
  budget_bytes = int(share * peak_of(program))
  reused, anew = (CoopPlanner.published(reuses_costs=reuses).plan(program, budget_bytes) for reuses in (True, False))
  assert reused.recompute_cost_s == pytest.approx(anew.recompute_cost_s, rel=0.05)  # but for ties
  assert anew.counters["candidates"] == anew.counters["scanned"] > reused.counters["candidates"]


def test_counters_by_hand():
  """17 bytes: at d (5) b is dead and 17 - 8 - 5 = 4 are left; a (8) goes, which makes 12 of 17 free; a comes back."""
  result = CoopPlanner.published(alignment_bytes=1, partition="off").plan(programs.skip(), 17)
  assert result.counters["evictions"] == result.counters["searches"] == 1
  assert result.counters["fragmentation"] == pytest.approx(12 / 17)
  heap_bytes = result.counters["heap_bytes"]
  assert result.counters["heap_fragmentation"] == pytest.approx((heap_bytes - result.peak_live_bytes) / heap_bytes)


def test_transformer_window_fragments_less_than_the_loop():
  program = transformer(num_layers=8)
  budget_bytes = int(0.4 * peak_of(program))
  coop, dtr = CoopPlanner.published().plan(program, budget_bytes), CoopPlanner.dtr().plan(program, budget_bytes)
  assert coop.is_feasible and dtr.is_feasible
  assert coop.counters["fragmentation"] < dtr.counters["fragmentation"]


def test_sharing_agrees_with_evictions_that_come_later():
  """w may take u's buffer or, listed second, v's. u is to be read again, so v gives; then u is evicted before that.

  By the rules u's production ended at w, so u left its buffer, and v was still live there: w must not lie in v.
  """
  b = programs.Builder()
  x = b.value(1)
  u = b.op([x], 8)
  v = b.op([x], 8)
  w = b.op([u, v], 8, share=[u, v])
  big = b.op([w], 8)  # u (8) at 0, w (8) at 8: in 20 bytes only 4 are left, so u goes
  b.op([u, b.op([big], 1)], 1)
  program = b.build()
  result = check(program, CoopPlanner.published(partition="off", alignment_bytes=1), 20)
  assert result.is_feasible and result.num_recomputed > 0
  for eviction, future, budget_bytes in itertools.product(EVICTIONS, [False, True], range(17, 26)):
    check(program, CoopPlanner(eviction, knows_future=future, partition="off", alignment_bytes=1), budget_bytes)


def test_op_list_needs_kinds():
  with pytest.raises(InvalidProgramError, match="0 op_kinds"):
    CoopPlanner(partition="op_list").plan(programs.skip(), 19)
  assert CoopPlanner(partition="op_list").plan(programs.Builder().build(), 0).is_feasible


def test_op_list_decides_the_end_of_the_arena():
  program = dataclasses.replace(programs.chain(), op_kinds=("exp", "dot_general", "exp"))
  result = CoopPlanner.published(partition="op_list", alignment_bytes=1).plan(program, 20)
  assert result.placements[:, 2].tolist() == [
    18,
    0,
    16,
  ]  # cheap from the high end (a is dead when c comes), the product low


@pytest.mark.parametrize(
  "bad",
  [
    {"eviction": "random"},
    {"cost": "x"},
    {"partition": "x"},
    {"num_groups": 5},
    {"alignment_bytes": 0},
    {"num_small_pieces": -1},
  ],
)
def test_bad_switches_are_refused(bad):
  with pytest.raises(ValueError, match=next(iter(bad))):
    CoopPlanner(**bad)


def test_as_shipped_is_oneflows_defaults():
  planner = CoopPlanner.as_shipped()
  assert (planner.partition, planner.num_small_pieces, planner.small_piece_bytes, planner.alignment_bytes) == (
    "off",
    1024,
    10240,
    512,
  )
  assert not planner.knows_future and planner.cost == "neighbours"
