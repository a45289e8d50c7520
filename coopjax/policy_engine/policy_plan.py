"""What a search ends with: the decisions that are carried out, and the compiles that led to them."""

import dataclasses
import math
from collections.abc import Sequence

from coopjax.budget import format_bytes
from coopjax.policy_engine.predictions import SearchSpace, Trial


@dataclasses.dataclass(frozen=True)
class PolicyRound:
  """One trial of the verify-and-replan loop: what was tried, bytes estimated and compiled, and FLOPs repeated."""

  summary: str
  estimated_bytes: int
  temp_bytes: int
  recompute_flops: float
  is_draft: bool = False

  def __str__(self) -> str:
    return (
      f"{self.summary}: {format_bytes(self.temp_bytes)} {'predicted' if self.is_draft else 'compiled'}, "
      f"{format_bytes(self.estimated_bytes)} estimated, {self.recompute_flops:.3g} FLOPs repeated"
    )


@dataclasses.dataclass(frozen=True)
class PolicyPlan[Decisions]:
  """The outcome.

  Attributes:
    decisions: of the best candidate that holds the budget; of the smallest one if none does.
    rounds: the trials made, in order; of drafts, what the program is predicted to take.
    temp_bytes: compiled temporaries of fn and its gradient under `decisions`.
    recompute_flops: work repeated, modelled; what the HLO engine repeats included.
    forward_flops: forward work, modelled.
    is_feasible: `temp_bytes` is within the budget.
    smallest_bytes: the smallest compiled temporaries seen.
    unaided_bytes: `temp_bytes` without what the HLO engine did.
    waiting_flops: what could be computed while transfers to and from the host are waited for, modelled.
    hlo_flops: the part of `recompute_flops` that the HLO engine repeats.
  """

  decisions: Decisions
  rounds: tuple[PolicyRound, ...]
  temp_bytes: int
  recompute_flops: float
  forward_flops: float
  is_feasible: bool
  smallest_bytes: int
  unaided_bytes: int
  waiting_flops: float = 0.0
  hlo_flops: float = 0.0

  @classmethod
  def undecided(cls, space: SearchSpace[Decisions], temp_bytes: int, is_feasible: bool) -> "PolicyPlan[Decisions]":
    """The program as it is."""
    return cls(space.undecided, (), temp_bytes, 0.0, space.forward_flops, is_feasible, temp_bytes, temp_bytes)

  @classmethod
  def of_trials(
    cls,
    space: SearchSpace[Decisions],
    tried: Sequence[Trial[Decisions]],
    best: Trial[Decisions] | None,
    budget_bytes: int,
    *,
    are_drafts: bool,
  ) -> "PolicyPlan[Decisions]":
    """What was tried, at least once, and the best of what holds the budget; the smallest where nothing does."""
    smallest = min(tried, key=lambda trial: trial.temp_bytes)
    taken = best or smallest
    net_flops = lambda trial: trial.flops - trial.candidate.waiting_flops
    rounds = tuple(
      PolicyRound(
        trial.candidate.summary, int(trial.candidate.estimated_bytes), trial.temp_bytes, net_flops(trial), are_drafts
      )
      for trial in tried
    )
    return cls(
      taken.candidate.decisions,
      rounds,
      taken.temp_bytes,
      net_flops(taken),
      space.forward_flops,
      taken.temp_bytes <= budget_bytes,
      smallest.temp_bytes,
      taken.unaided_bytes,
      taken.candidate.waiting_flops,
      taken.flops - taken.candidate.flops,
    )

  def compiled(self, temp_bytes: int, budget_bytes: int, more_flops: float = 0.0) -> "PolicyPlan[Decisions]":
    """The same where it was found by drafts, or with less effort of the HLO engine, which repeats so much more now,
    and takes so many bytes when it is compiled whole.
    """
    return dataclasses.replace(
      self,
      temp_bytes=temp_bytes,
      recompute_flops=self.recompute_flops + more_flops,
      hlo_flops=self.hlo_flops + more_flops,
      is_feasible=temp_bytes <= budget_bytes,
      smallest_bytes=self.smallest_bytes + temp_bytes - self.temp_bytes,
      unaided_bytes=self.unaided_bytes + temp_bytes - self.temp_bytes,
    )

  @classmethod
  def best(cls, plans: "Sequence[PolicyPlan[Decisions]]", wanted_bytes: float = math.inf) -> "PolicyPlan[Decisions]":
    """Of plans for one budget, each compiled: the one that repeats least of those that hold it, else the smallest. What
    comes to the wanted bytes is better than what does not.
    """

    def rank(plan: "PolicyPlan[Decisions]") -> tuple[bool, bool, float]:
      amount = plan.recompute_flops if plan.is_feasible else plan.temp_bytes
      return plan.temp_bytes > wanted_bytes, not plan.is_feasible, amount

    taken = min(plans, key=rank)
    return dataclasses.replace(taken, rounds=plans[-1].rounds, smallest_bytes=min(plan.temp_bytes for plan in plans))
