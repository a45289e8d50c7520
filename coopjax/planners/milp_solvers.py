"""The solvers that planners hand mixed-integer linear programs to.

One result form, two solvers: HiGHS through ``highspy`` (extra ``ilp``: warm starts), and the HiGHS inside SciPy, which
is always there because JAX needs SciPy (no warm starts, so a start only serves as the answer to beat). Both run on one
thread with a fixed seed: the same problem gives the same answer unless the clock cuts it short.
"""

import dataclasses
import importlib.util
import time
from typing import Protocol

import numpy as np

from coopjax.planners.milp import Milp

_SEED = 0


@dataclasses.dataclass(frozen=True, eq=False)
class MilpResult:
  """What a solver found, and what it proved.

  Attributes:
    status: ``"optimal"`` (within the gap asked for), ``"feasible"`` (the time was up), ``"infeasible"`` (proven),
      ``"timed_out"`` (the time was up before anything was found).
    x: the best values found, float64 ``[n]``, integers rounded; None if there are none.
    objective: ``costs @ x``; ``inf`` without ``x``.
    bound: no solution has a smaller objective; ``inf`` when infeasible, ``-inf`` when nothing was proved.
    gap: ``(objective - bound) / |objective|``; 0 when they are equal, ``inf`` when either is unknown.
    seconds: time spent.
  """

  status: str
  x: np.ndarray | None
  objective: float
  bound: float
  gap: float
  seconds: float


class MilpSolver(Protocol):
  """Solves a :class:`Milp`."""

  @property
  def name(self) -> str: ...

  def solve(
    self,
    problem: Milp,
    *,
    time_limit_s: float,
    relative_gap: float = 0.0,
    start: np.ndarray | None = None,
  ) -> MilpResult:
    """Minimises.

    Args:
      problem: what to solve.
      time_limit_s: the best found so far is returned after about so many seconds.
      relative_gap: a solution this close to the bound counts as optimal.
      start: a feasible solution to begin with, float64 ``[n]``; the result is never worse.

    Raises:
      ValueError: ``start`` is not feasible.
    """
    ...


@dataclasses.dataclass(frozen=True)
class HighsSolver:
  """HiGHS through ``highspy``."""

  name: str = "highs"

  def solve(
    self,
    problem: Milp,
    *,
    time_limit_s: float,
    relative_gap: float = 0.0,
    start: np.ndarray | None = None,
  ) -> MilpResult:
    """See :class:`MilpSolver`."""
    return _solve(_search_highs, problem, time_limit_s, relative_gap, start)


@dataclasses.dataclass(frozen=True)
class ScipySolver:
  """HiGHS through ``scipy.optimize.milp``, which takes no start: it is only the solution to beat."""

  name: str = "scipy"

  def solve(
    self,
    problem: Milp,
    *,
    time_limit_s: float,
    relative_gap: float = 0.0,
    start: np.ndarray | None = None,
  ) -> MilpResult:
    """See :class:`MilpSolver`."""
    return _solve(_search_scipy, problem, time_limit_s, relative_gap, start)


def default_solver() -> MilpSolver:
  """HiGHS if ``highspy`` is installed, else SciPy's.

  Raises:
    ImportError: neither is installed.
  """
  if importlib.util.find_spec("highspy"):
    return HighsSolver()
  if importlib.util.find_spec("scipy"):
    return ScipySolver()
  raise ImportError("no MILP solver: install coopjax[ilp] (highspy), or scipy")


@dataclasses.dataclass(frozen=True, eq=False)
class _Outcome:
  """What one search says: the best point if any, the bound it proved, and how it ended."""

  x: np.ndarray | None
  bound: float
  is_optimal: bool
  is_infeasible: bool


def _solve(search, problem: Milp, time_limit_s: float, relative_gap: float, start: np.ndarray | None) -> MilpResult:
  """Everything around a search: the start is checked and never lost, integers are rounded, the gap is computed."""
  began = time.perf_counter()
  if start is not None and (fault := problem.fault_of(start)):
    raise ValueError(f"the start is not feasible: {fault}")
  if problem.num_variables == 0:
    is_feasible = bool(np.all(problem.row_lower <= 0) and np.all(problem.row_upper >= 0))
    found = _Outcome(np.empty(0) if is_feasible else None, 0.0, is_feasible, not is_feasible)
  elif time_limit_s <= 0:
    found = _Outcome(None, -np.inf, False, False)
  else:
    found = search(problem, time_limit_s, relative_gap, start)
  if found.is_infeasible and start is None:
    return MilpResult("infeasible", None, np.inf, np.inf, np.inf, time.perf_counter() - began)
  points = [np.where(problem.is_integer, np.round(x), x) for x in (found.x, start) if x is not None]
  if not points:
    return MilpResult("timed_out", None, np.inf, found.bound, np.inf, time.perf_counter() - began)
  x = min(points, key=lambda point: float(problem.costs @ point))
  objective = float(problem.costs @ x)
  bound = min(found.bound, objective)
  gap = 0.0 if bound == objective else (objective - bound) / abs(objective) if objective else np.inf
  is_optimal = found.is_optimal or gap <= relative_gap
  return MilpResult("optimal" if is_optimal else "feasible", x, objective, bound, gap, time.perf_counter() - began)


def _search_highs(problem: Milp, time_limit_s: float, relative_gap: float, start: np.ndarray | None) -> _Outcome:
  import highspy

  solver = highspy.Highs()
  for option, value in (
    ("output_flag", False),
    ("threads", 1),
    ("parallel", "off"),
    ("random_seed", _SEED),
    ("mip_rel_gap", relative_gap),
    ("mip_abs_gap", 0.0),
    ("time_limit", time_limit_s),
  ):
    solver.setOptionValue(option, value)
  solver.passModel(_highs_model(highspy, problem))
  if start is not None:
    solution = highspy.HighsSolution()
    solution.col_value = start
    solver.setSolution(solution)
  solver.run()
  status, statuses = solver.getModelStatus(), highspy.HighsModelStatus
  is_optimal = status == statuses.kOptimal
  # The objective is bounded by construction, so "unbounded or infeasible" can only be the latter.
  is_infeasible = status in (statuses.kInfeasible, statuses.kUnboundedOrInfeasible)
  if not (is_optimal or is_infeasible or status == statuses.kTimeLimit):
    raise RuntimeError(f"HiGHS stopped with {solver.modelStatusToString(status)!r}")
  info = solver.getInfo()
  has_point = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
  if problem.is_integer.any():
    bound = info.mip_dual_bound
  else:
    bound = info.objective_function_value if is_optimal else -np.inf
  return _Outcome(np.array(solver.getSolution().col_value) if has_point else None, bound, is_optimal, is_infeasible)


def _highs_model(highspy, problem: Milp):
  model = highspy.HighsLp()
  model.num_col_, model.num_row_ = problem.num_variables, problem.num_rows
  model.col_cost_, model.col_lower_, model.col_upper_ = problem.costs, problem.lower, problem.upper
  model.row_lower_, model.row_upper_ = problem.row_lower, problem.row_upper
  model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
  model.a_matrix_.start_ = problem.row_starts
  model.a_matrix_.index_, model.a_matrix_.value_ = problem.row_columns, problem.row_values
  kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
  model.integrality_ = [kinds[is_integer] for is_integer in problem.is_integer.tolist()]
  return model


def _search_scipy(problem: Milp, time_limit_s: float, relative_gap: float, start: np.ndarray | None) -> _Outcome:
  del start  # SciPy takes none.
  from scipy import optimize, sparse

  matrix = sparse.csr_array(
    (problem.row_values, problem.row_columns, problem.row_starts), (problem.num_rows, problem.num_variables)
  )
  # SciPy has no types: what takes arrays looks to checkers as if it took a float, because its default is one.
  bounds = optimize.Bounds(problem.lower, problem.upper)  # pyright: ignore[reportArgumentType]
  rows = None
  if problem.num_rows:
    rows = optimize.LinearConstraint(matrix, problem.row_lower, problem.row_upper)  # pyright: ignore[reportArgumentType]
  answer = optimize.milp(
    problem.costs,
    integrality=problem.is_integer,
    bounds=bounds,
    constraints=rows,
    options={"time_limit": time_limit_s, "mip_rel_gap": relative_gap},
  )
  # Statuses: 0 optimal, 1 time limit, 2 infeasible, 3 unbounded, 4 other. The objective is bounded by construction, so
  # HiGHS's "unbounded or infeasible", which arrives as 4, can only be the latter.
  is_optimal = answer.status == 0
  is_infeasible = answer.status == 2 or (answer.status == 4 and "infeasible" in answer.message)
  if not (is_optimal or is_infeasible or answer.status == 1):
    raise RuntimeError(f"SciPy's HiGHS stopped with {answer.message!r}")
  if problem.is_integer.any():
    bound = -np.inf if answer.mip_dual_bound is None else answer.mip_dual_bound
  else:
    bound = answer.fun if is_optimal else -np.inf
  return _Outcome(answer.x, bound, is_optimal, is_infeasible)
