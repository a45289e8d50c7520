"""What a user asks for, validated."""

import dataclasses
from typing import Any

import jax

from coopjax.budget import Budget
from coopjax.errors import UnknownTargetError
from coopjax.hlo_engine.mark import Mark, Whole, keyed
from coopjax.memory_profile import MemoryProfile
from coopjax.planners import base
from coopjax.planners import effort as efforts
from coopjax.planning import host_offload
from coopjax.xla import targets
from coopjax.xla.compile import OversizedProgram, makes_drafts, measure
from coopjax.xla.device_budget import allowed
from coopjax.xla.targets import Target

ENGINES = ("auto", "hlo", "policy")
ON_INFEASIBLE = ("error", "best_effort")
POLICY_PLANNERS = ("auto", "segments", "coop")


@dataclasses.dataclass(frozen=True)
class Request:
  """A validated request; hashable, so that choices are kept under it.

  Attributes:
    as_allocated: bytes are those of XLA's buffer assignment, by which XLA:TPU refuses what does not fit; its memory
      analysis, which a budget in bytes goes by, counts fragmentation twice, and the stacks of a scan.
    drafts: of many requests, most of which nothing will come of: where the target's compiler makes drafts, they are
      what is measured.
    tells_least: where nothing reaches the budget, the least bytes are looked for.
    after: the budget that the function was planned for before: a search of policies goes on from its tries.
  """

  budget: Budget
  planner: str
  engine: str
  effort: str
  on_infeasible: str
  target: str | None = None
  time_limit_s: float | None = None
  names_only: bool = False
  as_allocated: bool = False
  drafts: bool = False
  tells_least: bool = True
  after: Budget | None = None

  @property
  def device(self) -> Target | None:
    """What is planned for, None for the default backend."""
    return None if self.target is None else targets.resolve(self.target)

  @property
  def platform(self) -> str:
    """Of the device."""
    device = self.device
    return jax.default_backend() if device is None else device.platform

  @property
  def speeds(self) -> Target:
    """What gives ops their modelled seconds: the device, or the one that is here."""
    return self.device or targets.running()

  def measure(self, compiled: jax.stages.Compiled | OversizedProgram) -> MemoryProfile:
    """What a compiled program takes, as the budget counts it."""
    return measure(compiled, self.device, as_allocated=self.as_allocated)

  def for_trials(self) -> "Request":
    """The request that each of several trials makes of the HLO engine: less effort, if there is less."""
    return dataclasses.replace(self, effort=efforts.up_to(self.effort)[-2:][0])

  def mark(self, fingerprint: str, budget: Budget | None = None) -> str:
    """The mark of a traced program, with a budget in place of the user's if one is given."""
    return self._mark(fingerprint, budget or self.budget).to_text()

  def held(self, fingerprint: str, whole: Whole | None) -> str | None:
    """What a program without a mark is held to, a share as `whole` has it; what does not fit a TPU, XLA refuses."""
    if self.as_allocated or (self.budget.share is not None and whole is None):
      return None
    return dataclasses.replace(self._mark(fingerprint, self.budget), whole=whole).to_choice()

  def whole(self, temp_bytes: int = 0, output_bytes: int = 0, *, is_of_all: bool = False) -> Whole | None:
    """What a share is of, by what a function takes alone; None where the budget is none, or is another device's."""
    share, device = self.budget.share, self.device
    if share is None or share >= 1 or (device is not None and not device.is_running):
      return None
    return Whole(share, temp_bytes, output_bytes, is_of_all)

  def _mark(self, fingerprint: str, budget: Budget) -> Mark:
    refuses = self.on_infeasible == "error"
    return keyed(
      Mark(budget, self.planner, self.effort, self.time_limit_s, target=self.speeds.name, refuses=refuses), fingerprint
    )

  @classmethod
  def checked(
    cls,
    *,
    budget: Any,
    planner: str,
    engine: str,
    target: str | None,
    effort: str,
    time_limit_s: float | None,
    on_infeasible: str,
    names_only: bool = False,
    drafts: bool = False,
  ) -> "Request":
    """The arguments of ``remat`` as a request; ``InvalidBudgetError`` or ``ValueError`` names what is wrong."""
    base.get_planner(planner)
    if engine not in ENGINES:
      raise ValueError(f"engine={engine!r}: one of {', '.join(ENGINES)}")
    if names_only:
      if engine == "hlo":
        raise ValueError("names_only=True asks for a policy of jax.checkpoint, which engine='hlo' does not make")
      engine = "policy"
    if on_infeasible not in ON_INFEASIBLE:
      raise ValueError(f"on_infeasible={on_infeasible!r}: one of {', '.join(ON_INFEASIBLE)}")
    if engine == "policy" and planner not in POLICY_PLANNERS:
      raise ValueError(
        f"planner={planner!r} schedules instructions, which engine='policy' does not: there, a planner "
        f"is one of {', '.join(POLICY_PLANNERS)}"
      )
    device = targets.running() if target is None else targets.resolve(target)
    if target is not None:
      targets.check_wheel(device)
      target = device.name
    efforts.check_effort(effort)
    efforts.check_fuse(time_limit_s)
    as_allocated = Budget.parse(budget).fits and device.platform == "tpu"
    budget, engine = host_offload.admit(allowed(budget, device), engine, device.platform)
    fuse_s = None if time_limit_s is None else float(time_limit_s)
    drafts = drafts and makes_drafts(device)
    return cls(budget, planner, engine, effort, on_infeasible, target, fuse_s, names_only, as_allocated, drafts)


def no_hook(platform: str) -> UnknownTargetError:
  """The error that asking for the HLO engine deserves where it has no way into the compile."""
  return UnknownTargetError(f"engine='hlo': JAX {jax.__version__} has no HLO hook on {platform}; use 'policy'")
