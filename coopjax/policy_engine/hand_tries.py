"""What people pick, among what a search may compile next, and what it has come to so far.

What a person would try is tried, too, where it might fit: so nothing that a person picks is better than what is found.
Where estimates don't tell what fits, that is what most people choose among.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence

from coopjax.policy_engine.by_hand import published_sets
from coopjax.policy_engine.forecast import Forecast
from coopjax.policy_engine.predictions import (
  SearchCandidate,
  SearchSpace,
  Trial,
  expected_flops,
  in_loops,
  lie_elsewhere,
  like_the_least,
)

MAYBE = 1.2  # of the budget: of the few policies that everybody tries, what is predicted to take more is not tried; or
_MAYBE_ROUGHLY = 1.35  # where estimates go by no compile
HAND_ROUNDS = 3  # of a search, its last: for what a person would pick
_NEARBY = 1.15  # of the budget: predictions within that may be wrong
_HIDDEN = 2  # of the budget: what is predicted to take more is not tried where estimates don't tell what fits, unless
# what lies elsewhere is more; of what most people choose among, so many are, beyond the rounds
_MORE_HIDDEN = 4
_ALIKE = 0.01  # of FLOPs and of estimates: nearer to each other, policies are taken for the same
_UNLIKELY = 4  # times what predictions were off by: what is above the budget by more hardly ever fits
_TOLD_APART, _TAKES_MORE = 0.05, 0.02  # of estimates, and of bytes: what no chance of a schedule explains
_SPARED_BY_SAVING = 1.5  # of the budget: what is tried takes no more where something that saves more may fit
_TOLERANCE = 0.03  # of the forward FLOPs: what is no reason to prefer a candidate, or to compile once more
_LOOP_TOLERANCE = 0.005  # the same where scan bodies are decided on, whose layers need no rule to be alike; or
_LOOP_SHARE = 0.02  # of the FLOPs that are repeated, if that is less


def may_do_better(
  space: SearchSpace, reach_bytes: float, unaided_bytes: int, repeated_flops: float, *, in_straight_code: bool = False
) -> bool:
  """Whether something that people pick repeats less than that, and is estimated to take no more than so many bytes, of
  a program that takes `unaided_bytes` as it is: where the estimate of that is higher, others may be, too.

  Args:
    space: what there is.
    reach_bytes: it may take.
    unaided_bytes: of the program.
    repeated_flops: it may repeat.
    in_straight_code: it decides on what stands outside of loops, too.
  """
  room = reach_bytes * max(1.0, space.baseline_bytes / max(unaided_bytes, 1))
  fitting = (c for c in space.found if c.is_by_hand and c.flops < repeated_flops and c.estimated_bytes <= room)
  return any(candidate.has_straight_code for candidate in fitting) if in_straight_code else any(fitting)


class HandTries[Decisions: Hashable]:
  """What has been tried in a search, and what people pick of the rest."""

  def __init__(
    self, space: SearchSpace[Decisions], forecast: Forecast[Decisions], below_flops: float, *, are_drafts: bool
  ):
    self._space, self._forecast, self._are_drafts = space, forecast, are_drafts
    self._below_flops = below_flops
    self._tried, self._predict = forecast.tried, forecast.bytes_of
    self._num_last = 0  # tries of what a person would pick, where the search would end
    self._passed: set[SearchCandidate[Decisions]] = set()

  def nothing_saved(self) -> Iterator[SearchCandidate[Decisions]]:
    """What most people have, around blocks as they may see them, where it was not tried and repeats less than the best;
    the cheapest first, each to be recorded before the next.
    """
    usual = [candidate for candidate in self._space.found if candidate.is_bare and candidate.is_plain_policy]
    for candidate in sorted(usual, key=lambda candidate: candidate.flops):
      is_tried = any(trial.candidate.decisions == candidate.decisions for trial in self._tried)
      if candidate.flops < self._least_flops and not is_tried:
        yield candidate

  def hidden(self) -> Iterator[SearchCandidate[Decisions]]:
    """More drafts of what most people choose among, where estimates don't tell what fits; each to be recorded before
    the next.
    """
    for _ in range(_MORE_HIDDEN):
      looped = in_loops(self._tried)
      if not looped or (found := self._published(looped)) is None:
        return
      yield found

  def _published(self, looped: Sequence[Trial[Decisions]]) -> SearchCandidate[Decisions] | None:
    """Where a plan holds and estimates don't tell what else fits, the last drafts are for what most people choose
    among; where none does, they are for what takes the least.
    """
    in_doubt = self._are_drafts and self._holds
    if not (in_doubt and lie_elsewhere(looped, self._budget, self._forecast.num_shards)):
      return None
    is_chosen = self._are_chosen_by_most()
    usual = [each for each in self._space.found if each.flops < self._least_flops and is_chosen(each)]
    elsewhere_bytes = max(-trial.error_bytes(self._forecast.num_shards) for trial in looped)
    reach = max(_HIDDEN * self._budget, self._budget + elsewhere_bytes)
    return self._first([c for c in usual if self._predict(c) <= reach], self._predict)

  def _before_refusal(self, untried: Sequence[SearchCandidate[Decisions]]) -> SearchCandidate[Decisions] | None:
    """Where the least so far is near: first other ways to save nothing. To save can take less than to repeat, where
    devices exchange anew what is repeated. Policies without names show it; then what fits of what people pick.
    """
    if (least := self._near_least()) is None:
      return None
    usual = [c for c in untried if c.is_by_hand]
    found = self._first(like_the_least(untried, self._tried, least.candidate), lambda _: 0)
    found = found or self._first([c for c in usual if c.is_plain_policy], self._predict)
    return found or self._fitting_as_the_least(usual, least) or self._likeliest_gain(usual)

  def _spared_by_saving(self, untried: Sequence[SearchCandidate[Decisions]]) -> SearchCandidate[Decisions] | None:
    """Where the least so far is near, and a trial that saves nothing took more than one that should take more: first a
    policy without names, then, if trials that save take less, of what people save what fits, and what saves the least
    of what most choose among.
    """
    takes_more = lambda one, other: (
      one.candidate.is_bare
      and one.candidate.estimated_bytes < (1 - _TOLD_APART) * other.candidate.estimated_bytes
      and one.unaided_bytes > (1 + _TAKES_MORE) * other.unaided_bytes
    )
    least = self._near_least()
    beaten_by = [other.candidate for one, other in itertools.permutations(self._tried, 2) if takes_more(one, other)]
    if least is None or not beaten_by:
      return None
    saving = [c for c in untried if c.is_by_hand and not c.is_bare]
    is_shown = any(trial.candidate.is_plain_policy and not trial.candidate.is_bare for trial in self._tried)
    if not is_shown and (found := self._first([c for c in saving if c.is_plain_policy], self._predict)):
      return found
    if all(candidate.is_bare for candidate in beaten_by):
      return None
    is_chosen = self._are_chosen_by_most()
    found = self._fitting_as_the_least(saving, least)
    return found or self._first(saving, lambda c: (not is_chosen(c), c.estimated_bytes))

  def _fitting_as_the_least(
    self, usual: Sequence[SearchCandidate[Decisions]], least: Trial[Decisions]
  ) -> SearchCandidate[Decisions] | None:
    """What fits, as far as estimates tell it from the least so far: that repeats least."""
    num_shards = self._forecast.num_shards
    reach = self._budget - least.error_bytes(num_shards)
    return self._first([c for c in usual if c.estimated_bytes / num_shards <= reach], lambda c: c.flops)

  def _are_chosen_by_most(self) -> Callable[[SearchCandidate[Decisions]], bool]:
    """Whether a candidate is of those that most people choose among: plain, or with a published set of names."""
    found = self._space.found
    sets = published_sets(name for candidate in found for names in candidate.name_sets for name in names)
    return lambda candidate: candidate.is_plain_policy or not sets.isdisjoint(candidate.name_sets)

  def _near_least(self) -> Trial[Decisions] | None:
    """The trial that took the least, if that is near the budget."""
    least = min(self._tried, key=lambda trial: trial.temp_bytes, default=None)
    return None if least is None or least.temp_bytes > _SPARED_BY_SAVING * self._budget else least

  def _usual(self) -> SearchCandidate[Decisions] | None:
    """What most people have, in each of the ways to tell blocks: a start where estimates go by no compile. One is
    enough where the HLO engine helps, by which others may come to less.
    """
    if self._space.is_profiled or any(trial.hlo_share for trial in self._tried):
      return None
    tried = {trial.candidate.kin for trial in self._tried if trial.candidate.is_by_hand}
    usual = [c for c in self._space.found if c.is_bare and c.is_by_hand and c.kin is not None and c.kin not in tried]
    return self._first(usual, lambda candidate: candidate.flops)

  def _last_by_hand(self, untried: Sequence[SearchCandidate[Decisions]]) -> SearchCandidate[Decisions] | None:
    """Before the search ends, a few of what a person would pick that may fit; of drafts all that are likely to, and a
    few others.
    """
    if self._are_drafts:
      likely = [c for c in untried if self._forecast.fits(c).zscore(self._predict(c)) <= _UNLIKELY]
      if found := self._likeliest_gain(likely):
        return found
    if self._num_last == HAND_ROUNDS:
      return None
    self._num_last += 1
    reach = math.inf if self._are_drafts else MAYBE * self._budget
    return self._likeliest_gain([c for c in untried if self._predict(c) <= reach])

  def _first_by_hand(
    self, candidates: Sequence[SearchCandidate[Decisions]], reach: float | None = None, *, is_last: bool = False
  ) -> SearchCandidate[Decisions] | None:
    """What a person would try is tried, too, where it might fit, the cheapest first: so nothing that a person picks is
    better than what is found. Each try says more of the others. The last try is for nothing saved, as most people have
    it, where what is held repeats more.
    """
    num_tried = sum(trial.candidate.is_by_hand for trial in self._tried)
    reach = reach or (MAYBE if self._space.is_profiled else _MAYBE_ROUGHLY)
    kin_tried = {trial.candidate.kin for trial in self._tried} - {None}

    def is_near(candidate: SearchCandidate[Decisions]) -> bool:
      estimated_bytes = candidate.estimated_bytes / self._forecast.num_shards
      predicted_bytes = self._predict(candidate)
      if candidate.is_plain_policy:
        if self._is_like_one_tried(candidate):
          return predicted_bytes <= self._budget * _NEARBY
        is_told = candidate.kin in kin_tried
        return (predicted_bytes if is_told else self._forecast.hoped_bytes(candidate)) <= self._budget * reach
      near_bytes = self._budget * (1 + (_NEARBY - 1) / max(1, num_tried))
      return (predicted_bytes if candidate.kin in kin_tried else min(predicted_bytes, estimated_bytes)) <= near_bytes

    near = list(filter(is_near, candidates))
    if is_last:
      near = [candidate for candidate in near if candidate.is_bare] or near
    flops = expected_flops(self._tried, self._budget, self._forecast.unaided_bytes)
    return self._first(near, lambda candidate: (flops(candidate), self._predict(candidate)))

  def _is_like_one_tried(self, candidate: SearchCandidate[Decisions]) -> bool:
    """Whether no estimate tells it from a plain policy that was tried, around blocks that are told otherwise."""
    is_alike = lambda one, other: abs(one - other) <= _ALIKE * other
    return any(
      is_alike(plain.flops, candidate.flops) and is_alike(plain.estimated_bytes, candidate.estimated_bytes)
      for plain in (trial.candidate for trial in self._tried)
      if plain.is_plain_policy
    )

  def _likeliest_gain(self, untried: Sequence[SearchCandidate[Decisions]]) -> SearchCandidate[Decisions] | None:
    """By how much less it repeats than the plan, or while there is none than all of these, times how likely it fits."""
    if self._holds:
      untried = [candidate for candidate in untried if candidate.flops < self._least_flops]
    least = self._least_flops if self._holds else max((candidate.flops for candidate in untried), default=0.0)
    gain = lambda c: (least - c.flops) * (1 - self._forecast.fits(c).cdf(self._predict(c)))
    return self._first(untried, lambda candidate: -gain(candidate))

  def _first(
    self, candidates: Sequence[SearchCandidate[Decisions]], key: Callable
  ) -> SearchCandidate[Decisions] | None:
    """The first by `key` that decides something, and something new: different ladders share rungs."""
    tried = {trial.candidate.decisions for trial in self._tried} | {self._space.undecided}
    for candidate in sorted(candidates, key=key):
      self._passed.add(candidate)
      if candidate.decisions not in tried:
        return candidate
    return None

  def _best(self) -> Trial[Decisions] | None:
    return min(self._feasible(), key=lambda trial: trial.flops, default=None)

  def _tolerance(self, candidate: SearchCandidate[Decisions], least_flops: float) -> float:
    """FLOPs that are no reason to prefer a candidate to one that repeats so many, or to compile once more."""
    if not candidate.has_loops:
      return _TOLERANCE * self._space.forward_flops
    return min(_LOOP_TOLERANCE * self._space.forward_flops, _LOOP_SHARE * least_flops)

  @property
  def _budget(self) -> int:
    return self._forecast.budget_bytes

  @property
  def _holds(self) -> bool:
    """There is a plan within the budget, of these or at hand."""
    return self._below_flops < math.inf or bool(self._feasible())

  @property
  def _least_flops(self) -> float:
    """That a plan within the budget repeats, of these or at hand; infinite while there is none."""
    return min([self._below_flops, *(trial.flops for trial in self._feasible())])

  def _feasible(self) -> list[Trial[Decisions]]:
    return [trial for trial in self._tried if trial.temp_bytes <= self._budget]
