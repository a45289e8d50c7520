"""Both MILP solvers through the same tests: tiny problems with literal optima."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopjax.planners.milp import MilpBuilder
from coopjax.planners.milp_solvers import HighsSolver, ScipySolver, default_solver

both_solvers = pytest.mark.parametrize("solver", [HighsSolver(), ScipySolver()], ids=lambda solver: solver.name)


def knapsack(values, weights, capacity):
  """Values as negative costs of binaries under one weight limit."""
  builder = MilpBuilder()
  first = builder.variables(len(values), cost=-np.array(values, float))
  builder.row(np.arange(first, first + len(values)), weights, upper=capacity)
  return builder.build()


def parity(num_variables=60):
  """An even sum that must be odd: infeasible, though its relaxation is not."""
  builder = MilpBuilder()
  first = builder.variables(num_variables, cost=1.0)
  builder.row(np.arange(first, first + num_variables), 2.0, lower=num_variables + 1, upper=num_variables + 1)
  return builder.build()


def market_split(num_variables=34, num_rows=5, seed=0):
  """Rows to be split in halves exactly, each miss at its price: small, and far too hard to finish."""
  rng = np.random.default_rng(seed)
  weights = rng.integers(0, 100, (num_rows, num_variables)).astype(float)
  builder = MilpBuilder()
  builder.variables(num_variables)
  for row in weights:
    miss = builder.variables(2, upper=np.inf, cost=1.0, is_integer=False)
    builder.row([*range(num_variables), miss, miss + 1], [*row, 1.0, -1.0], lower=row.sum() // 2, upper=row.sum() // 2)
  problem = builder.build()
  start = np.zeros(problem.num_variables)
  start[num_variables::2] = problem.row_lower
  return problem, start


@both_solvers
def test_knapsack(solver):
  # 6 + 5 at weight 7 of 7; 10 needs 8; 6 + 4 is 10 at weight 6.
  result = solver.solve(knapsack([10, 6, 5, 4], [8, 4, 3, 2], 7), max_steps=1_000_000_000)
  assert result.status == "optimal" and result.gap == 0
  assert result.objective == result.bound == -11
  assert result.x.tolist() == [0, 1, 1, 0]


@both_solvers
def test_mixed_and_continuous_variables(solver):
  # min y with y >= 2.5 x and x >= 1.2: continuous 3.0, with x an integer 5.0.
  for is_integer, optimum in ((False, 3.0), (True, 5.0)):
    builder = MilpBuilder()
    x = builder.variables(1, upper=10, is_integer=is_integer)
    y = builder.variables(1, upper=np.inf, cost=1.0, is_integer=False)
    builder.row([y, x], [1.0, -2.5], lower=0.0)
    builder.row([x], 1.0, lower=1.2)
    result = solver.solve(builder.build(), max_steps=1_000_000_000)
    assert result.status == "optimal" and result.objective == pytest.approx(optimum)
    assert result.bound == pytest.approx(optimum)


@both_solvers
def test_equalities_negative_bounds_and_bulk_rows(solver):
  # x + y = -1, x - y = 5: x = 2, y = -3.
  builder = MilpBuilder()
  builder.variables(2, lower=-9, upper=9, cost=[1.0, 0.0])
  builder.rows([0, 2, 4], [0, 1, 0, 1], [1, 1, 1, -1], [-1, 5], [-1, 5])
  result = solver.solve(builder.build(), max_steps=1_000_000_000)
  assert result.x.tolist() == [2, -3] and result.objective == 2


@both_solvers
@pytest.mark.parametrize("is_integer", [False, True])
def test_infeasible(solver, is_integer):
  builder = MilpBuilder()
  first = builder.variables(2, upper=[1.0, np.inf], cost=[1.0, 0.0], is_integer=is_integer)
  builder.row([first], 1.0, lower=2.0)
  result = solver.solve(builder.build(), max_steps=1_000_000_000)
  assert result.status == "infeasible" and result.x is None and result.bound == np.inf
  assert solver.solve(parity(), max_steps=1_000_000_000).status == "infeasible"


@both_solvers
def test_no_variables_and_no_rows(solver):
  assert solver.solve(MilpBuilder().build(), max_steps=100_000_000).status == "optimal"
  empty = MilpBuilder()
  empty.row([], [], lower=1.0)
  assert solver.solve(empty.build(), max_steps=100_000_000).status == "infeasible"
  free = MilpBuilder()
  free.variables(2, lower=-3, cost=[1.0, -1.0])
  assert solver.solve(free.build(), max_steps=100_000_000).x.tolist() == [-3, 1]


@both_solvers
def test_time_out_reports_what_is_known(solver):
  problem, start = market_split()
  nothing = solver.solve(problem, max_steps=0)
  assert nothing.status == "cut_short" and nothing.x is None and nothing.gap == np.inf
  given_back = solver.solve(problem, max_steps=0, start=start)
  assert given_back.status == "feasible" and given_back.x.tolist() == start.tolist()
  result = solver.solve(problem, max_steps=50_000_000, start=start)
  assert result.status == "feasible" and result.seconds < 5
  assert 0 <= result.bound < result.objective <= problem.costs @ start
  assert result.gap == pytest.approx(1 - result.bound / result.objective)
  assert not problem.fault_of(result.x)


@both_solvers
def test_a_start_is_accepted_and_never_lost(solver):
  problem = knapsack([10, 6, 5, 4], [8, 4, 3, 2], 7)
  assert solver.solve(problem, max_steps=1_000_000_000, start=np.array([0.0, 0, 1, 1])).objective == -11
  best = np.array([0.0, 1, 1, 0])
  assert solver.solve(problem, max_steps=1_000_000_000, start=best, relative_gap=0.9).objective == -11
  with pytest.raises(ValueError, match="row 0 is 12"):
    solver.solve(problem, max_steps=1_000_000_000, start=np.array([1.0, 1, 0, 0]))
  with pytest.raises(ValueError, match="variable 2 = 0.5 is not an integer"):
    solver.solve(problem, max_steps=1_000_000_000, start=np.array([0, 0, 0.5, 0]))


@both_solvers
def test_same_problem_same_answer(solver):
  problem, _ = market_split(num_variables=16, num_rows=2)
  first, second = (solver.solve(problem, max_steps=6_000_000_000) for _ in range(2))
  assert first.status == "optimal" and first.x.tolist() == second.x.tolist()


@settings(max_examples=40)
@given(
  st.lists(st.tuples(st.integers(-5, 5), st.integers(-4, 4), st.integers(-4, 4)), min_size=1, max_size=6),
  st.integers(-3, 8),
  st.integers(-3, 8),
)
def test_both_agree_with_enumeration(columns, first_limit, second_limit):
  costs, *weights = (np.array(field, float) for field in zip(*columns))
  builder = MilpBuilder()
  builder.variables(len(costs), cost=costs)
  for row, limit in zip(weights, (first_limit, second_limit)):
    builder.row(np.arange(len(costs)), row, upper=limit)
  problem = builder.build()
  points = (np.array(point, float) for point in itertools.product((0, 1), repeat=len(costs)))
  best = min((float(costs @ x) for x in points if not problem.fault_of(x)), default=np.inf)
  for solver in (HighsSolver(), ScipySolver()):
    assert solver.solve(problem, max_steps=1_000_000_000).objective == best


@pytest.mark.parametrize(
  "variables, rows, fault",
  [
    (dict(cost=np.inf), [], "variable 0 has a cost that is not finite"),
    (dict(lower=2.0), [], "variable 0 has no value between its bounds"),
    (dict(lower=-np.inf, cost=1.0), [], "variable 0 has a cost that an infinite value would lower without end"),
    (dict(upper=np.inf, cost=[0.0, -1.0]), [], "variable 1 has a cost that an infinite value"),
    ({}, [([2], 1.0, {})], "unknown variable 2 of 2"),
    ({}, [([1, 0, 1], 1.0, {})], "row 0 names variable 1 twice"),
    ({}, [([1], np.nan, {})], "coefficient of variable 1 is not finite"),
    ({}, [([1], 1.0, dict(lower=2.0, upper=1.0))], "row 0 has no value between 2.0 and 1.0"),
  ],
)
def test_bad_input_is_named(variables, rows, fault):
  builder = MilpBuilder()
  builder.variables(2, **variables)
  for columns, values, limits in rows:
    builder.row(columns, values, **limits)
  with pytest.raises(ValueError, match=fault):
    builder.build()


def test_the_default_is_highs_where_it_is_installed(monkeypatch):
  assert default_solver().name == "highs"
  installed = {"scipy"}
  monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name in installed else None)
  assert default_solver().name == "scipy"
  installed.clear()
  with pytest.raises(ImportError, match="ilp"):
    default_solver()
