"""What a candidate will take when it is compiled: from its estimate, and from what others took."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Protocol

import numpy as np

from coopjax.policy_engine.ladders import CUT_WEIGHT, Traits

_SLOPE_DOUBT = 0.1  # of the estimates: nearer to each other, their errors show little of a slope
_FLAT = 0.25  # of what estimates fall by: compiled bytes that fall by less have come to what is always there
_APART = 0.05  # of the larger of two estimates: nearer to each other, they show nothing of it
_SAYS_LITTLE = 0.1  # of an estimate: what takes less lies elsewhere, in a TPU's vector memory for one
_MAX_LIKE_THE_LEAST = 3  # tries at what estimates don't tell from what took the least
_MAX_SMALLER = 3  # tries at less than all before
_ENOUGH = 3  # tries at the least memory, before the budget counts as out of reach
_WITHIN_REACH = 1.1  # of the budget: worth more tries
_SAME = 0.02  # of the least: what unlike ways come to, and of the budget: beyond it
_LEAST_SLOPE = -0.95  # of errors: more estimated bytes are more bytes


@dataclasses.dataclass(frozen=True)
class HloEngineShare:
  """What the HLO engine did to a program under checkpoints.

  Attributes:
    unaided_bytes: temporaries without it.
    recompute_flops: that it repeats on top of the checkpoints.
  """

  unaided_bytes: int
  recompute_flops: float


class SearchCandidate[Decisions: Hashable](Protocol):
  """What the search asks of a candidate; `candidates.Candidate` says what the words mean."""

  @functools.cached_property
  def decisions(self) -> Decisions: ...
  @property
  def estimated_bytes(self) -> float: ...
  @property
  def flops(self) -> float: ...
  @property
  def is_bare(self) -> bool: ...
  @property
  def is_by_hand(self) -> bool: ...
  @property
  def is_plain_policy(self) -> bool: ...
  @property
  def name_sets(self) -> Collection[frozenset[str]]: ...
  @property
  def twin(self) -> "SearchCandidate[Decisions] | None": ...
  @property
  def waiting_flops(self) -> float: ...
  @property
  def num_segments(self) -> int: ...
  @property
  def kin(self) -> Hashable: ...
  @property
  def is_nested(self) -> bool: ...
  @functools.cached_property
  def scan_bodies(self) -> Hashable: ...
  @functools.cached_property
  def traits(self) -> Traits: ...
  @functools.cached_property
  def loops(self) -> Hashable: ...
  @functools.cached_property
  def is_grouped(self) -> bool: ...
  @functools.cached_property
  def has_loops(self) -> bool: ...
  @functools.cached_property
  def has_straight_code(self) -> bool: ...
  @property
  def summary(self) -> str: ...


class SearchSpace[Decisions: Hashable](Protocol):
  """What is searched: the candidates, what the forward pass takes, and the decisions that leave everything as it is.

  `deepen` adds candidates that take less and repeat more, if there are any that it has not added yet; `widen` those for
  what room a plan leaves.
  """

  @property
  def found(self) -> Sequence[SearchCandidate[Decisions]]: ...
  @property
  def forward_flops(self) -> float: ...
  @property
  def baseline_bytes(self) -> float: ...
  @property
  def is_spread(self) -> bool: ...
  @property
  def is_profiled(self) -> bool: ...
  @property
  def undecided(self) -> Decisions: ...
  def deepen(self) -> bool: ...
  def widen(self) -> bool: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Trial[Decisions: Hashable]:
  """A candidate, compiled: its temporaries, and the HLO engine's part in them.

  Attributes:
    candidate: that was compiled.
    temp_bytes: of the program; of a draft of it, what it tells of them.
    hlo_share: what the HLO engine did, if it was at work.
  """

  candidate: SearchCandidate[Decisions]
  temp_bytes: int
  hlo_share: HloEngineShare | None
  _distances: dict[SearchCandidate, int] = dataclasses.field(default_factory=dict, repr=False)

  def distance(self, candidate: SearchCandidate) -> int:
    """Traits that only one of them has, another candidate or its own; asked again after each trial."""
    if candidate not in self._distances:
      self._distances[candidate] = len(candidate.traits ^ self.candidate.traits)
    return self._distances[candidate]

  @property
  def unaided_bytes(self) -> int:
    return self.hlo_share.unaided_bytes if self.hlo_share else self.temp_bytes

  @property
  def flops(self) -> float:
    return self.candidate.flops + (self.hlo_share.recompute_flops if self.hlo_share else 0.0)

  def error_bytes(self, num_shards: int) -> float:
    """Of the candidate's estimate, of which a device holds one of so many parts."""
    return self.temp_bytes - self.candidate.estimated_bytes / num_shards


def in_loops(trials: Sequence[Trial]) -> list[Trial]:
  """Those that decide on scan bodies."""
  return [trial for trial in trials if trial.candidate.has_loops]


def kind_of(candidate: SearchCandidate) -> Hashable:
  """Predictions for candidates of one kind go by each other."""
  return candidate.has_loops, candidate.kin


def say_little(trials: Sequence[Trial]) -> bool:
  """Whether all of them take a small part of their estimates: most lies elsewhere, in a TPU's vector memory."""
  return all(trial.temp_bytes < _SAYS_LITTLE * trial.candidate.estimated_bytes for trial in trials)


def hide_much(trials: Sequence[Trial], budget_bytes: int) -> bool:
  """Whether trials that estimates don't tell apart differ by more than the budget: a compiler puts much elsewhere."""
  points = sorted((trial.candidate.estimated_bytes, trial.temp_bytes) for trial in trials)
  return any(
    more <= (1 + _APART) * less and abs(one - other) > budget_bytes
    for (less, one), (more, other) in itertools.combinations(points, 2)
  )


def lie_elsewhere(trials: Sequence[Trial], budget_bytes: int, num_shards: int) -> bool:
  """Whether of what was estimated more than half of the budget is not in the device's main memory: what fits, no
  estimate tells.
  """
  return any(trial.error_bytes(num_shards) < -budget_bytes / 2 for trial in trials)


def predicted_bytes(
  candidate: SearchCandidate, trials: Sequence[Trial], untried_ratio: float, num_shards: int = 1
) -> float:
  """Compiled bytes, as trials let expect.

  What a turn of a loop needs beside what is saved depends on which values are saved, in ways that only compiles show,
  and so does how far the HLO engine helps. So the errors of trials count, the more the more alike their bodies are; and
  where errors grow or shrink with the bytes (XLA:TPU may count stacks twice, a device may hold a part of what is
  estimated), they are taken to go on so. Where all take a small part of what was estimated, others take that part, too.

  Without loops, bytes are unaided: between two compiled candidates by the line through them, beyond them byte for byte.
  Candidates of kin go by what was compiled of them, others by all.

  Args:
    candidate: that is thought of.
    trials: so far.
    untried_ratio: from estimates to compiled bytes while there is none.
    num_shards: of what loops save, whose estimates are of the whole arrays where compiled bytes are one device's.
  """
  num_bytes = candidate.estimated_bytes
  alike = _alike(candidate, trials)
  if alike and candidate.has_loops:
    if say_little(alike):
      nearest = min(alike, key=lambda trial: abs(trial.candidate.estimated_bytes - num_bytes))
      return num_bytes * nearest.temp_bytes / nearest.candidate.estimated_bytes
    weights = [(1 + trial.distance(candidate)) ** -2.0 for trial in alike]
    errors = [trial.error_bytes(num_shards) for trial in alike]
    estimates = [trial.candidate.estimated_bytes / num_shards for trial in alike]
    return num_bytes / num_shards + _expected(num_bytes / num_shards, estimates, errors, weights)
  if not trials:
    return num_bytes * untried_ratio
  kin = [trial for trial in trials if candidate.kin and trial.candidate.kin == candidate.kin]
  points = sorted((trial.candidate.estimated_bytes, trial.unaided_bytes) for trial in kin or trials)
  estimated, compiled = zip(*points, strict=True)
  if estimated[0] < num_bytes < estimated[-1]:
    return float(np.interp(num_bytes, estimated, compiled))
  nearest = 0 if num_bytes <= estimated[0] else -1
  slope = 1.0 if kin else min(1.0, compiled[nearest] / max(estimated[nearest], 1.0))
  return max(compiled[nearest] + slope * (num_bytes - estimated[nearest]), _floor_bytes(candidate, trials))


def expected_flops[Decisions: Hashable](
  trials: Sequence[Trial[Decisions]],
  budget_bytes: int,
  predict_unaided: Callable[[SearchCandidate[Decisions]], float],
  alone: HloEngineShare | None = None,
) -> Callable[[SearchCandidate[Decisions]], float]:
  """From candidates to what they repeat, with what the HLO engine does under them: for each byte over the budget that
  they are predicted to take without that help, as much as it did where it had nearly as many to spare.

  Args:
    trials: so far.
    budget_bytes: that the engine helps to hold.
    predict_unaided: from a candidate to what it takes without that help.
    alone: what the engine did without checkpoints, where that is known.
  """
  helped = [trial for trial in trials if trial.hlo_share and trial.unaided_bytes > budget_bytes]
  shares = [HloEngineShare(trial.unaided_bytes, trial.flops - trial.candidate.flops) for trial in helped]

  def flops_of(candidate: SearchCandidate[Decisions]) -> float:
    left_bytes = predict_unaided(candidate) if helped else 0.0
    if left_bytes <= budget_bytes:
      return candidate.flops
    nearest = min(shares, key=lambda share: abs(share.unaided_bytes - left_bytes))
    most = nearest if alone is None or alone.unaided_bytes <= nearest.unaided_bytes else alone
    bytes_left = budget_bytes, nearest.unaided_bytes, most.unaided_bytes
    return candidate.flops + float(
      np.interp(left_bytes, bytes_left, (0.0, nearest.recompute_flops, most.recompute_flops))
    )

  return flops_of


def like_the_least[Decisions: Hashable](
  candidates: Sequence[SearchCandidate[Decisions]],
  trials: Sequence[Trial[Decisions]],
  least: SearchCandidate[Decisions],
) -> Sequence[SearchCandidate[Decisions]]:
  """Other ways to save nothing that estimates don't tell from what took the least, the most finely cut first: XLA's
  bytes tell whether the last segment had better be under a checkpoint, and where blocks end. A few of them, whatever
  they take.
  """
  like_bytes = least.estimated_bytes
  is_like = lambda each: each.is_bare and abs(each.estimated_bytes - like_bytes) <= _APART * like_bytes
  if sum(is_like(trial.candidate) for trial in trials) > _MAX_LIKE_THE_LEAST:
    return ()
  return sorted(filter(is_like, candidates), key=lambda each: (-each.num_segments, each.flops))


def smaller_than_all[Decisions: Hashable](
  candidates: Sequence[SearchCandidate[Decisions]],
  trials: Sequence[Trial[Decisions]],
  predict: Callable[[SearchCandidate[Decisions]], float],
) -> Sequence[SearchCandidate[Decisions]]:
  """What is predicted to take less than all that was tried, as long as such tries come to less."""
  sizes = [trial.temp_bytes for trial in trials]
  if not sizes or len(sizes) - sizes.index(min(sizes)) > _MAX_SMALLER:
    return ()
  return [candidate for candidate in candidates if predict(candidate) < min(sizes)]


def is_out_of_reach(least_tried: Sequence[Trial], budget_bytes: int) -> bool:
  """Whether enough of what takes the least says that a budget is out of its reach: by much, or because unlike ways to
  cut straight code come to the same, which is what is always there.
  """
  sizes = [trial.temp_bytes for trial in least_tried]
  if len(sizes) < _ENOUGH or min(sizes) > _WITHIN_REACH * budget_bytes:
    return len(sizes) >= _ENOUGH
  is_floor = len(sizes) > _ENOUGH and not in_loops(least_tried) and max(sizes) <= (1 + _SAME) * min(sizes)
  return is_floor and min(sizes) > (1 + _SAME) * budget_bytes


def _floor_bytes(candidate: SearchCandidate, trials: Sequence[Trial]) -> float:
  """What the segments of a candidate take whatever they save, as two trials of as many show: where estimates fell, and
  compiled bytes did not.
  """
  num_segments, kin = candidate.num_segments, (None, candidate.kin)
  cut_alike = [trial for trial in trials if trial.candidate.num_segments == num_segments and trial.candidate.kin in kin]
  points = sorted((trial.candidate.estimated_bytes, trial.unaided_bytes) for trial in cut_alike)
  return max(
    (
      min(lower, upper)
      for (less, lower), (more, upper) in itertools.pairwise(points)
      if less < (1 - _APART) * more and upper - lower < _FLAT * (more - less) and candidate.estimated_bytes < more
    ),
    default=0.0,
  )


def _alike(candidate: SearchCandidate, trials: Sequence[Trial]) -> list[Trial]:
  """Those that decide on the same scans, or on any: what a scan keeps that is left as it is, XLA fuses otherwise. Turns
  in groups, and others, go by each other.
  """
  looped = in_loops(trials)
  looped = [trial for trial in looped if trial.candidate.is_grouped == candidate.is_grouped] or looped
  return [trial for trial in looped if trial.candidate.loops == candidate.loops] or looped


def _expected(at: float, estimates: Sequence[float], errors: Sequence[float], weights: Sequence[float]) -> float:
  """The error at an estimate: the weighted mean, and a slope as far as estimates are wide enough apart to show one."""
  in_all = math.fsum(weights)
  mean = lambda values: math.sumprod(weights, values) / in_all
  centre, level = mean(estimates), mean(errors)
  away = [estimate - centre for estimate in estimates]
  spread = max(mean([distance**2 for distance in away]) + (_SLOPE_DOUBT * centre) ** 2, 1.0)
  slope = mean([distance * (error - level) for distance, error in zip(away, errors, strict=True)]) / spread
  return level + max(slope, _LEAST_SLOPE) * (at - centre)


def doubted_bytes(
  candidate: SearchCandidate, trials: Sequence[Trial], least_spread: float, num_shards: int = 1
) -> float:
  """That the prediction for scan bodies may be too high by: the errors' spread, or less if it is like one tried.

  Args:
    candidate: as for `predicted_bytes`.
    trials: as for `predicted_bytes`.
    least_spread: bytes that errors are taken to differ by, at least.
    num_shards: as for `predicted_bytes`.
  """
  alike = _alike(candidate, trials)
  if not alike or not candidate.has_loops:
    return 0.0
  spread = max(spread_of(alike, num_shards), least_spread)
  if alike[0].candidate.loops != candidate.loops:
    return spread
  nearest = min(trial.distance(candidate) for trial in alike)
  return spread * nearest / (CUT_WEIGHT + nearest)


def spread_of(trials: Sequence[Trial], num_shards: int = 1) -> float:
  """The standard deviation of what the estimates of trials are off by, in bytes."""
  errors = [trial.error_bytes(num_shards) for trial in trials]
  mean = math.fsum(errors) / len(errors)
  return math.sqrt(math.fsum((error - mean) ** 2 for error in errors) / len(errors))
