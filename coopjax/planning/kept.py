"""What was planned once and is kept: choices for functions under `coopjax.remat`, and finished plans.

Both are kept on disk under their program, their request and everything else that they depend on (`cache.Key`), and only
those that hold their budget. A kept plan is compiled like a new one, to measure it; if that does not hold the budget
any more (the compiler has changed where its version has not), the program is planned anew. That nothing is found, a
process remembers, unless a fuse may have cut the search short.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from coopjax.errors import BudgetInfeasibleError, NotDifferentiableError, copy_of
from coopjax.jaxpr.fingerprint import fingerprint_of
from coopjax.jaxpr.tags import tag_jaxpr
from coopjax.jaxpr.trace import TracedFn
from coopjax.memory_profile import MemoryProfile
from coopjax.planning import cache
from coopjax.planning.choice import Choice
from coopjax.planning.remat_plan import RematPlan
from coopjax.planning.request import Request
from coopjax.program.stopwatch import Stopwatch

_KEPT_IN_MEMORY = 256


class _Memory[Made]:
  """What came of programs and requests in this process, the latest so many: what was made, or why nothing was; safe
  under threads.
  """

  def __init__(self):
    self._found: collections.OrderedDict[Hashable, Made | BudgetInfeasibleError | NotDifferentiableError] = (
      collections.OrderedDict()
    )
    self._lock = threading.Lock()

  def remembered(self, key: Hashable) -> Made | None:
    """What was made, if anything is remembered; an error is raised again."""
    with self._lock:
      found = self._found.get(key)
    if isinstance(found, BudgetInfeasibleError | NotDifferentiableError):
      raise copy_of(found)
    return found

  def remember(self, key: Hashable, found: Made | BudgetInfeasibleError | NotDifferentiableError) -> None:
    with self._lock:
      self._found[key] = found
      while len(self._found) > _KEPT_IN_MEMORY:
        self._found.popitem(last=False)

  @contextlib.contextmanager
  def of_errors(self, key: Hashable, request: Request) -> Iterator[None]:
    """Remembers that what is done inside has come to no plan, unless a fuse may have ended it."""
    try:
      yield
    except (BudgetInfeasibleError, NotDifferentiableError) as error:
      if request.time_limit_s is None:
        self.remember(key, copy_of(error))
      raise


class KeptChoices(_Memory[Choice]):
  """Choices by fingerprint and request: on disk, too, if they hold their budget; safe under threads and processes."""

  def get(self, key: tuple[str, Request]) -> Choice | None:
    """As :meth:`remembered`, in memory or on disk."""
    found = self.remembered(key)
    if found is None and (found := cache.load(_cache_key(key), Choice.from_json)):
      self.remember(key, found)
    return found

  def put(self, key: tuple[str, Request], choice: Choice, holds_budget: bool) -> None:
    self.remember(key, choice)
    if holds_budget:
      cache.store(_cache_key(key), dataclasses.asdict(choice))


_plans = _Memory[RematPlan]()  # errors alone: what was found is on disk


def _cache_key(key: tuple[str, Request]) -> cache.Key:
  return cache.Key(key[0], repr(key[1]), cache.environment())


def program_key(traced: TracedFn) -> str:
  """What tells a function from others in every process: its program, the inputs that it is differentiated by, and their
  placement on devices.
  """
  wrt = "".join(str(int(ok)) for ok in traced.is_differentiable)
  return f"{fingerprint_of(traced)} by {wrt} {traced.placement.key()}"


def key_of(traced: TracedFn, request: Request) -> tuple[str, Request]:
  """What a choice is kept under."""
  return program_key(traced), request


def kept_or_made(
  program: str | None, request: Request, make: Callable[[], RematPlan], measure: Callable[[RematPlan], MemoryProfile]
) -> RematPlan:
  """The plan kept for a program and a request, measured again; else a new one.

  Args:
    program: identifies it, in every process; None for one whose plans are not kept.
    request: what is asked.
    make: plans it.
    measure: compiles it with a plan carried out.

  Raises:
    BudgetInfeasibleError: no plan reaches the budget, which was found here or before in this process.
  """
  if program is None:
    return make()
  stopwatch, key = Stopwatch(), cache.Key(program, f"plan {request!r}", cache.environment())
  if plan := cache.load(key, _parse):
    planning_s = stopwatch.seconds
    plan = dataclasses.replace(plan, measured=measure(plan), planning_s=planning_s)
    if plan.fits:
      return plan
  _plans.remembered(key)
  with _plans.of_errors(key, request):
    plan = make()
  if plan.fits and plan.engine != "none" and not plan.is_cut_short:
    cache.store(key, json.loads(plan.to_json()))
  return plan


def origin_of(*functions: TracedFn) -> str:
  """A hash of what a plan tells of traced functions besides their programs: names and source lines."""
  told = [(fn.name, [info.source for info in tag_jaxpr(fn.jaxpr)[1]]) for fn in functions]
  return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def _parse(fields: dict[str, Any]) -> RematPlan:
  return RematPlan.from_json(json.dumps(fields))
