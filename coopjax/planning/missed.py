"""The error of a function, or a step, that no plan brings within its budget; in totals where the budget is one."""

from collections.abc import Iterable, Sequence

import numpy as np

from coopjax import compat
from coopjax.errors import BudgetExceededWarning, BudgetInfeasibleError, warn
from coopjax.hlo_engine.infeasible import why_infeasible
from coopjax.jaxpr.trace import TracedFn
from coopjax.planning import resident, steps
from coopjax.planning.request import Request


def missed(
  name: str,
  request: Request,
  module_bytes: bytes,
  *,
  budget_bytes: int,
  smallest_bytes: int,
  functions: Iterable[TracedFn],
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
    functions: that stand under a remat.
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
  for traced in functions:
    if steps.holds_backward_loop(traced.inlined):
      error.add_note(
        f"{traced.name} takes the gradient of a loop, which keeps for that what no remat around can have it repeat: "
        f"put coopjax.remat around the function that {traced.name} differentiates"
      )
  return error


def report_missed(
  traced: TracedFn,
  request: Request,
  budget_bytes: int,
  smallest_bytes: int,
  unaided_bytes: int,
  module_bytes: bytes,
  schedule: np.ndarray | None = None,
) -> None:
  """Raises for a function, or warns for a best effort, with the smallest reachable bytes and what forces them.

  Of a function in a `shard_map`, which is a little more than is planned here, its program's compile tells.

  Args:
    traced: the function.
    request: as for `missed`.
    budget_bytes: same.
    smallest_bytes: same.
    unaided_bytes: temporaries of it and its gradient as they are.
    module_bytes: as for `missed`.
    schedule: same.
  """
  if request.budget.share is None and compat.is_on_one_device():
    return
  error = missed(
    f"{traced.name} and its gradient",
    request,
    module_bytes,
    budget_bytes=budget_bytes,
    smallest_bytes=smallest_bytes,
    functions=[traced],
    schedule=schedule,
    arguments=resident.arguments_of(zip(traced.in_names, traced.in_avals, strict=True)),
  )
  error.unaided_bytes = unaided_bytes
  if compat.is_in_differentiated_loop():
    error.add_note(
      f"{traced.name} is a part of a loop's body, planned by itself: what the loop keeps of each turn is not in it. "
      "Put coopjax.remat around the function that has the loop, whose body is then planned with it"
    )
  error.add_note("try a larger budget, a smaller batch, or on_infeasible='best_effort'")
  if request.on_infeasible == "error":
    raise error
  warn(str(error), BudgetExceededWarning)
