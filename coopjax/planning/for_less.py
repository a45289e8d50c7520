"""Other ways for a function that is alone in a program which takes more than the function did when it was planned: a
plan for as much less, and what people pick, which may do with less there than it does alone.
"""

import collections
import contextlib
import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

from coopjax.budget import Budget
from coopjax.errors import BudgetInfeasibleError
from coopjax.hlo_engine.mark import Mark
from coopjax.hlo_engine.over_budget import Excess, Repeated
from coopjax.jaxpr.trace import fn_and_gradient
from coopjax.planning import function_plan
from coopjax.planning.choice import Alone, Choice
from coopjax.planning.known import known_of
from coopjax.planning.request import Request
from coopjax.planning.trials import Trials
from coopjax.policy_engine.candidates import BY_HAND, Candidates
from coopjax.policy_engine.decisions import PolicyDecisions
from coopjax.policy_engine.ladders import Candidate
from coopjax.policy_engine.rungs import Member
from coopjax.xla.compile import temp_bytes_of

_LEAST = 0.5  # of what a function takes as it is planned: what is to come to less, it is not planned for
_ROUNDS = 2  # of planning for less
_TRIES = 4  # at what people pick
_ABOUT = 1.01  # of the budget: what is predicted to take that may fit; or
_MAYBE = 1.05  # of the few policies that everybody tries
_WORTH = 0.98  # of what is repeated: what repeats more is not worth a try


class Scheduled(NamedTuple):
  """A program with the function carried out in some way: its temporaries, and what the HLO engine repeats in it."""

  temp_bytes: int
  hlo_flops: float


@dataclasses.dataclass(frozen=True)
class ForLess:
  """Looks for ways.

  Attributes:
    member: the function, as the program has it.
    request: what is asked.
    choice: how it is carried out so far.
    scheduled: schedules the program with another choice; None where a schedule does not tell what the program takes.
  """

  member: Member
  request: Request
  choice: Choice
  scheduled: Callable[[Choice], Scheduled] | None

  def within(self, excess: Excess) -> Choice | None:
    """For a program that is over its budget; None where another plan of all of it is better looked for."""
    budget_bytes, alone, mark = excess.budget_bytes, self.choice.alone, self.choice.mark
    if mark is None:
      temp_bytes = self._planned_bytes()
      limit_bytes = temp_bytes - (excess.smallest_bytes - budget_bytes)
      if limit_bytes < _LEAST * temp_bytes:
        return None
    elif budget_bytes < (Mark.from_text(mark).budget or Budget(0)).resolve(0, 0):
      # Under the same checkpoints, the HLO engine brings the program within its budget.
      return self._in_program(self.choice, budget_bytes)
    elif alone is None or not excess.unaided_bytes:
      return None
    else:
      limit_bytes = _limit(budget_bytes, excess.unaided_bytes, alone)
    return self._best(limit_bytes, budget_bytes, math.inf)

  def _planned_bytes(self) -> int:
    """What the function took when it was planned."""
    traced, choice = self.member.traced, self.choice
    tried = known_of(traced, self.request).once("tried", dict)
    if choice.decisions in tried:
      (temp_bytes, _), _ = tried[choice.decisions]
      return temp_bytes
    with traced.scope.entered():
      planned = fn_and_gradient(traced, choice.flat_fn(traced))
      return temp_bytes_of(Trials(self.request, resident_bytes=0).compile(*planned))

  def repeating_less(self, repeated: Repeated) -> Choice | None:
    """For a program in which the HLO engine has to repeat more than in the function alone; None where nothing else
    repeats less in all.
    """
    alone = self.choice.alone
    assert alone is not None  # of all that the HLO engine was asked for
    limit_bytes = _limit(repeated.budget_bytes, repeated.unaided_bytes, alone)
    return self._best(limit_bytes, repeated.budget_bytes, self.member.num_runs * alone.flops + repeated.flops)

  def _best(self, limit_bytes: int, budget_bytes: int, below_flops: float) -> Choice | None:
    """That repeats least, and less than that, in a program that may take so many bytes; for the function alone, the
    limit.
    """
    best, tried = None, set[PolicyDecisions | None]({None, self.choice.decisions})
    for _ in range(_ROUNDS):
      found = self._planned_for(limit_bytes)
      if found is None or found.decisions in tried or found.alone is None:
        break
      if self.scheduled is None:
        return self._in_program(found, budget_bytes)
      tried.add(found.decisions)
      scheduled, flops = self._in_turn(found, budget_bytes)
      if scheduled.temp_bytes <= budget_bytes:
        if flops < below_flops:
          best, below_flops = found, flops
        break
      limit_bytes -= scheduled.temp_bytes - budget_bytes
    if self.scheduled is None:
      return None
    errors = collections.defaultdict[Hashable, dict[float, float]](dict)
    by_hand, tries_left = self._picked_by_hand(), _TRIES
    while tries_left and (candidate := self._next_by_hand(by_hand, errors, budget_bytes, below_flops)):
      by_hand.remove(candidate)
      if candidate.decisions in tried:
        continue
      tried.add(candidate.decisions)
      tries_left -= 1
      choice = Choice(self.choice.mark, candidate.decisions, alone=Alone(0, candidate.flops, 0.0))
      scheduled, flops = self._in_turn(choice, budget_bytes)
      if scheduled.temp_bytes <= budget_bytes and flops < below_flops:
        best, below_flops = choice, flops
      if self.choice.mark is None:  # under an HLO engine that helps, none tells of the others
        errors[candidate.kin][candidate.estimated_bytes] = scheduled.temp_bytes - candidate.estimated_bytes
    return best and self._in_program(best, budget_bytes)

  def _picked_by_hand(self) -> list[Candidate]:
    """What people pick, by JAX's estimates: of the program around, there is no profile."""
    traced, once = self.member.traced, known_of(self.member.traced, self.request).once
    space = once(("by hand", None), lambda: Candidates(traced, only_scans=False, planner=BY_HAND, once=once))
    return [candidate for candidate in space.found if candidate.is_by_hand]

  def _next_by_hand(
    self,
    by_hand: Sequence[Candidate],
    errors: Mapping[Hashable, Mapping[float, float]],
    budget_bytes: int,
    below_flops: float,
  ) -> Candidate | None:
    """That repeats least of what may fit; of what has names once the few that everybody tries have told errors of
    estimates, each of its kin.
    """
    reach_bytes = lambda each: (_MAYBE if each.is_plain_policy else _ABOUT) * budget_bytes
    fitting = [
      each
      for each in by_hand
      if (errors or each.is_plain_policy)
      and self.member.num_runs * each.flops <= _WORTH * below_flops
      and _predicted(each.estimated_bytes, errors.get(each.kin, {})) <= reach_bytes(each)
    ]
    return min(fitting, key=lambda each: each.flops, default=None)

  def _in_turn(self, choice: Choice, budget_bytes: int) -> tuple[Scheduled, float]:
    """The program with a choice, and all that is repeated in it."""
    assert self.scheduled is not None and choice.alone is not None  # as the callers see to
    scheduled = self.scheduled(self._in_program(choice, budget_bytes))
    return scheduled, self.member.num_runs * choice.alone.flops + scheduled.hlo_flops

  def _planned_for(self, limit_bytes: int) -> Choice | None:
    """The function alone, for so many bytes; None where no plan reaches them."""
    if limit_bytes <= 0:
      return None
    budget = Budget(limit_bytes, offload=self.request.budget.offload)
    for_less = dataclasses.replace(self.request, budget=budget, tells_least=False, after=self.request.budget)
    with contextlib.suppress(BudgetInfeasibleError), self.member.traced.scope.entered():
      return function_plan.choose(self.member.traced, for_less, says_unneeded=False)
    return None

  def _in_program(self, choice: Choice, budget_bytes: int) -> Choice:
    """It where the program around may take so many bytes."""
    mark = choice.mark and self.request.mark(self.member.key, Budget(budget_bytes))
    return dataclasses.replace(choice, mark=mark, held=None)


def _limit(budget_bytes: int, unaided_bytes: int, alone: Alone) -> int:
  """What the function may take alone: less by what the program takes beyond it; where that leaves little, for one as it
  runs more than once, its share.
  """
  limit_bytes = budget_bytes - max(0, unaided_bytes - alone.unaided_bytes)
  if limit_bytes >= _LEAST * min(budget_bytes, alone.unaided_bytes):
    return limit_bytes
  return budget_bytes * alone.unaided_bytes // unaided_bytes


def _predicted(estimated_bytes: float, errors: Mapping[float, float]) -> float:
  """What a program takes whose estimate is off like the nearest that is known."""
  nearest = min(errors, key=lambda known: abs(known - estimated_bytes), default=None)
  return estimated_bytes + (0.0 if nearest is None else errors[nearest])
