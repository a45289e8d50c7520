"""Mixed-integer linear programs, and the solvers that planners hand them to.

One problem form, one result form, two solvers: HiGHS through ``highspy`` (extra ``ilp``: warm starts), and the HiGHS
inside SciPy, which is always there because JAX needs SciPy (no warm starts, so a start only serves as the answer to
beat). Both run on one thread with a fixed seed: the same problem gives the same answer unless the clock cuts it short.
"""

import dataclasses
import importlib.util
import time
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

_FEASIBILITY_TOLERANCE = 1e-6
_SEED = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Milp:
  """Minimise ``costs @ x`` with ``lower <= x <= upper`` and ``row_lower <= A @ x <= row_upper``.

  Attributes:
    costs: objective, float64 ``[n]``.
    lower: least value of each variable, float64 ``[n]``, ``-inf`` for none.
    upper: largest value of each variable, float64 ``[n]``, ``inf`` for none.
    is_integer: which variables are integers, bool ``[n]``.
    row_starts: row ``r`` of ``A`` is entries ``row_starts[r] .. row_starts[r + 1]``, int32 ``[m + 1]``.
    row_columns: variable of each entry, int32 ``[nonzeros]``.
    row_values: coefficient of each entry, float64 ``[nonzeros]``.
    row_lower: least value of each row, float64 ``[m]``.
    row_upper: largest value of each row, float64 ``[m]``.
  """

  costs: np.ndarray
  lower: np.ndarray
  upper: np.ndarray
  is_integer: np.ndarray
  row_starts: np.ndarray
  row_columns: np.ndarray
  row_values: np.ndarray
  row_lower: np.ndarray
  row_upper: np.ndarray

  @property
  def num_variables(self) -> int:
    return len(self.costs)

  @property
  def num_rows(self) -> int:
    return len(self.row_lower)

  def row_activity(self, x: np.ndarray) -> np.ndarray:
    """``A @ x``, float64 ``[m]``."""
    row_of_entry = np.repeat(np.arange(self.num_rows), np.diff(self.row_starts))
    return np.bincount(row_of_entry, weights=self.row_values * x[self.row_columns], minlength=self.num_rows)

  def fault_of(self, x: np.ndarray) -> str:
    """The first bound, integrality or row that ``x`` breaks, in one sentence; empty when it is feasible."""
    if x.shape != self.costs.shape:
      return f"{x.shape} values for {self.num_variables} variables"
    tolerance = _FEASIBILITY_TOLERANCE * (1 + np.abs(x))
    for broken, rule in (
      (~np.isfinite(x), "is not finite"),
      (x < self.lower - tolerance, "is below its least value"),
      (x > self.upper + tolerance, "is above its largest value"),
      (self.is_integer & (np.abs(x - np.round(x)) > tolerance), "is not an integer"),
    ):
      if broken.any():
        return f"variable {int(np.argmax(broken))} = {x[np.argmax(broken)]} {rule}"
    activity = self.row_activity(x)
    tolerance = _FEASIBILITY_TOLERANCE * (1 + np.abs(activity))
    broken = (activity < self.row_lower - tolerance) | (activity > self.row_upper + tolerance)
    if broken.any():
      row = int(np.argmax(broken))
      return f"row {row} is {activity[row]}, outside [{self.row_lower[row]}, {self.row_upper[row]}]"
    return ""


class MilpBuilder:
  """Collects variables and rows; everything may come one by one or in arrays."""

  def __init__(self) -> None:
    self._num_variables = 0
    self._num_entries = 0
    self._variables: list[tuple[np.ndarray, ...]] = []
    self._entries: list[tuple[np.ndarray, np.ndarray]] = []
    self._rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

  def variables(
    self,
    count: int,
    *,
    lower: ArrayLike = 0.0,
    upper: ArrayLike = 1.0,
    cost: ArrayLike = 0.0,
    is_integer: ArrayLike = True,
  ) -> int:
    """Adds ``count`` variables, binary by default; scalars or arrays ``[count]``.

    Returns:
      The index of the first; the others follow.
    """
    first = self._num_variables
    self._variables.append(
      tuple(
        np.broadcast_to(np.asarray(field, dtype), count)
        for field, dtype in ((cost, np.float64), (lower, np.float64), (upper, np.float64), (is_integer, bool))
      )
    )
    self._num_variables += count
    return first

  def row(self, columns, values, *, lower: float = -np.inf, upper: float = np.inf) -> None:
    """Adds ``lower <= sum(values * x[columns]) <= upper``; ``values`` may be one number for all."""
    self.rows([0, len(columns)], columns, values, lower, upper)

  def rows(
    self,
    starts: ArrayLike,
    columns: ArrayLike,
    values: ArrayLike,
    lower: ArrayLike = -np.inf,
    upper: ArrayLike = np.inf,
  ) -> None:
    """Adds many rows at once in CSR form.

    Args:
      starts: row ``r`` is entries ``starts[r] .. starts[r + 1]``, ints ``[m + 1]``, the first is 0.
      columns: variable of each entry.
      values: coefficient of each entry, or one number for all.
      lower: least value of each row, or one number for all.
      upper: largest value of each row, or one number for all.
    """
    starts = np.asarray(starts, np.int64)
    columns = np.asarray(columns, np.int32)
    if starts[0] != 0 or starts[-1] != len(columns):
      raise ValueError(f"rows cover entries {starts[0]} .. {starts[-1]}, there are {len(columns)}")
    count = len(starts) - 1
    self._entries.append((columns, np.broadcast_to(np.asarray(values, np.float64), len(columns))))
    self._rows.append(
      (
        starts[1:] + self._num_entries,
        np.broadcast_to(np.asarray(lower, np.float64), count),
        np.broadcast_to(np.asarray(upper, np.float64), count),
      )
    )
    self._num_entries += len(columns)

  def build(self) -> Milp:
    """The problem.

    Raises:
      ValueError: a row names an unknown variable or one twice, a number is not finite, a lower bound lies above its
        upper one, or the objective could fall for ever because a variable that lowers it is not bounded.
    """
    costs, lower, upper, is_integer = (
      np.concatenate([np.empty(0, dtype), *(fields[i] for fields in self._variables)])
      for i, dtype in enumerate((np.float64, np.float64, np.float64, bool))
    )
    columns, values = (
      np.concatenate([np.empty(0, dtype), *(fields[i] for fields in self._entries)])
      for i, dtype in enumerate((np.int32, np.float64))
    )
    ends, row_lower, row_upper = (
      np.concatenate([np.empty(0, dtype), *(fields[i] for fields in self._rows)])
      for i, dtype in enumerate((np.int64, np.float64, np.float64))
    )
    starts = np.concatenate([[0], ends]).astype(np.int32)
    problem = Milp(costs, lower, upper, is_integer, starts, columns, values, row_lower, row_upper)
    _check(problem)
    return problem


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


def _check(problem: Milp) -> None:
  """Raises ValueError with the first fault."""
  columns, values = problem.row_columns, problem.row_values
  unbounded = (problem.costs < 0) & np.isinf(problem.upper) | (problem.costs > 0) & np.isinf(problem.lower)
  for broken, rule in (
    (~np.isfinite(problem.costs), "a cost that is not finite"),
    (~(problem.lower <= problem.upper), "no value between its bounds"),
    (unbounded, "a cost that an infinite value would lower without end"),
  ):
    if broken.any():
      raise ValueError(f"variable {int(np.argmax(broken))} has {rule}")
  if len(columns) and not (columns.min() >= 0 and columns.max() < problem.num_variables):
    unknown = int(columns.max()) if columns.min() >= 0 else int(columns.min())
    raise ValueError(f"a row names unknown variable {unknown} of {problem.num_variables}")
  if len(columns):
    entry_row = np.repeat(np.arange(problem.num_rows), np.diff(problem.row_starts))
    cells = np.sort(entry_row.astype(np.int64) * problem.num_variables + columns)
    if (twice := cells[1:][cells[1:] == cells[:-1]]).size:
      raise ValueError(
        f"row {twice[0] // problem.num_variables} names variable {twice[0] % problem.num_variables} twice"
      )
  if not np.isfinite(values).all():
    raise ValueError(f"a coefficient of variable {int(columns[np.argmin(np.isfinite(values))])} is not finite")
  if not (problem.row_lower <= problem.row_upper).all():
    row = int(np.argmin(problem.row_lower <= problem.row_upper))
    raise ValueError(f"row {row} has no value between {problem.row_lower[row]} and {problem.row_upper[row]}")
