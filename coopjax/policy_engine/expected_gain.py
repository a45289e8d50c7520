"""What it is worth to compile another choice for scan bodies, once a plan holds."""

import math
import statistics
from collections.abc import Callable, Hashable, Sequence

from coopjax.policy_engine.predictions import SearchCandidate, Trial, expected_flops, in_loops

_SMALL_CHANCE = 0.05  # to fit: less is none
_CAUCHY = 2 / 3  # of a normal distribution's deviation: the scale with as much within it


class ExpectedGain[Decisions: Hashable]:
  """By how much less a candidate repeats than the plan, times how likely it does.

  It may not fit: predictions of what a turn takes are off by much where something unlike is kept, so chances are by
  Cauchy's distribution as far as that is likely, else by the normal one. And the HLO engine's help is cheap or dear by
  what can be repeated at all: the tries so far say how often it left nothing of what was gained, where it had more to
  spare than under the plan.

  Attributes:
    flops: from a candidate to what it repeats, with what the HLO engine is expected to.

  Args:
    trials: so far.
    best: of them, if one is within the budget.
    least_flops: that the plan repeats.
    budget_bytes: of the temporaries.
    predict_unaided: from a candidate to what it takes without the HLO engine.
    over_bytes: from a candidate to what it is predicted to take beyond the budget, and the deviation of that.
    surprise: how likely something is unlike what was tried.
  """

  def __init__(
    self,
    trials: Sequence[Trial[Decisions]],
    best: Trial[Decisions] | None,
    least_flops: float,
    budget_bytes: int,
    predict_unaided: Callable[[SearchCandidate[Decisions]], float],
    over_bytes: Callable[[SearchCandidate[Decisions]], tuple[float, float]],
    surprise: float,
  ):
    helped = [trial for trial in in_loops(trials) if trial.flops > trial.candidate.flops]
    spoiled = [t for t in helped if best is not None and t.candidate.flops < best.flops < t.flops]
    cheap = [trial for trial in helped if trial not in spoiled]
    self._stays_cheap = (1 + len(cheap)) / (1 + len(helped))
    self._spared_bytes = max(budget_bytes, best.unaided_bytes if best else 0)
    self.flops = expected_flops(cheap, budget_bytes, predict_unaided)
    self._least_flops, self._predict_unaided, self._over_bytes = least_flops, predict_unaided, over_bytes
    self._surprise = surprise
    self._known: dict[SearchCandidate[Decisions], float] = {}

  def chance(self, candidate: SearchCandidate[Decisions]) -> float:
    """That it fits."""
    over_bytes, deviation = self._over_bytes(candidate)
    if_unlike = 0.5 - math.atan(over_bytes / (_CAUCHY * deviation)) / math.pi
    if_alike = statistics.NormalDist(0.0, deviation).cdf(-over_bytes)
    chance = self._surprise * if_unlike + (1 - self._surprise) * if_alike
    return chance if chance > _SMALL_CHANCE else 0.0

  def __call__(self, candidate: SearchCandidate[Decisions]) -> float:
    if candidate not in self._known:
      gain = self.chance(candidate) * (self._least_flops - self.flops(candidate))
      is_in_doubt = self._stays_cheap < 1 and self._predict_unaided(candidate) > self._spared_bytes
      self._known[candidate] = gain * self._stays_cheap if is_in_doubt else gain
    return self._known[candidate]
