"""The error of a function, or a step, that no plan brings within its budget; in totals where the budget is one."""

from collections.abc import Iterable, Sequence

import numpy as np

from coopjax.errors import BudgetInfeasibleError
from coopjax.hlo_engine.infeasible import why_infeasible
from coopjax.planning import resident
from coopjax.planning.request import Request


def missed(
  name: str,
  request: Request,
  module_bytes: bytes,
  *,
  budget_bytes: int,
  smallest_bytes: int,
  schedule: np.ndarray | None = None,
  arguments: Sequence[resident.Argument] = (),
  ways: Iterable[tuple[int, str]] = (),
) -> BudgetInfeasibleError:
  """The error that a missed budget deserves.

  Args:
    name: of what was planned.
    request: what was asked.
    module_bytes: the scheduled module that comes nearest.
    budget_bytes: temporaries that the budget allows; not positive where arguments and outputs take all of a total.
    smallest_bytes: temporaries that were reached.
    schedule: as for `why_infeasible`.
    arguments: of what was planned, the largest first.
    ways: to have less of them, as of `resident.ways_out`.
  """
  budget = request.budget
  counted_bytes = budget.counted_bytes(budget_bytes)
  headline = (
    f"no plan brings {name} within the budget of {budget.in_words(budget_bytes)}; the smallest reached is "
    f"{budget.taken(smallest_bytes, budget_bytes)} (planner {request.planner}, engine {request.engine})"
  )
  takes_all = budget.is_total and budget_bytes <= 0
  told = resident.told(arguments, ways, budget_bytes, smallest_bytes - budget_bytes, counted_bytes) if takes_all else ()
  error = why_infeasible(
    module_bytes,
    "\n".join([headline, *told]),
    schedule=schedule,
    budget_bytes=max(budget_bytes, 0),
    smallest_bytes=smallest_bytes,
  )
  error.budget_bytes, error.smallest_bytes = budget_bytes + counted_bytes, smallest_bytes + counted_bytes
  if takes_all and arguments:
    error.op, error.largest = "arguments and outputs", tuple(map(resident.Argument.entry, arguments[: resident.SHOWN]))
  return error
