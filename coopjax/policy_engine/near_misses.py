"""What a person would pick and just misses the budget, as people write it (`ladders.Candidate.twin`): XLA's schedules
of the two differ by little, and by hand it may fit.
"""

from collections.abc import Hashable, Sequence

from coopjax.policy_engine.predictions import SearchCandidate, Trial

_NEAR_MISS = 0.01  # of the budget; or
_NEAR_MISS_OF_PLAIN = 0.1  # of the few policies that everybody tries, as everybody writes them
_IN_A_ROW = 3  # near misses: what they have in common, nothing that is estimated tells


def are_in_a_row(trials: Sequence[Trial], budget_bytes: int) -> bool:
  """Whether the last trials all just missed: the gradients that an optimizer waits for take what they take."""
  last = trials[-_IN_A_ROW:]
  is_near = lambda trial: budget_bytes < trial.temp_bytes <= (1 + _NEAR_MISS) * budget_bytes
  return len(last) == _IN_A_ROW and all(map(is_near, last))


class NearMisses[Decisions: Hashable]:
  """Twins of what just missed, one after the other, as long as such come to no more.

  Attributes:
    twin: that is to be compiled, or was last; None where the last candidate has none that is worth it.
  """

  def __init__(self):
    self.twin: SearchCandidate[Decisions] | None = None  # under way, if the last candidate is one
    self._missed: Trial[Decisions] | None = None  # what that is a twin of
    self._twins_cost = False

  def record(self, trial: Trial[Decisions]) -> None:
    """A trial."""
    if trial.candidate is self.twin and self._missed is not None:
      self._twins_cost = trial.temp_bytes > self._missed.temp_bytes

  def twin_of(
    self, last: Trial[Decisions], best: Trial[Decisions] | None, budget_bytes: int
  ) -> SearchCandidate[Decisions] | None:
    """The twin of the last trial, if that just missed, and repeats less than the best; or of what that is a twin of."""
    missed = self._missed if self._missed is not None and last.candidate is self.twin else last
    is_another = missed is not last
    near = _NEAR_MISS_OF_PLAIN if last.candidate.is_plain_policy and not is_another else _NEAR_MISS
    just_misses = budget_bytes < missed.temp_bytes <= (1 + near) * budget_bytes
    is_usual = last.candidate.is_by_hand or last.candidate.is_bare
    is_wanted = is_usual and just_misses and (best is None or last.flops < best.flops)
    self.twin = last.candidate.twin if is_wanted and (is_another or not self._twins_cost) else None
    self._missed = missed
    return self.twin
