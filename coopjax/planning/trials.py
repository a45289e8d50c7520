"""The compiles that answering a request takes."""

import functools
from collections.abc import Callable, Sequence

import jax

from coopjax import compat
from coopjax.hlo_engine import hook
from coopjax.memory_profile import MemoryProfile
from coopjax.planning.request import Request
from coopjax.policy_engine.predictions import HloEngineShare
from coopjax.xla.buffer_assignment import Sizes
from coopjax.xla.compile import Compilable, OversizedProgram, compile_trial, fits, measure, temp_bytes_of
from coopjax.xla.module import predict_memory

_SCHEDULED_TRIALS = 12  # about two compiles' work on a CPU, half of one for a TPU
_COMPILED_TRIALS = 6

type Compiled = jax.stages.Compiled | OversizedProgram


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

  def __init__(self, request: Request, mark: str | None = None, smallest: Compiled | None = None):
    self._request, self._mark, self.smallest = request, mark, smallest
    self.outcome: hook.Outcome | None = None
    self._profiles: dict[int, MemoryProfile] = {}
    platform = compat.hook_platform(request.platform)
    self._scheduled_by = platform if platform in ("cpu", "tpu") else None  # XLA:GPU schedules last of all

  @property
  def max_rounds(self) -> int:
    """Trials that a search may make."""
    return _SCHEDULED_TRIALS if self._scheduled_by else _COMPILED_TRIALS

  @property
  def compile_whole(self) -> Callable[[Compilable, Sequence[jax.ShapeDtypeStruct]], Compiled] | None:
    """`compile`, whole, where it ends at a schedule that does not settle what buffers take."""
    return functools.partial(self.compile, whole=True) if self._scheduled_by == "tpu" else None

  def hlo_share(self) -> HloEngineShare | None:
    """What the HLO engine did in the last program."""
    return self.outcome and HloEngineShare(self.outcome.baseline.temp_bytes, self.outcome.recompute_flops)

  def compile(
    self,
    fn: Compilable,
    avals: Sequence[jax.ShapeDtypeStruct],
    mark: str | None = None,
    *,
    whole: bool = False,
  ) -> Compiled:
    """The function compiled for the device, whether it fits or not; or as far as its schedule.

    Generating code takes four fifths of a compile on a CPU, and nearly all of it for a TPU. XLA:CPU assigns buffers to
    the scheduled module as `predict_memory` does, to the byte. XLA:TPU moves some to vector memory first: what is
    predicted is too much, and no program that anybody could run.

    Args:
      fn: of flat arrays, or with its arguments in it.
      avals: their types.
      mark: that the program carries, if not that of all trials.
      whole: wherever it is compiled for.
    """
    with hook.outcomes(mark or self._mark) as made:
      compiled = compile_trial(fn, avals, self._request.device) if whole else self._scheduled(fn, avals)
      if isinstance(compiled, bytes):
        compiled = _oversized(compiled)
    self.outcome = max(made, key=lambda outcome: outcome.baseline.temp_bytes, default=None)
    if self._scheduled_by == "tpu" and not whole:
      return compiled
    if self.smallest is None or temp_bytes_of(compiled) < temp_bytes_of(self.smallest):
      self.smallest = compiled
    if fits(compiled, self._request.device):
      profile = measure(compiled, self._request.device)
      self._profiles[profile.temp_bytes] = profile
    return compiled

  def partition(self, fn: Compilable, avals: Sequence[jax.ShapeDtypeStruct]) -> None:
    """Compiles a function of flat arrays as far as it takes for XLA to partition it."""
    self._scheduled(fn, avals)

  def _scheduled(self, fn: Compilable, avals: Sequence[jax.ShapeDtypeStruct]) -> bytes | Compiled:
    """The function's schedule; the whole program where that is no less work."""
    device, platform = self._request.device, self._scheduled_by
    if platform is None:
      return compile_trial(fn, avals, device)
    if device is not None:
      device.load()
    hook.install(platform)
    return hook.schedule(lambda: compile_trial(fn, avals, device))

  def measured(self, temp_bytes: int) -> MemoryProfile | None:
    """The profile of the trial with these temporaries; None if none of them fits the device."""
    return self._profiles.get(temp_bytes)


def _oversized(module: bytes) -> OversizedProgram:
  memory = predict_memory(module)
  sizes = Sizes(memory.temp_bytes, memory.argument_bytes, memory.output_bytes, memory.alias_bytes)
  return OversizedProgram(sizes, module)
