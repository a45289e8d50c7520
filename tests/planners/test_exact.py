"""Lower bounds and exact plans against exhaustive search, heuristics and the independent validator."""

import dataclasses

import numpy as np
import pytest

from coopjax import _core
from coopjax.planners.exact.planner import STATUSES, ExactPlanner, stages_of
from coopjax.planners.exact.watched_model import stretches_of
from coopjax.planners.milp_solvers import HighsSolver, ScipySolver
from coopjax.planners.peak import PeakPlanner
from coopjax.program.step_program import OUTPUT, PARAMETER, TEMPORARY
from coopjax.program.validate import validate
from tests.support import oracles, programs
from tests.support.programs import peak_of
from tests.support.transformer import transformer

SHARES = (0.9, 0.7, 0.5, 0.35)


def unit_costs(program):
  return dataclasses.replace(program, op_cost_s=np.ones(program.num_ops))


def status_of(result) -> str:
  return STATUSES[int(result.counters["status"])]


def tiny_program(rng, num_ops: int, plain: bool):
  """Values that are read again late; unless ``plain`` with every storage trick, pinned ops and control edges."""
  b = programs.Builder()
  readable = [b.value(3), b.value(2)]
  for op in range(num_ops):
    inputs = [readable[int(rng.integers(len(readable)))] for _ in range(int(rng.integers(1, 4)))]
    inputs = list(dict.fromkeys([readable[-1]] * (rng.random() < 0.6) + inputs))
    sizes = [int(rng.integers(0, 8)) for _ in range(1 if plain or rng.random() < 0.8 else 2)]
    options = {} if plain else _storage_tricks(rng, b, op, inputs, sizes)
    made = b.op(inputs, *sizes, cost_s=float(rng.integers(1, 5)), **options)
    if options.get("in_place_of", -1) >= 0:
      readable.remove(options["in_place_of"])
    readable += [made] if isinstance(made, int) else list(made)
  return b.build()


def _storage_tricks(rng, b, op: int, inputs: list[int], sizes: list[int]) -> dict:
  kind, first = OUTPUT if rng.random() < 0.1 else TEMPORARY, inputs[0]
  options = {"kind": kind, "workspace": int(rng.choice([0, 0, 0, 3])), "can_recompute": bool(rng.random() < 0.9)}
  if rng.random() < 0.25 and (b.kind[first], kind) in {(TEMPORARY, TEMPORARY), (PARAMETER, OUTPUT)}:
    options["in_place_of"], sizes[0] = first, b.bytes[first]
  else:
    options["share"] = [value for value in inputs if rng.random() < 0.4 and b.bytes[value] >= sizes[0]]
  if op and rng.random() < 0.1:
    options["control"] = [int(rng.integers(op))]
  return options


def tiny_cases(first_seed: int, count: int, most_ops: int):
  """Programs, every other one plain, each with a budget between its bytes bound and its peak."""
  for seed in range(first_seed, first_seed + count):
    rng = np.random.default_rng(seed)
    program = tiny_program(rng, int(rng.integers(3, most_ops + 1)), plain=seed % 2 == 0)
    least_bytes = _core.lower_bound(program.core)[0]
    yield program, int(rng.integers(least_bytes, peak_of(program) + 1))


# ---- bounds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_seed, count", [(0, 200), pytest.param(200, 300, marks=pytest.mark.sweep)])
def test_no_schedule_in_any_order_beats_the_bounds(first_seed, count):
  num_positive = num_tight = 0
  for program, budget_bytes in tiny_cases(first_seed, count, most_ops=6):
    best_s = oracles.cheapest_schedule(program, budget_bytes)
    bound_s = _core.cost_bound(program.core, budget_bytes)
    if best_s is not None:
      assert bound_s <= best_s + 1e-9
      num_positive += best_s > 0
      num_tight += bound_s >= best_s - 1e-9 > 0
    assert oracles.cheapest_schedule(program, _core.lower_bound(program.core)[0] - 1) is None
  assert num_positive > 0.03 * count and num_tight > 0.25 * num_positive


def test_bounds_of_small_programs_are_exact():
  # a (8 bytes, 3 s) or not across d's 5 + 5 bytes: for 1 byte less 1/8 of it, rounded up to the unit 1; for 4 less
  # half of it. The last op needs 8 + 5 + 1.
  skip = programs.skip()
  assert [_core.cost_bound(skip.core, budget_bytes) for budget_bytes in (18, 17, 14, 13)] == [0.0, 1.0, 2.0, np.inf]
  pair = programs.in_place_pair()
  assert [_core.cost_bound(pair.core, budget_bytes) for budget_bytes in (8, 7)] == [0.0, np.inf]
  # 16 values of 10 bytes stand before the first backward op, which makes another: 17; each one less costs 1.
  layers = programs.forward_backward(16)
  assert [_core.cost_bound(layers.core, 10 * count) for count in (17, 16, 12)] == [0.0, 1.0, 5.0]


def test_bound_is_rounded_up_only_to_a_common_unit():
  program = programs.forward_backward(16)
  assert _core.cost_unit(program.core) == 1.0
  uneven = dataclasses.replace(program, op_cost_s=np.where(np.arange(program.num_ops) == 3, np.sqrt(2), 1.0))
  assert _core.cost_unit(uneven.core) == 0.0
  assert 0 < _core.cost_bound(program.core, 155) - _core.cost_bound(uneven.core, 155) < 1


@pytest.mark.parametrize("num_layers", [2, 12])
@pytest.mark.parametrize("share", SHARES)
def test_gap_of_transformer_plans_is_small(num_layers, share):
  program = transformer(num_layers)
  result = PeakPlanner().plan(program, int(share * peak_of(program)))
  assert 0 <= result.least_overhead(program) <= result.overhead(program)
  assert result.gap(program) <= 0.025
  assert result.gap(program) == pytest.approx(result.overhead(program) - result.least_overhead(program))


def test_gap_of_a_plan_over_budget_is_that_to_plans_as_large():
  program = programs.skip()
  result = PeakPlanner().plan(program, 0)
  assert not result.is_feasible and result.peak_live_bytes == 14
  assert result.least_overhead(program) == pytest.approx(2 / 7) and result.gap(program) == pytest.approx(1 / 7)


# ---- exact plans -------------------------------------------------------------------------------


@pytest.mark.parametrize(
  "solver, first_seed, count",
  [
    (HighsSolver(), 0, 100),
    pytest.param(HighsSolver(), 100, 400, marks=pytest.mark.sweep),
    (ScipySolver(), 500, 120),
  ],
)
def test_exact_is_what_exhaustive_search_finds(solver, first_seed, count):
  num_repeating = num_unknown = 0
  for program, budget_bytes in tiny_cases(first_seed, count, most_ops=7):
    best_s = oracles.cheapest_in_stages(program, budget_bytes)
    result = ExactPlanner(solver, heuristic="peak").plan(program, budget_bytes, order=program.schedule)
    report = validate(
      program,
      result.schedule,
      budget_bytes=budget_bytes if result.is_feasible else None,
      claimed_peak_bytes=result.peak_live_bytes,
      claimed_cost_s=result.recompute_cost_s,
    )
    assert report.is_valid, str(report)
    status, bound_s = status_of(result), result.counters["order_bound_s"]
    cost_s = result.recompute_cost_s if result.is_feasible else np.inf
    if best_s is None:
      assert status in ("infeasible", "unknown") or result.is_feasible  # by repeats out of order
      continue
    # Heuristics may find cheaper repeats out of order, which end the search.
    assert (status != "infeasible" and bound_s <= best_s + 1e-9) or cost_s < best_s
    assert status != "optimal" or cost_s <= best_s + 1e-9
    num_unknown += status in ("unknown", "feasible")
    num_repeating += best_s > 0
  assert num_repeating > 0.05 * count and num_unknown <= 0.01 * count


@pytest.mark.parametrize(
  "make",
  [
    lambda: programs.forward_backward(9),
    pytest.param(lambda: unit_costs(transformer(1)), marks=pytest.mark.sweep),
    lambda: unit_costs(transformer(3)),
  ],
  ids=["chain", "transformer1", "transformer3"],
)
def test_bound_exact_heuristics_and_budgets_are_in_order(make):
  program = make()
  order = _core.schedule_for_memory(program.core)
  smaller_budget_s = np.inf
  for share in (0.5, 0.7, 0.9):
    budget_bytes = int(share * peak_of(program, order))
    heuristic = PeakPlanner().plan(program, budget_bytes, order=order)
    result = ExactPlanner(heuristic="peak").plan(program, budget_bytes, max_steps=6_000_000_000, order=order)
    assert status_of(result) in ("optimal", "infeasible")
    if status_of(result) == "infeasible":
      assert not heuristic.is_feasible and np.isinf(smaller_budget_s)
      continue
    assert _core.cost_bound(program.core, budget_bytes) <= result.counters["order_bound_s"] * (1 + 1e-9)
    assert result.is_feasible and result.recompute_cost_s <= smaller_budget_s * (1 + 1e-9)
    assert not heuristic.is_feasible or result.recompute_cost_s <= heuristic.recompute_cost_s * (1 + 1e-9)
    smaller_budget_s = result.recompute_cost_s


def test_a_plan_may_be_the_warm_start():
  program, budget_bytes = programs.skip(), 17
  plan = np.array([0, 1, 2, 0, 3, 0, 4], np.int32)  # a is made twice again, once in vain
  result = ExactPlanner().plan(program, budget_bytes, order=plan)
  assert result.counters["heuristic_cost_s"] == 6
  assert result.schedule.tolist() == [0, 1, 2, 3, 0, 4] and status_of(result) == "optimal"


def test_same_input_same_plan():
  program = unit_costs(transformer(1))
  results = [
    ExactPlanner(heuristic="peak").plan(program, int(0.6 * peak_of(program)), max_steps=6_000_000_000) for _ in range(2)
  ]
  assert np.array_equal(results[0].schedule, results[1].schedule)


# ---- when it can't be exact --------------------------------------------------------------------


def test_out_of_time_gives_the_warm_start_and_says_so():
  program = unit_costs(transformer(3))
  budget_bytes = int(0.5 * peak_of(program))
  heuristic = PeakPlanner().plan(program, budget_bytes)
  assert heuristic.is_feasible and heuristic.gap(program) > 0
  result = ExactPlanner().plan(program, budget_bytes, max_steps=0, order=heuristic.schedule)
  assert result.counters["is_cut_short"] == 1 and status_of(result) == "feasible"
  assert result.is_feasible and result.recompute_cost_s == heuristic.recompute_cost_s
  assert result.counters["heuristic_cost_s"] == heuristic.recompute_cost_s
  assert 0 < result.counters["order_bound_s"] < result.recompute_cost_s


def test_infeasible_budgets_are_proved_so():
  program = programs.skip()
  below_every_order = ExactPlanner(heuristic="peak").plan(program, 13)
  assert status_of(below_every_order) == "infeasible" and below_every_order.peak_live_bytes == 14
  # d (1) reads b (6) and c (5): 12 bytes. Between them a (4) is there for c: 6 + 4 + 5.
  diamond = programs.diamond()
  result = ExactPlanner(heuristic="peak").plan(diamond, 14, order=diamond.schedule)
  assert status_of(result) == "infeasible" and not result.is_feasible
  assert np.isinf(result.counters["order_bound_s"]) and result.peak_live_bytes == 15


def test_too_large_programs_get_the_heuristic_plan_and_the_bound():
  program = unit_costs(transformer(3))
  budget_bytes = int(0.5 * peak_of(program))
  result = ExactPlanner(heuristic="peak", max_ops=100).plan(program, budget_bytes)
  assert result.counters["is_too_large"] == 1 and result.counters["rounds"] == 0 and status_of(result) == "feasible"
  assert result.counters["order_bound_s"] == _core.cost_bound(program.core, budget_bytes)


def test_empty_program():
  result = ExactPlanner(heuristic="peak").plan(programs.Builder().build(), 0)
  assert result.is_feasible and status_of(result) == "optimal" and len(result.schedule) == 0


# ---- parts -------------------------------------------------------------------------------------


def test_stages_and_stretches():
  # Before op 2 runs for the first time 0 is repeated, before op 3 ops 1 and 0.
  assert stages_of(np.array([0, 1, 0, 2, 1, 0, 3]), np.arange(4)) == [
    (0, 0),
    (1, 1),
    (2, 0),
    (2, 2),
    (3, 1),
    (3, 0),
    (3, 3),
  ]
  stretches = stretches_of(5, [(1, 1), (3, 1), (3, 3)])
  assert [(stretch.first, stretch.end, stretch.above, stretch.next_first) for stretch in stretches] == [
    (0, (1, 1), -1, 2),
    (2, (3, 1), -1, 3),
    (3, (3, 3), 1, 4),
    (4, (5, 5), -1, 6),
  ]
