"""The compiles that answering a request takes."""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax

from coopjax import compat, progress
from coopjax.hlo_engine import hook
from coopjax.memory_profile import MemoryProfile
from coopjax.planning.request import Request
from coopjax.policy_engine.predictions import HloEngineShare
from coopjax.xla.compile import (
  Compilable,
  OversizedProgram,
  as_counted,
  compile_trial,
  fits,
  makes_drafts,
  temp_bytes_of,
)

_CHEAP_TRIALS = 12  # that end where buffers are known: on a CPU about two compiles' work, for a TPU less than one's
_COMPILED_TRIALS = 6


@dataclasses.dataclass(eq=False)
class Tried:
  """What was compiled of one step for all requests so far: nothing is compiled, or searched for candidates, twice.

  Attributes:
    programs: by what was decided and how far it was compiled, what they take and what the HLO engine did.
    smallest: as of `Trials`, if anything was compiled.
    shards: how devices share values, once that was asked.
    spaces: candidates, by what they may do.
    flops: of the programs that were counted, by region, by what was decided.
    alone: what the HLO engine makes of the step, by what it is asked, with the effort of a trial.
  """

  programs: dict[Hashable, tuple[MemoryProfile, hook.Outcome | None]] = dataclasses.field(default_factory=dict)
  smallest: jax.stages.Compiled | OversizedProgram | None = None
  shards: Any = None
  spaces: dict[Hashable, Any] = dataclasses.field(default_factory=dict)
  flops: dict[Hashable, Mapping[int | None, float]] = dataclasses.field(default_factory=dict)
  alone: dict[str, hook.Outcome | None] = dataclasses.field(default_factory=dict)

  def num_parts(self, num_devices: int) -> int:
    """That the work of a step on so many devices is cut into: as the partitioner told, else as many."""
    told = [of_region.of_work for of_key in (self.shards or {}).values() for of_region in of_key.values()]
    return max(told, default=num_devices)


def share_of(outcome: hook.Outcome, num_examples: int) -> HloEngineShare:
  """What the HLO engine did to a program of so many examples, to each."""
  return HloEngineShare(outcome.baseline.temp_bytes, outcome.recompute_flops / num_examples)


class Trials:
  """Compiles for a request, and remembers what the programs that can run take.

  Args:
    request: what is asked.
    mark: on what is compiled, if the HLO engine is at work.
    smallest: as the attribute, if there is such a program already.
    resident_bytes: arguments and outputs of what is compiled.
    num_examples: that it computes, where candidates count one.

  Attributes:
    smallest: the program with the least temporaries so far, if there is one.
    outcome: of the HLO engine on the last program, if there is one.
  """

  def __init__(
    self,
    request: Request,
    mark: str | None = None,
    smallest: jax.stages.Compiled | OversizedProgram | None = None,
    *,
    resident_bytes: int,
    num_examples: int = 1,
  ):
    self._request, self._mark, self.smallest, self._resident_bytes = request, mark, smallest, resident_bytes
    self._num_examples = num_examples
    self.outcome: hook.Outcome | None = None
    self._num_compiles = 0
    self._profiles: dict[int, MemoryProfile | None] = {}  # by temporaries; None where several have the same

  @property
  def max_rounds(self) -> int:
    """Trials that a search may make; where values may go to the host there is more to choose."""
    return _CHEAP_TRIALS * (1 + bool(self._request.budget.offload)) if self._are_cheap else _COMPILED_TRIALS

  @property
  def are_drafts(self) -> bool:
    """Whether trials that are not whole predict, if closely, what the program takes."""
    is_gpu = self._request.platform == "gpu"
    return compat.hook_platform("gpu") is not None if is_gpu else makes_drafts(self._request.device)

  @property
  def _are_cheap(self) -> bool:
    """Whether trials that are not whole end where buffers are known."""
    return self._request.platform == "cpu" or self.are_drafts

  def hlo_share(self) -> HloEngineShare | None:
    """What the HLO engine did in the last program, to each example."""
    return self.outcome and share_of(self.outcome, self._num_examples)

  def compile(
    self,
    fn: Compilable,
    avals: Sequence[jax.ShapeDtypeStruct],
    mark: str | None = None,
    *,
    whole: bool = False,
    is_sketch: bool = True,
  ) -> jax.stages.Compiled | OversizedProgram:
    """The function compiled for the device, whether it fits or not, as far as its buffers are known.

    On a CPU, and where there is a hook for a GPU, that is its schedule: XLA:CPU assigns buffers to the scheduled module
    as `predict_memory` does, to the byte, and generating code takes four fifths of a compile. For a TPU it is a draft.

    Args:
      fn: of flat arrays, or with its arguments in it.
      avals: their types.
      mark: that the program carries, if not that of all trials.
      whole: compiled to the end, unless the request is content with drafts.
      is_sketch: as of `hook.schedule`.
    """
    self._num_compiles += 1
    progress.note(f"compiling trial {self._num_compiles}")
    with hook.outcomes(mark or self._mark) as made:
      if (whole and not self._request.drafts) or not self._are_cheap:
        compiled = compile_trial(fn, avals, self._request.device)
      elif makes_drafts(self._request.device):
        compiled = compile_trial(fn, avals, self._request.device, draft_above=self._resident_bytes)
      else:
        compiled = self._scheduled(fn, avals, is_sketch)
      if isinstance(compiled, bytes):
        compiled = OversizedProgram.as_predicted(compiled)
    self.outcome = max(made, key=lambda outcome: outcome.baseline.temp_bytes, default=None)
    if fits(compiled, self._request.device):
      profile = self._request.measure(compiled)
      if self._profiles.setdefault(profile.temp_bytes, profile) != profile:
        self._profiles[profile.temp_bytes] = None
    compiled = as_counted(compiled, self._request.device, as_allocated=self._request.as_allocated)
    if self.smallest is None or temp_bytes_of(compiled) < temp_bytes_of(self.smallest):
      self.smallest = compiled
    return compiled

  def partition(self, fn: Compilable, avals: Sequence[jax.ShapeDtypeStruct]) -> None:
    """Compiles a function of flat arrays as far as it takes for XLA to partition it."""
    self._scheduled(fn, avals)

  def _scheduled(
    self, fn: Compilable, avals: Sequence[jax.ShapeDtypeStruct], is_sketch: bool = True
  ) -> bytes | jax.stages.Compiled | OversizedProgram:
    """The function's scheduled module; where no hook runs, a draft, or the whole program."""
    device, platform = self._request.device, compat.hook_platform(self._request.platform)
    if platform is None:
      return compile_trial(fn, avals, device, draft_above=self._resident_bytes)
    if device is not None:
      device.load()
    hook.install(platform)
    return hook.schedule(lambda: compile_trial(fn, avals, device, to_schedule=True), is_sketch=is_sketch)

  def measured(self, temp_bytes: int) -> MemoryProfile | None:
    """The profile of the trial with these temporaries; None if none of them fits the device, or several have them."""
    return self._profiles.get(temp_bytes)
