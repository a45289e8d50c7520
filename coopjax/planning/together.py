"""What one process of a job plans and the others follow: choices for functions and finished plans, as JSON.

An infeasible budget is an answer, too: all processes raise the error of the one that has searched. Any other error
means that a process can't plan, and the next one is asked (`coopjax.job`).
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from coopjax import job
from coopjax.errors import BudgetInfeasibleError
from coopjax.planning.choice import Choice
from coopjax.planning.remat_plan import RematPlan
from coopjax.planning.request import Request


def agreed_choice(key: tuple[str, Request], processes: Sequence[int], choose: Callable[[], Choice]) -> Choice:
  """The choice that one of the processes has made for a function and a request; `choose` makes it."""
  about = job.topic("choice", key[0], repr(key[1]))
  fields = _agreed(about, processes, lambda: dataclasses.asdict(choose()))
  return Choice.from_json(fields)


def agreed_plan(
  name: str, program: str, request: Request, processes: Sequence[int], plan: Callable[[], RematPlan]
) -> RematPlan:
  """The plan that one of the processes has made for a program of that name; `plan` makes it, and compiles."""
  about = job.topic("plan", program, repr(request))
  job.come_to(about, processes, f"a plan of {name} {about[-8:]} for {request.budget}, engine {request.engine}")
  return RematPlan.from_json(json.dumps(_agreed(about, processes, lambda: plan().to_dict(), patience=1)))


def _agreed(about: str, processes: Sequence[int], make: Callable[[], Any], **options: float) -> Any:
  own_error: list[BudgetInfeasibleError] = []

  def decide() -> bytes:
    try:
      return json.dumps({"made": make()}).encode()
    except BudgetInfeasibleError as error:
      own_error.append(error)
      return json.dumps({"infeasible": [str(error), vars(error)]}, default=int).encode()  # sizes may be NumPy's

  _, decided = job.one_decides(about, processes, decide, **options)
  fields = json.loads(decided)
  if "made" in fields:
    return fields["made"]
  if own_error:
    raise own_error[0]
  message, told = fields["infeasible"]
  error = BudgetInfeasibleError(
    message,
    budget_bytes=told["budget_bytes"],
    smallest_bytes=told["smallest_bytes"],
    op=told["op"],
    largest=tuple(map(tuple, told["largest"])),
    unaided_bytes=told["unaided_bytes"],
  )
  for note in told.get("__notes__", ()):
    error.add_note(note)
  raise error
