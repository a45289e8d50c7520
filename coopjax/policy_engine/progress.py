"""What a search compiles next.

Each compile is a point on a curve from estimated to compiled bytes, and the next try is the cheapest candidate that the
curve puts inside the budget, or the most finely cut of those that cost nearly as little: a rule that similar models
follow alike. (Under checkpoints around checkpoints, the least finely cut: their pieces are small, and XLA does not fuse
across a cut.) Once a plan holds, a cheaper one that might just fit is compiled, too; of those that hold, the one that
repeats least is taken.

What a turn of a loop needs beside what it saves depends on which values are saved: of scan bodies the errors of all
trials count, the more the more alike the bodies are (`predictions`). Once a plan holds, what is likely or expected to
gain most is compiled next, as long as that is worth a compile (`expected_gain`).

Where the HLO engine works under the checkpoints (`HloEngineShare`), the curve is of bytes without its help, and what it
repeats counts like the rest. Once a plan holds, candidates that need somewhat more bytes than it are worth a try, too.
"""

import functools
import math
from collections.abc import Hashable, Sequence

from coopjax.policy_engine.expected_gain import ExpectedGain
from coopjax.policy_engine.forecast import Forecast
from coopjax.policy_engine.hand_tries import HAND_ROUNDS, MAYBE, HandTries
from coopjax.policy_engine.near_misses import NearMisses, are_in_a_row
from coopjax.policy_engine.policy_plan import PolicyPlan
from coopjax.policy_engine.predictions import (
  HloEngineShare,
  SearchCandidate,
  SearchSpace,
  Trial,
  hide_much,
  in_loops,
  is_out_of_reach,
  say_little,
  smaller_than_all,
)

_MARGIN = 0.02  # of the budget: how far predictions err, once there has been a compile
_LEAVES_ROOM = 0.9  # of the budget: what a plan takes beyond which what may take too much is tried, too; or
_LEAVES_SOME = 0.99  # beyond which more candidates are looked for
_MANY_MISSES = 4  # of a search whose plan leaves room: for other candidates
_CLOSE_ROUNDS = 2  # after `HAND_ROUNDS`: for what a person would pick that repeats less by however little
_GOOD_CHANCE = 0.25  # that it fits
# Of the forward FLOPs, and of the budget: what is tried though it is predicted to take more, where a search ends before
# its tries do; and of what saves nothing, as its last tries.
_MUCH, _FAR = 0.3, 1.35
_SOME, _NEAR = 0.1, 1.1
_MAX_UNLIKELY = 2
_AIDED_MARGIN = 0.25  # of what the best plan takes unaided: the HLO engine may help out with more
_MAX_AIDED_MISSES = 2  # tries at that


class Progress[Decisions: Hashable](HandTries[Decisions]):
  """Chooses what to compile next, from the compiles so far."""

  def __init__(
    self,
    space: SearchSpace[Decisions],
    budget_bytes: int,
    baseline_temp_bytes: int,
    below_flops: float,
    *,
    are_drafts: bool,
    alone: HloEngineShare | None = None,
  ):
    forecast = Forecast(space, budget_bytes, baseline_temp_bytes, alone)
    super().__init__(space, forecast, below_flops, are_drafts=are_drafts)
    self._misses = 0  # since a plan holds: tries that made nothing better
    self._num_unlikely = 0  # tries of what most people choose among that no prediction takes to fit
    self._num_close = 0  # tries of what a person would pick that gains next to nothing
    self._near_misses = NearMisses[Decisions]()
    self._baseline_bytes = baseline_temp_bytes

  def record(self, trial: Trial[Decisions]) -> None:
    is_first, least = not self._holds, self._least_flops
    self._near_misses.record(trial)
    self._forecast.record(trial)
    # Such a policy is tried whatever is predicted, a twin for what the last try came to.
    is_bold = not (is_first or trial.candidate.is_plain_policy or self.is_twin(trial.candidate))
    self._misses += is_bold and (
      trial.temp_bytes > self._budget or trial.flops >= least - self._tolerance(trial.candidate, least)
    )

  def is_twin(self, candidate: SearchCandidate[Decisions]) -> bool:
    """Whether it is to be compiled as the twin of the last one."""
    return candidate is self._near_misses.twin

  def aim_at(self, budget_bytes: int) -> None:
    """Goes on for another budget: what drafts may take for the program to hold it."""
    self._forecast.budget_bytes, self._misses = budget_bytes, 0

  def next_candidate(self, rounds_left: int) -> SearchCandidate[Decisions] | None:
    """The cheapest candidate that should fit; before the first that does, and on the last try, the smallest. Where none
    is worth a try, or many came to nothing, and the plan leaves room, there may be others for that.
    """
    is_looped = bool(in_loops(self._tried))
    if is_looped and self._misses >= _MANY_MISSES and self._leaves(_LEAVES_ROOM):
      self._space.widen()
    found = self._next_candidate(rounds_left)
    if found is None and is_looped and self._leaves(_LEAVES_SOME) and self._space.widen():
      found = self._next_candidate(rounds_left)
    return found

  def _next_candidate(self, rounds_left: int) -> SearchCandidate[Decisions] | None:
    twin = self._near_misses.twin_of(self._tried[-1], self._best(), self._budget) if self._tried else None
    if twin and (found := self._first([twin], lambda _: 0)):
      return found
    if not self._holds and (found := self._usual()):
      return found
    untried = [candidate for candidate in self._space.found if candidate not in self._passed]
    if are_in_a_row(self._tried, self._budget):
      plain = [c for c in untried if c.is_plain_policy and c.flops < self._least_flops]
      near = [c for c in plain if self._predict(c) <= (1 + _MARGIN) * self._budget]
      if found := self._first(near, lambda candidate: candidate.flops):
        return found
    looped = in_loops(self._tried)
    if looped and rounds_left <= HAND_ROUNDS and (found := self._published(looped)):
      return found
    if looped and (say_little(looped) or self._is_in_the_dark(looped)):
      usual = [c for c in untried if c.is_by_hand]
      bare = [] if self._holds else [c for c in usual if c.is_bare]
      if found := self._first(bare, lambda candidate: candidate.flops) or self._likeliest_gain(usual):
        return found
    is_late = rounds_left <= max(HAND_ROUNDS, len(self._tried))
    if not self._holds and is_late and (found := self._spared_by_saving(untried)):
      return found
    if not self._holds and self._is_too_shallow() and self._space.deepen():
      untried = [candidate for candidate in self._space.found if candidate not in self._passed]
    if self._overshoots and (found := self._likeliest_gain(untried)):
      return found
    by_hand: list[SearchCandidate[Decisions]] = []
    if self._holds:
      least = self._least_flops
      kin_tried = {trial.candidate.kin for trial in self._tried}
      is_over = lambda c: c.is_nested and c.kin in kin_tried and self._predict(c) > self._budget  # as its kin tell
      by_hand = [c for c in untried if c.is_by_hand and c.flops < least and not is_over(c)]
      flops = self._forecast.flops_of_straight_code()
      untried = [c for c in untried if flops(c) < least - self._tolerance(c, least)]
      if in_loops(self._tried):
        found = self._worth_a_try(by_hand, untried, rounds_left)
        return found or self._spares_much(by_hand, _MUCH, _FAR)
      # A plan at hand that people do better than: theirs first.
      if (rounds_left <= HAND_ROUNDS or not self._tried) and (
        found := self._first_by_hand(by_hand, is_last=rounds_left == 1)
      ):
        return found
    fitting = [c for c in untried if self._predict(c) <= self._limit(is_looped=c.has_loops)]
    if self._holds and (not self._tried or any(trial.hlo_share for trial in self._tried)):  # help costs, too
      fitting = [c for c in fitting if c.has_loops or self._predict(c) <= self._budget] or fitting
    if self._tried:
      # Better than all that should fit, if they do: they would be tried in the end.
      least = min((candidate.flops for candidate in fitting), default=0.0)
      plain = [c for c in by_hand if c.is_plain_policy and c.flops < least - self._tolerance(c, least)]
      if found := self._first_by_hand(plain, reach=1.0):
        return found
    while fitting and (self._holds or rounds_left > 1):
      found = self._first(
        self._nearly_cheapest(fitting),
        lambda candidate: (
          self._predict(candidate) if candidate.has_loops else 0,
          candidate.num_segments if candidate.kin else -candidate.num_segments,
          candidate.flops,
          candidate.estimated_bytes,
        ),
      )
      if found is not None:
        return found
      fitting = [candidate for candidate in fitting if candidate not in self._passed]
    if self._holds and self._tried:
      return self._first_by_hand(by_hand) or self._last_by_hand(by_hand)
    bare = [candidate for candidate in untried if candidate.is_bare]
    bare_tried = [trial for trial in self._tried if trial.candidate.is_bare]
    # Where these are a start whatever they take, what people have tells nothing of what takes the least.
    least_tried = [trial for trial in bare_tried if self._space.is_profiled or not trial.candidate.is_by_hand]
    if is_out_of_reach(least_tried, self._budget):  # but for what a person would do, and groups, whatever is estimated
      deepest = [] if any(trial.candidate.is_grouped for trial in bare_tried) else [c for c in bare if c.is_grouped]
      bare = [candidate for candidate in bare if candidate.is_by_hand] or deepest
    elif self._tried and not any(trial.candidate.is_by_hand for trial in bare_tried):  # before deeper cuts
      bare = [c for c in bare if c.is_by_hand and c.estimated_bytes <= self._budget] or bare
    # Those that cut scans alike compile alike, and so do kin.
    seen = {(trial.candidate.scan_bodies, trial.candidate.kin) for trial in bare_tried}
    is_seen = lambda candidate: (candidate.scan_bodies, candidate.kin) in seen
    found = self._first(bare, lambda candidate: (is_seen(candidate), candidate.estimated_bytes, candidate.flops))
    found = found or self._first(smaller_than_all(untried, self._tried, self._predict), self._predict)
    return found or self._before_refusal(untried)

  def _is_in_the_dark(self, looped: Sequence[Trial[Decisions]]) -> bool:
    """No plan holds, estimates don't tell what would, and little was tried of what people pick: that is few."""
    num_tried = sum(trial.candidate.is_by_hand for trial in looped)
    return not self._holds and num_tried <= HAND_ROUNDS and hide_much(looped, self._budget)

  @property
  def _overshoots(self) -> bool:
    """Two drafts in a row missed the budget, and the plan leaves much room: a hit is worth more than another miss."""
    return (
      self._are_drafts
      and self._leaves(_LEAVES_ROOM)
      and all(trial.temp_bytes > self._budget for trial in self._tried[-2:])
    )

  def _worth_a_try(
    self,
    by_hand: Sequence[SearchCandidate[Decisions]],
    others: Sequence[SearchCandidate[Decisions]],
    rounds_left: int,
  ) -> SearchCandidate[Decisions] | None:
    """Of scan bodies, once a plan holds: the cheapest that should fit and is worth a compile, else what is expected to
    gain most; the more tries came to nothing, the more it has to be. The last tries are for nothing saved, as most
    people have it, around whatever blocks, and after many misses for the sets that most choose among. Where the search
    would end, what a person would pick has another chance: the few policies that everybody tries, then what is worth
    more than the last such try.
    """
    least, tried = self._least_flops, self._tried
    forecast = self._forecast
    expecting = functools.partial(
      ExpectedGain, tried, self._best(), least, self._budget, forecast.unaided_bytes, self._over_bytes
    )
    expected_gain = expecting(forecast.surprise)

    def worth(candidates: Sequence[SearchCandidate[Decisions]], num_misses: float, gain=expected_gain):
      enough = lambda c: self._tolerance(c, least if c.is_by_hand else math.inf) * (1 + num_misses)
      return [candidate for candidate in candidates if gain(candidate) > enough(candidate)]

    most = lambda candidates, gain=expected_gain: self._first(candidates, lambda candidate: -gain(candidate))
    if rounds_left <= HAND_ROUNDS:
      usual = [candidate for candidate in by_hand if candidate.is_bare]
      if found := most(worth(usual, 0)) or self._spares_much(usual, _SOME, _NEAR):
        return found
      chosen = list(filter(self._are_chosen_by_most(), by_hand)) if self._misses >= _MANY_MISSES else []
      if found := most(worth(chosen, 0)):
        return found
    others = worth([*by_hand, *others], self._misses)
    likely = [candidate for candidate in others if expected_gain.chance(candidate) >= 0.5]
    if found := self._first(likely, expected_gain.flops) or most(others):
      return found
    if self._are_drafts:
      return self._last_by_hand(by_hand)
    maybe_bytes, hoped_bytes = MAYBE * self._budget, self._forecast.hoped_bytes
    may_fit = lambda candidate: expected_gain.chance(candidate) or self._predict(candidate) <= maybe_bytes
    told = {names for trial in tried if trial.candidate.is_plain_policy for names in trial.candidate.name_sets}
    is_told = lambda candidate: not told.isdisjoint(candidate.name_sets)  # around other pieces of a turn
    hopeful = [c for c in by_hand if c.is_plain_policy and (may_fit(c) or hoped_bytes(c) <= maybe_bytes)]
    plain = [c for c in hopeful if expected_gain(c) > 0 or not is_told(c)]
    if_unlike = expecting(1.0)  # what was tried
    if found := most([*plain, *worth(by_hand, self._num_last / 2, if_unlike)], if_unlike):
      self._num_last += 1
      return found
    if self._leaves(_LEAVES_ROOM) and self._num_last < HAND_ROUNDS:  # others may be predicted too high, too
      self._num_last += 1
      gains = [c for c in by_hand if may_fit(c) and least - expected_gain.flops(c) > self._tolerance(c, least)]
      if found := self._first(gains, self._predict):
        return found
    if self._num_close == _CLOSE_ROUNDS:
      return None
    self._num_close += 1
    return most([c for c in by_hand if expected_gain(c) > 0 and expected_gain.chance(c) >= _GOOD_CHANCE])

  def _spares_much(
    self, by_hand: Sequence[SearchCandidate[Decisions]], much: float, reach: float
  ) -> SearchCandidate[Decisions] | None:
    """Of the sets that most choose among, two that spare a plan much, though all that was tried says that they don't
    fit. What XLA fuses or partitions otherwise, no prediction knows.

    Args:
      by_hand: to choose from.
      much: of the forward FLOPs.
      reach: of the budget, that they may be predicted to take.
    """
    if self._num_unlikely == _MAX_UNLIKELY:
      return None
    least, reach_bytes = self._least_flops - much * self._space.forward_flops, reach * self._budget
    is_chosen = self._are_chosen_by_most()
    sparing = [c for c in by_hand if c.flops < least and is_chosen(c) and self._predict(c) <= reach_bytes]
    found = self._first(sparing, self._predict)
    self._num_unlikely += found is not None
    return found

  def _over_bytes(self, candidate: SearchCandidate[Decisions]) -> tuple[float, float]:
    """That scan bodies are predicted to take beyond the budget, and the deviation of that."""
    return self._predict(candidate) - self._limit(is_looped=True), self._forecast.doubted_bytes(candidate)

  def _is_too_shallow(self) -> bool:
    """Trials say that the budget is below the least memory that there is a candidate for."""
    bare = [self._predict(candidate) for candidate in self._space.found if candidate.is_bare]
    return bool(self._tried) and min(bare, default=0) > self._budget

  def _limit(self, is_looped: bool) -> float:
    """What a prediction may use: cautious before a plan holds, then as much as might just fit, less for each miss.

    Nothing was tried where a plan is at hand: the HLO engine's alone, which will work under the first try, too.
    """
    if is_looped and (looped := in_loops(self._tried)):
      # What the HLO engine spares, and doubts, are in the prediction, once it had something to spare.
      was_asked = any(trial.hlo_share is None or trial.unaided_bytes > self._budget for trial in looped)
      return self._budget * (1 if was_asked else 1 + _AIDED_MARGIN)
    if not self._holds:
      return self._budget * (1 - _MARGIN * bool(self._tried))
    if any(trial.hlo_share for trial in self._tried) or not self._tried:
      best = self._best()
      reach = max(self._budget, best.unaided_bytes if best else 0)
      return reach * (1 + _AIDED_MARGIN) if self._misses < _MAX_AIDED_MISSES else 0.0
    return self._budget * (1 + _MARGIN * max(1 - self._misses, 0))

  def _nearly_cheapest(self, candidates: Sequence[SearchCandidate[Decisions]]) -> list[SearchCandidate[Decisions]]:
    """Those not worth telling apart from the cheapest: among them decides a rule that similar models follow alike."""
    least = min(candidate.flops for candidate in candidates)
    return [c for c in candidates if c.flops <= least + self._tolerance(c, least)]

  def _leaves(self, share: float) -> bool:
    """There is a plan, and it takes no more than this of the budget."""
    best = self._best()
    return best is not None and best.temp_bytes <= share * self._budget

  def result(self) -> PolicyPlan[Decisions]:
    """The best so far; the program as it is if there was nothing to try."""
    if not self._tried:
      return PolicyPlan.undecided(self._space, self._baseline_bytes, is_feasible=False)
    return PolicyPlan.of_trials(self._space, self._tried, self._best(), self._budget, are_drafts=self._are_drafts)
