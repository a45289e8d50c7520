"""MODeL: orders against exhaustive search, addresses against exhaustive packing, and the fallbacks."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopjax import _core
from coopjax.errors import InvalidProgramError
from coopjax.planners.milp_solvers import HighsSolver, MilpResult, ScipySolver
from coopjax.planners.model.address_ilp import AddressOptions, plan_addresses
from coopjax.planners.model.control_edges import add_control_edges, with_edges
from coopjax.planners.model.graph import forced_bytes, order_graph
from coopjax.planners.model.order_ilp import OrderIlp, pruned_horizon
from coopjax.planners.model.planner import HORIZONS, ModelPlanner
from coopjax.program import liveness
from coopjax.program.step_program import OUTPUT
from coopjax.program.validate import validate
from tests.support import oracles, programs, sweeps
from tests.support.programs import peak_of
from tests.support.strategies import random_programs
from tests.support.transformer import transformer

SOLVERS = [HighsSolver(), ScipySolver()]
both_solvers = pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: solver.name)
SWITCHES = [
  ModelPlanner(
    horizon=horizon,
    updates_early=early,
    generators_late=late,
    schedulers=anneals,
    cuts=cuts,
    anneals=anneals,
    window_ops=window,
    contracts=preplaces,
    preplaces=preplaces,
    max_windows=2,
  )
  for horizon, early, late, cuts, anneals, window, preplaces in itertools.product(
    HORIZONS, *[[False, True]] * 4, [0, 4], [False, True]
  )
]
# The ILP on its own: no bound but the largest working set, no warm start but the list schedulers'.
ILP_ONLY = ModelPlanner(horizon="num_ops", cuts=False, anneals=False, window_ops=0, relative_gap=0.0, places=False)


def check(program, result, budget_bytes, alignment_bytes=1) -> None:
  report = validate(
    program,
    result.schedule,
    budget_bytes=budget_bytes if result.is_feasible else None,
    claimed_peak_bytes=result.peak_live_bytes,
    claimed_cost_s=0.0,
    placements=result.placements,
    arena_bytes=int(result.counters["heap_bytes"]),
    alignment_bytes=alignment_bytes,
  )
  assert report.is_valid, str(report)
  assert len(result.schedule) == program.num_ops
  assert result.counters["bound_bytes"] <= result.peak_live_bytes


def has_exclusive_shares(program) -> bool:
  """Whether two shares of one op want the same value or output: then the first one acts, and a bound may miss that."""
  rows = program.may_share.tolist()
  return any(len({(row[0], row[column]) for row in rows}) < len(rows) for column in (1, 2))


# ---- order -------------------------------------------------------------------------------------


@both_solvers
@settings(max_examples=40)
@given(program=random_programs(max_ops=8))
def test_the_ilp_finds_the_least_peak_of_all_orders(solver, program):
  least = oracles.least_order_peak(program)
  result = dataclasses.replace(ILP_ONLY, solver=solver).plan(program, least)
  assert result.counters["bound_bytes"] <= least
  if not has_exclusive_shares(program):
    assert result.peak_live_bytes == least and result.is_feasible
    assert result.counters["gap"] == pytest.approx(0, abs=1e-6)


@settings(max_examples=80)
@given(random_programs(max_ops=8))
def test_bounds_hold_for_every_order(program):
  least = oracles.least_order_peak(program)
  assert forced_bytes(order_graph(program, program.schedule)).max(initial=0) <= least
  found = _core.reorder_by_cuts(program.core, program.schedule)
  assert found["bound_bytes"] <= least <= found["peak_bytes"] <= peak_of(program)
  assert peak_of(program, found["schedule"]) == found["peak_bytes"]
  result = ModelPlanner(places=False).plan(program, 0)
  assert result.counters["bound_bytes"] <= least <= result.peak_live_bytes


@settings(max_examples=60)
@given(random_programs(max_ops=10, plain=True))
def test_plain_programs_are_ordered_optimally(program):
  assert ModelPlanner(relative_gap=0.0).plan(program, 0).peak_live_bytes == oracles.least_order_peak(program)


def test_the_pruned_horizon_shares_timesteps():
  # Two chains of three ops join: four levels, one per cent more is five timesteps for seven ops.
  builder = programs.Builder()
  ends = []
  for _ in range(2):
    value = builder.value(1)
    for size in (5, 3, 1):
      value = builder.op([value], size)
    ends.append(value)
  builder.op(ends, 1)
  graph = order_graph(builder.build(), builder.build().schedule)
  assert graph.num_ops == 7 and pruned_horizon(graph) == 5
  # One chain after the other: 5, 5 + 3, 3 + 1, then 1 + 5, 1 + 5 + 3. In five timesteps the second chain is at most one
  # behind the first: 5, then 5 + 3 with 5, then 3 + 1 with 5 + 3.
  whole, pruned = (OrderIlp(graph, horizon, 0, 100) for horizon in (7, 5))
  bytes_of = [
    HighsSolver().solve(ilp.build(), max_steps=1_000_000_000).objective * ilp.unit_bytes for ilp in (whole, pruned)
  ]
  assert bytes_of == [9, 13]


def test_a_window_leaves_the_rest_in_place():
  program = transformer(num_layers=1)
  graph = order_graph(program, program.schedule, 10, 22)
  ilp = OrderIlp(graph, graph.num_ops, 0, peak_of(program))
  start = ilp.build() and ilp.start_of(np.arange(12))
  live = liveness.live_bytes(program, program.schedule)[10:22]
  assert start[0] * ilp.unit_bytes == pytest.approx(live.max(), rel=1e-6)


@pytest.mark.parametrize("planner", sweeps.all_but(SWITCHES[::12], SWITCHES[::4]))
@settings(max_examples=8)
@given(program=random_programs(max_ops=12), share=st.sampled_from([1.0, 0.6]))
def test_switches_are_valid(planner, program, share):
  budget_bytes = int(share * peak_of(program))
  check(program, planner.plan(program, budget_bytes, max_steps=200_000_000), budget_bytes)


@pytest.mark.parametrize("planner", sweeps.all_but(SWITCHES[::3], SWITCHES))
def test_every_switch_on_one_program(planner):
  program = training_step(num_layers=3)
  check(program, planner.plan(program, 0, max_steps=500_000_000), 0)


def training_step(num_layers: int, weight: int = 40, activation: int = 3):
  """Forward, backward, then all updates of the weights, as a traced step has them: 40 bytes of gradient per layer."""
  b = programs.Builder()
  weights = [b.value(weight) for _ in range(num_layers)]
  acts = [b.value(activation)]
  for w in weights:
    acts.append(b.op([acts[-1], w], activation))
  cotangent, gradients = b.op([acts[-1]], activation), []
  for layer in reversed(range(num_layers)):
    gradients.append((layer, b.op([acts[layer], cotangent], weight)))
    cotangent = b.op([cotangent, weights[layer]], activation)
  for layer, gradient in gradients:
    b.op([weights[layer], gradient], weight, kind=OUTPUT, in_place_of=weights[layer], can_recompute=False)
  return b.build()


@pytest.mark.parametrize("horizon", HORIZONS)
def test_updates_move_into_the_backward_pass(horizon):
  # Given: 4 gradients of 40 at once and the last cotangent. At best one at a time: while layer 3's is made there are
  # activations 1 .. 3 and the cotangent of 3 bytes each beside it.
  program = training_step(num_layers=4)
  result = ModelPlanner(horizon=horizon, cuts=False, anneals=False).plan(program, 60)
  check(program, result, 60)
  assert peak_of(program) == 4 * 40 + 3 + 3
  assert result.peak_live_bytes == 40 + 4 * 3 and result.is_feasible
  assert result.counters["fragmentation"] == 0
  assert result.counters["is_proven"] == (horizon == "num_ops")


def test_cuts_prove_without_an_ilp():
  program = transformer(num_layers=4)
  result = ModelPlanner().plan(program, 0)
  check(program, result, 0)
  assert result.counters["is_proven"] and result.counters["ilps"] == 0


def test_branching_proves_what_one_cut_can_not():
  # Two chains 10, 10, 4, 4, ... that join: each op alone can do with 20, but whichever chain comes second has the
  # other's 4 beside its 10 + 10. The ends are too far from that for the bound by working sets.
  builder = programs.Builder()
  ends = []
  for _ in range(2):
    value = builder.value(1)
    for size in (10, 10, *[4] * 20):
      value = builder.op([value], size)
    ends.append(value)
  builder.op(ends, 1)
  program = builder.build()
  options = dict(anneals=False, relative_gap=0.0, max_entries=0, window_ops=0)
  cut, branched = (ModelPlanner(max_branches=count, **options).plan(program, 0) for count in (0, 24))
  assert cut.peak_live_bytes == branched.peak_live_bytes == 24
  assert cut.counters["bound_bytes"] == 20 and cut.counters["fell_back"]
  assert branched.counters["bound_bytes"] == 24 and not branched.counters["fell_back"]


# ---- control edges -----------------------------------------------------------------------------


def test_control_edges_move_updates_early_and_generators_late():
  program = training_step(num_layers=3)
  early = add_control_edges(program, updates_early=True, generators_late=False)
  assert len(early.op_control[1]) > 0
  assert not _core.check_schedule(program.core, early.schedule)
  assert peak_of(program, early.schedule) < peak_of(program)
  builder = programs.Builder()
  noise = builder.op([], 20)
  x = builder.op([builder.op([builder.value(1)], 15)], 5)
  builder.op([noise, x], 1)
  late = add_control_edges(builder.build(), updates_early=False, generators_late=True)
  assert late.control(0).tolist() == [2] and late.schedule.tolist() == [1, 2, 0, 3]
  assert add_control_edges(program, updates_early=False, generators_late=False) is program


@settings(max_examples=60)
@given(random_programs(max_ops=14), st.booleans(), st.booleans())
def test_control_edges_only_take_orders_away(program, early, late):
  restricted = add_control_edges(program, updates_early=early, generators_late=late)
  assert not restricted.core.check()
  assert not _core.check_schedule(program.core, restricted.schedule)


def test_an_edge_reorders_only_what_it_must():
  builder = programs.Builder()
  for _ in range(4):
    builder.op([], 1)
  moved = with_edges(builder.build(), np.array([0, 1, 2, 3], np.int32), [(3, 1)])
  assert moved.schedule.tolist() == [0, 3, 1, 2]


# ---- addresses ---------------------------------------------------------------------------------


def least_heap(program, schedule) -> int:
  """The smallest heap: some order of placing everything in its lowest gap finds it. Programs without storage tricks."""
  spans = [
    (value, start, end)
    for value, start, end in zip(*liveness.live_ranges(program, schedule))
    if program.value_bytes[value] > 0
  ]
  best = None
  for order in itertools.permutations(spans):
    placed = []
    for value, start, end in order:
      size, offset = int(program.value_bytes[value]), 0
      for low, high in sorted((low, high) for low, high, first, last in placed if first < end and start < last):
        if low - offset >= size:
          break
        offset = max(offset, high)
      placed.append((offset, offset + size, start, end))
    heap = max((high for _, high, _, _ in placed), default=0)
    best = heap if best is None else min(best, heap)
  return best


@both_solvers
@pytest.mark.parametrize("preplaces", [False, True])
@settings(max_examples=30)
@given(program=random_programs(max_ops=6, plain=True))
def test_addresses_are_as_tight_as_exhaustive_search(solver, preplaces, program):
  options = AddressOptions(1, preplaces, 10_000, 10.0, solver)
  addresses = plan_addresses(program, program.schedule, options)
  report = validate(
    program, program.schedule, placements=addresses.placements, arena_bytes=int(addresses.counters["heap_bytes"])
  )
  assert report.is_valid, str(report)
  assert addresses.counters["heap_bytes"] == least_heap(program, program.schedule)


def interleaved():
  """Live ranges that first fit by size leaves a hole in: 5 bytes over all, then 3, 2 | 2, 3 crossing in the middle."""
  builder = programs.Builder()
  a = builder.op([], 2)
  b = builder.op([], 3)
  c = builder.op([a], 2)
  d = builder.op([b], 3)
  e = builder.op([c], 1)
  builder.op([d, e], 4)
  return builder.build()


@both_solvers
@pytest.mark.parametrize("alignment_bytes", [1, 4])
def test_offsets_are_aligned_and_tight(solver, alignment_bytes):
  program = interleaved()
  result = ModelPlanner(solver=solver, alignment_bytes=alignment_bytes).plan(program, 100)
  check(program, result, 100, alignment_bytes)
  if alignment_bytes == 1:
    assert result.counters["fragmentation"] == 0


def test_storage_that_is_passed_on_keeps_its_address():
  builder = programs.Builder()
  a = builder.op([], 8)
  w = builder.op([a], 8, in_place_of=a)
  s = builder.op([w], 6, share=[w])
  builder.op([s], 50, kind=OUTPUT, can_recompute=False)
  program = builder.build()
  result = ModelPlanner().plan(program, 8)
  check(program, result, 8)
  assert {int(offset) for _, _, offset in result.placements} == {0} and result.is_feasible


def test_workspace_has_room_in_the_heap():
  builder = programs.Builder()
  builder.op([builder.op([], 4)], 3, workspace=5)
  result = ModelPlanner().plan(builder.build(), 12)
  assert result.peak_live_bytes == result.counters["heap_bytes"] == 12


# ---- fallbacks and limits ----------------------------------------------------------------------


class GivesUp:
  """A solver whose time is always up."""

  name = "gives up"

  def solve(self, problem, *, max_steps, relative_gap=0.0, start=None):
    del problem, max_steps, relative_gap, start
    return MilpResult("cut_short", None, np.inf, -np.inf, np.inf, 0.0)


def test_time_out_and_size_fall_back_to_the_best_heuristic_order():
  program = training_step(num_layers=4)
  options = dict(cuts=False, anneals=False, relative_gap=0.0)
  by_rules = peak_of(program, _core.schedule_for_memory(program.core))
  for planner, reason in (
    (ModelPlanner(solver=GivesUp(), **options), "ilp_cut_short"),
    (ModelPlanner(max_entries=0, **options), "ilp_too_large"),
  ):
    result = planner.plan(program, 0)
    check(program, result, 0)
    assert result.peak_live_bytes == by_rules
    assert result.counters["fell_back"] and result.counters[reason] and not result.counters["is_proven"]
    assert result.counters["gap"] > 0


def test_no_time_still_gives_a_valid_plan():
  program = transformer(num_layers=2)
  check(program, ModelPlanner().plan(program, 0, max_steps=0), 0)


def test_same_program_same_plan_and_orders_are_taken_up():
  program = transformer(num_layers=1)
  first, second = (ModelPlanner().plan(program, 0) for _ in range(2))
  assert first.schedule.tolist() == second.schedule.tolist()
  assert first.placements.tolist() == second.placements.tolist()
  again = ModelPlanner(cuts=False, anneals=False, max_entries=0).plan(program, 0, order=first.schedule)
  assert again.peak_live_bytes == first.peak_live_bytes


def test_bad_input():
  with pytest.raises(ValueError, match="pruned"):
    ModelPlanner(horizon="long")
  with pytest.raises(ValueError, match="relative_gap=1"):
    ModelPlanner(relative_gap=1)
  builder = programs.Builder()
  builder.op([builder.value(1)], -1)
  with pytest.raises(InvalidProgramError, match="negative size"):
    ModelPlanner().plan(builder.build(), 1)
