"""What a search expects of candidates that it has not compiled, by the trials so far."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Hashable

from coopjax.policy_engine import predictions
from coopjax.policy_engine.predictions import HloEngineShare, SearchCandidate, SearchSpace, Trial, kind_of

_DOUBT = 0.1  # of the budget: how far the prediction of a scan body unlike those tried may err, at least
_LEAST_OFF = 0.01  # of the budget: what predictions are off by, at least
_TOLD_BY = 3  # predictions, the last ones, that say how far others may be off
_TELLING = 2  # the fewest that do


class Forecast[Decisions: Hashable]:
  """Bytes that candidates take when they are compiled, how far that may be off, and what they will repeat.

  Attributes:
    tried: the trials so far.
    budget_bytes: of the temporaries.
    ratio: compiled over estimated bytes of the program as it is, which goes for candidates until there is a trial.
    num_shards: devices that share what estimates are of.
  """

  def __init__(
    self,
    space: SearchSpace[Decisions],
    budget_bytes: int,
    baseline_temp_bytes: int,
    alone: HloEngineShare | None = None,
  ):
    self.tried: list[Trial[Decisions]] = []
    self.budget_bytes, self._alone = budget_bytes, alone
    self._baseline_bytes = space.baseline_bytes
    self.ratio = baseline_temp_bytes / max(space.baseline_bytes, 1.0)
    undone = min((candidate.estimated_bytes for candidate in space.found if not candidate.flops), default=0.0)
    self.num_shards = max(1, round(undone / max(baseline_temp_bytes, 1))) if space.is_spread else 1
    self._unaided: list[Trial[Decisions]] = []  # those tried, without the HLO engine's help
    # From the trials so far: bytes, and by how much less they may be, for a budget.
    self._known: dict[SearchCandidate[Decisions], float] = {}
    self._doubts: dict[tuple[SearchCandidate[Decisions], int], float] = {}
    self._off: dict[Hashable, list[float]] = {}  # by kind (`kind_of`), what predictions from others of it were off by
    self._strayed: list[float] = []  # of scan bodies: what predictions were off by, over what they were doubted by

  def record(self, trial: Trial[Decisions]) -> None:
    kind = kind_of(trial.candidate)
    if any(kind_of(other.candidate) == kind for other in self.tried):
      off_bytes = abs(self.bytes_of(trial.candidate) - trial.temp_bytes)
      self._off.setdefault(kind, []).append(off_bytes)
      if doubt_bytes := self._untold_doubt(trial.candidate):
        self._strayed.append(off_bytes / doubt_bytes)
    self.tried.append(trial)
    self._unaided.append(dataclasses.replace(trial, temp_bytes=trial.unaided_bytes))
    self._known.clear()
    self._doubts.clear()

  def bytes_of(self, candidate: SearchCandidate[Decisions]) -> float:
    if candidate not in self._known:
      self._known[candidate] = predictions.predicted_bytes(candidate, self.tried, self.ratio, self.num_shards)
    return self._known[candidate]

  def hoped_bytes(self, candidate: SearchCandidate[Decisions]) -> float:
    """What a plain policy is taken to need at least. Few are plain, so they have the benefit of the best ratio that a
    trial, or the program as it is, showed, if not of the estimate itself; none needs more than the program as it is.
    """
    ratios = [trial.unaided_bytes / max(trial.candidate.estimated_bytes, 1.0) for trial in self.tried]
    ratio = min([1.0, self.ratio, *ratios])
    return min(self.bytes_of(candidate), ratio * min(candidate.estimated_bytes, self._baseline_bytes))

  def unaided_bytes(self, candidate: SearchCandidate[Decisions]) -> float:
    """Without the HLO engine's help."""
    return predictions.predicted_bytes(candidate, self._unaided, self.ratio, self.num_shards)

  def fits(self, candidate: SearchCandidate[Decisions]) -> statistics.NormalDist:
    """Predictions with which candidates like this fit: the budget, give or take what predictions were off by."""
    off = self._off.get(kind_of(candidate), ())[-_TOLD_BY:]
    off_bytes = statistics.median(off) if len(off) >= _TELLING else predictions.spread_of(self.tried, self.num_shards)
    return statistics.NormalDist(self.budget_bytes, max(off_bytes, _LEAST_OFF * self.budget_bytes, 1.0))

  def doubted_bytes(self, candidate: SearchCandidate[Decisions]) -> float:
    """The deviation of what a scan body is predicted to take: the less, the better predictions held so far."""
    told = math.sqrt((1.0 + math.sumprod(self._strayed, self._strayed)) / (1 + len(self._strayed)))
    return max(min(told, 1.0) * self._untold_doubt(candidate), self.fits(candidate).stdev)

  @property
  def surprise(self) -> float:
    """How likely something of a scan body is unlike what was tried, so that predictions say little: as often as trials
    were off by more than doubted.
    """
    return (1 + sum(strayed > 1.0 for strayed in self._strayed)) / (1 + len(self._strayed))

  def _untold_doubt(self, candidate: SearchCandidate[Decisions]) -> float:
    if (key := (candidate, self.budget_bytes)) not in self._doubts:
      least_spread = _DOUBT * self.budget_bytes
      self._doubts[key] = predictions.doubted_bytes(candidate, self.tried, least_spread, self.num_shards)
    return self._doubts[key]

  def flops_of_straight_code(self) -> Callable[[SearchCandidate[Decisions]], float]:
    """From candidates to what they repeat, with what the HLO engine is expected to if it did so twice."""
    straight = [trial for trial in self.tried if not trial.candidate.has_loops]
    if sum(trial.flops > trial.candidate.flops for trial in straight) < _TELLING:
      return lambda candidate: candidate.flops
    flops_of = predictions.expected_flops(straight, self.budget_bytes, self.unaided_bytes, self._alone)
    return lambda candidate: candidate.flops if candidate.has_loops else flops_of(candidate)
