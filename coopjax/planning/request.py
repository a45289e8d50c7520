"""What a user asks for, validated, and the compiles that answering it takes."""

import dataclasses
from collections.abc import Callable, Sequence

import jax

from coopjax.planning import host_offload
from coopjax.budget import Budget
from coopjax.policy_engine.search import Aid
from coopjax.memory_profile import MemoryProfile
from coopjax.planners import base
from coopjax.hlo_engine import hook
from coopjax.hlo_engine.mark import mark_of
from coopjax.xla import targets
from coopjax.xla.compile import OversizedProgram, compile_trial, fits, measure, temp_bytes_of
from coopjax.xla.targets import Target

ENGINES = ("auto", "hlo", "policy")
ON_INFEASIBLE = ("error", "best_effort")
POLICY_PLANNERS = ("auto", "segments", "coop")
_TRIAL_TIME = 0.15  # of the time limit


@dataclasses.dataclass(frozen=True)
class Request:
  """A validated request; hashable, so that choices are kept under it."""

  budget: Budget
  planner: str
  engine: str
  time_limit_s: float
  on_infeasible: str
  target: str | None = None

  @property
  def device(self) -> Target | None:
    """What is planned for, None for the default backend."""
    return None if self.target is None else targets.resolve(self.target)

  @property
  def platform(self) -> str:
    """Of the device."""
    return jax.default_backend() if self.target is None else self.device.platform

  @property
  def speeds(self) -> Target:
    """What gives ops their modelled seconds: the device, or the one that is here."""
    return self.device or targets.running()

  def compile(self, fn: Callable, avals: Sequence[jax.ShapeDtypeStruct]) -> jax.stages.Compiled | OversizedProgram:
    """The function compiled for the device, whether it fits or not."""
    return compile_trial(fn, avals, self.device)

  def for_trials(self) -> "Request":
    """The request that each of several trials makes of the HLO engine: a part of the time."""
    return dataclasses.replace(self, time_limit_s=_TRIAL_TIME * self.time_limit_s)

  def mark(self, fingerprint: str, budget: Budget | None = None) -> str:
    """The mark of a traced program, with a budget in place of the user's if one is given."""
    return mark_of(fingerprint, budget or self.budget, self.planner, self.time_limit_s, self.speeds.name)

  @classmethod
  def checked(cls, budget, planner, engine, target, time_limit_s, on_infeasible) -> "Request":
    """The arguments of ``remat`` as a request; ``InvalidBudgetError`` or ``ValueError`` names what is wrong."""
    base.get_planner(planner)
    if engine not in ENGINES:
      raise ValueError(f"engine={engine!r}: one of {', '.join(ENGINES)}")
    if on_infeasible not in ON_INFEASIBLE:
      raise ValueError(f"on_infeasible={on_infeasible!r}: one of {', '.join(ON_INFEASIBLE)}")
    if engine == "policy" and planner not in POLICY_PLANNERS:
      raise ValueError(f"planner={planner!r} schedules instructions, which engine='policy' does not: there, a planner "
                       f"is one of {', '.join(POLICY_PLANNERS)}")
    platform = jax.default_backend()
    if target is not None:
      device = targets.resolve(target)
      targets.check_wheel(device)
      target, platform = device.name, device.platform
    base.check_time_limit(time_limit_s)
    budget, engine = host_offload.admit(Budget.parse(budget), engine, platform)
    return cls(budget, planner, engine, float(time_limit_s), on_infeasible, target)


class Trials:
  """Compiles for a request, and remembers what the programs that can run take.

  Args:
    request: what is asked.
    mark: on what is compiled, if the HLO engine is at work.
    smallest: as the attribute, if there is such a program already.

  Attributes:
    smallest: the program with the least temporaries so far, if there is one.
    outcome: of the HLO engine on the last program, if there is one.
  """

  def __init__(self, request: Request, mark: str | None = None,
               smallest: jax.stages.Compiled | OversizedProgram | None = None):
    self._request, self._mark, self.smallest = request, mark, smallest
    self.outcome: hook.Outcome | None = None
    self._profiles: dict[int, MemoryProfile] = {}

  def aid(self) -> Aid | None:
    """What the HLO engine did in the last program."""
    return self.outcome and Aid(self.outcome.baseline.temp_bytes, self.outcome.recompute_flops)

  def compile(self, fn: Callable, avals: Sequence[jax.ShapeDtypeStruct], mark: str | None = None,
              ) -> jax.stages.Compiled | OversizedProgram:
    """As `Request.compile`; `mark`: that the program carries, if not that of all trials."""
    with hook.outcomes(mark or self._mark) as made:
      compiled = self._request.compile(fn, avals)
    self.outcome = max(made, key=lambda outcome: outcome.baseline.temp_bytes, default=None)
    if self.smallest is None or temp_bytes_of(compiled) < temp_bytes_of(self.smallest):
      self.smallest = compiled
    if fits(compiled, self._request.device):
      profile = measure(compiled, self._request.device)
      self._profiles[profile.temp_bytes] = profile
    return compiled

  def measured(self, temp_bytes: int) -> MemoryProfile | None:
    """The profile of the trial with these temporaries; None if none of them fits the device."""
    return self._profiles.get(temp_bytes)
