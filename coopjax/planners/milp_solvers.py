"""The solvers that planners hand mixed-integer linear programs to.

One result form, two solvers: HiGHS through ``highspy`` (extra ``ilp``: warm starts), and the HiGHS inside SciPy, which
is always there because JAX needs SciPy (no warm starts, so a start only serves as the answer to beat). Both run on one
thread with a fixed seed, and stop by what they count: the same problem gives the same answer. HiGHS tells every now and
then that it is still at work, about once per round of cuts, heuristic or node; what that takes goes with the size of
the problem. SciPy's takes a limit of nodes alone, so problems whose root would take too long are not given to it.
"""

import dataclasses
import importlib.util
from typing import Protocol

import numpy as np

from coopjax import _core
from coopjax.errors import MissingPackageError
from coopjax.planners.milp import Milp
from coopjax.program.stopwatch import Stopwatch

_SEED = 0
_STEPS_PER_ENTRY = 2_000  # of a round of cuts, a heuristic or a node, per coefficient
_ROUNDS_AT_ROOT = 25  # before the first node, mostly
_MOST_ITERATIONS = 2**31 - 1


@dataclasses.dataclass(frozen=True, eq=False)
class MilpResult:
  """What a solver found, and what it proved.

  Attributes:
    status: ``"optimal"`` (within the gap asked for), ``"feasible"`` (the steps were up), ``"infeasible"`` (proven),
      ``"cut_short"`` (the steps were up before anything was found).
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
    max_steps: int,
    relative_gap: float = 0.0,
    start: np.ndarray | None = None,
  ) -> MilpResult:
    """Minimises.

    Args:
      problem: what to solve.
      max_steps: the best found so far is returned after about so many steps (`coopjax.planners.effort`).
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
    max_steps: int,
    relative_gap: float = 0.0,
    start: np.ndarray | None = None,
  ) -> MilpResult:
    """See :class:`MilpSolver`."""
    return _solve(_search_highs, problem, max_steps, relative_gap, start)


@dataclasses.dataclass(frozen=True)
class ScipySolver:
  """HiGHS through ``scipy.optimize.milp``, which takes no start: it is only the solution to beat."""

  name: str = "scipy"

  def solve(
    self,
    problem: Milp,
    *,
    max_steps: int,
    relative_gap: float = 0.0,
    start: np.ndarray | None = None,
  ) -> MilpResult:
    """See :class:`MilpSolver`."""
    return _solve(_search_scipy, problem, max_steps, relative_gap, start)


def default_solver() -> MilpSolver:
  """HiGHS if ``highspy`` is installed, else SciPy's.

  Raises:
    MissingPackageError: neither is installed.
  """
  if importlib.util.find_spec("highspy"):
    return HighsSolver()
  if importlib.util.find_spec("scipy"):
    return ScipySolver()
  raise MissingPackageError("no MILP solver: install coopjax[ilp] (highspy), or scipy")


@dataclasses.dataclass(frozen=True, eq=False)
class _Outcome:
  """What one search says: the best point if any, the bound it proved, and how it ended."""

  x: np.ndarray | None
  bound: float
  is_optimal: bool
  is_infeasible: bool


def _solve(search, problem: Milp, max_steps: int, relative_gap: float, start: np.ndarray | None) -> MilpResult:
  """Everything around a search: the start is checked and never lost, integers are rounded, the gap is computed."""
  stopwatch = Stopwatch()
  if start is not None and (fault := problem.fault_of(start)):
    raise ValueError(f"the start is not feasible: {fault}")
  if problem.num_variables == 0:
    is_feasible = bool(np.all(problem.row_lower <= 0) and np.all(problem.row_upper >= 0))
    found = _Outcome(np.empty(0) if is_feasible else None, 0.0, is_feasible, not is_feasible)
  elif max_steps <= 0:
    found = _Outcome(None, -np.inf, False, False)
  else:
    found = search(problem, max_steps, relative_gap, start)
  if found.is_infeasible and start is None:
    return MilpResult("infeasible", None, np.inf, np.inf, np.inf, stopwatch.seconds)
  points = [np.where(problem.is_integer, np.round(x), x) for x in (found.x, start) if x is not None]
  if not points:
    return MilpResult("cut_short", None, np.inf, found.bound, np.inf, stopwatch.seconds)
  x = min(points, key=lambda point: float(problem.costs @ point))
  objective = float(problem.costs @ x)
  bound = min(found.bound, objective)
  gap = 0.0 if bound == objective else (objective - bound) / abs(objective) if objective else np.inf
  is_optimal = found.is_optimal or gap <= relative_gap
  return MilpResult("optimal" if is_optimal else "feasible", x, objective, bound, gap, stopwatch.seconds)


def _search_highs(problem: Milp, max_steps: int, relative_gap: float, start: np.ndarray | None) -> _Outcome:
  import highspy

  solver, rounds = highspy.Highs(), _Rounds(problem, max_steps)
  for option, value in (
    ("output_flag", False),
    ("threads", 1),
    ("parallel", "off"),
    ("random_seed", _SEED),
    ("mip_rel_gap", relative_gap),
    ("mip_abs_gap", 0.0),
    ("time_limit", max(_core.fuse_seconds_left(), 0.0)),
    ("simplex_iteration_limit", rounds.most_iterations),
  ):
    solver.setOptionValue(option, value)
  solver.passModel(_highs_model(highspy, problem))
  solver.cbMipInterrupt += rounds.count
  if start is not None:
    solution = highspy.HighsSolution()
    solution.col_value = start
    solver.setSolution(solution)
  solver.run()
  status, statuses = solver.getModelStatus(), highspy.HighsModelStatus
  stops = (statuses.kTimeLimit, statuses.kInterrupt, statuses.kIterationLimit)
  is_optimal = status == statuses.kOptimal
  # The objective is bounded by construction, so "unbounded or infeasible" can only be the latter.
  is_infeasible = status in (statuses.kInfeasible, statuses.kUnboundedOrInfeasible)
  if not (is_optimal or is_infeasible or status in stops):
    raise RuntimeError(f"HiGHS stopped with {solver.modelStatusToString(status)!r}")
  info = solver.getInfo()
  has_point = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
  if problem.is_integer.any():
    bound = info.mip_dual_bound
  else:
    bound = info.objective_function_value if is_optimal else -np.inf
  return _Outcome(np.array(solver.getSolution().col_value) if has_point else None, bound, is_optimal, is_infeasible)


class _Rounds:
  """Counts the rounds of a search, as steps too, and ends it after the last."""

  def __init__(self, problem: Milp, max_steps: int):
    self._steps_per_round = _STEPS_PER_ENTRY * max(len(problem.row_values), 1)
    self._left = max(max_steps // self._steps_per_round, 1)
    # Of problems without integers, which have no rounds.
    self.most_iterations = _MOST_ITERATIONS if problem.is_integer.any() else min(self._left * 10, _MOST_ITERATIONS)

  def count(self, event) -> None:
    _core.count_steps(self._steps_per_round)
    self._left -= 1
    if self._left <= 0:
      event.interrupt()


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


def _search_scipy(problem: Milp, max_steps: int, relative_gap: float, start: np.ndarray | None) -> _Outcome:
  del start  # SciPy takes none.
  from scipy import optimize, sparse

  steps_per_round = _STEPS_PER_ENTRY * max(len(problem.row_values), 1)
  num_rounds = max_steps // steps_per_round
  if problem.is_integer.any() and num_rounds <= _ROUNDS_AT_ROOT:
    return _Outcome(None, -np.inf, False, False)
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
    options={
      "node_limit": min(max(num_rounds - _ROUNDS_AT_ROOT, 1), _MOST_ITERATIONS),
      "time_limit": max(_core.fuse_seconds_left(), 0.0),
      "mip_rel_gap": relative_gap,
    },
  )
  _core.count_steps(steps_per_round * min(num_rounds, _ROUNDS_AT_ROOT + int(answer.mip_node_count or 0)))
  # Statuses: 0 optimal, 1 a limit, 2 infeasible, 3 unbounded, 4 other. The objective is bounded by construction, so
  # HiGHS's "unbounded or infeasible", which arrives as 4, can only be the latter.
  is_optimal = answer.status == 0
  is_infeasible = answer.status == 2 or (answer.status == 4 and "infeasible" in answer.message)
  is_at_limit = answer.status == 1 or (answer.status == 4 and "limit reached" in answer.message)
  if not (is_optimal or is_infeasible or is_at_limit):
    raise RuntimeError(f"SciPy's HiGHS stopped with {answer.message!r}")
  if problem.is_integer.any():
    bound = -np.inf if answer.mip_dual_bound is None else answer.mip_dual_bound
  else:
    bound = answer.fun if is_optimal else -np.inf
  return _Outcome(answer.x, bound, is_optimal, is_infeasible)
