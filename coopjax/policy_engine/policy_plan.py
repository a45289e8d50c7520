"""What the policy engine comes to, and the compiles that it took."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class PolicyRound:
  """One compile of the verify-and-replan loop: what was tried, bytes estimated and compiled, and FLOPs repeated."""

  summary: str
  estimated_bytes: int
  temp_bytes: int
  recompute_flops: float

  def __str__(self) -> str:
    return (
      f"{self.summary}: {self.temp_bytes:,} bytes compiled, {self.estimated_bytes:,} estimated, "
      f"{self.recompute_flops:.3g} FLOPs repeated"
    )


@dataclasses.dataclass(frozen=True)
class PolicyPlan[Decisions]:
  """The outcome.

  Attributes:
    decisions: of the best candidate that holds the budget; of the smallest one if none does.
    rounds: the compiles made, in order.
    temp_bytes: compiled temporaries of fn and its gradient under `decisions`.
    recompute_flops: work repeated, modelled; what the HLO engine repeats included.
    forward_flops: forward work, modelled.
    is_feasible: `temp_bytes` is within the budget.
    smallest_bytes: the smallest compiled temporaries seen.
    waiting_flops: what could be computed while transfers to and from the host are waited for, modelled.
  """

  decisions: Decisions
  rounds: tuple[PolicyRound, ...]
  temp_bytes: int
  recompute_flops: float
  forward_flops: float
  is_feasible: bool
  smallest_bytes: int
  waiting_flops: float = 0.0
