"""Mixed-integer linear programs: one form, and a builder that checks what it builds. `milp_solvers` solves them."""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

_FEASIBILITY_TOLERANCE = 1e-6


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
