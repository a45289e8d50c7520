"""A program without a plan, as XLA compiles it: looked at once, however many plans are made of it."""

import functools
from collections.abc import Callable
from typing import Any

from coopjax.hlo_engine import hook
from coopjax.jaxpr.fingerprint import fingerprint_of
from coopjax.jaxpr.tags import tagged_fn
from coopjax.jaxpr.trace import TracedFn, fn_and_gradient
from coopjax.memory_profile import MemoryProfile
from coopjax.planning.request import Request
from coopjax.xla.compile import compile_trial, measure, module_of
from coopjax.xla.targets import Target


class Baseline:
  """What compiles of one program show, each made when it is first asked for.

  Args:
    program: identifies it, in every process.
    compile_plain: compiles the program as it is, whether it fits the device or not.
    compile_tagged: the same with tags on its equations and, if one is given, a mark for the HLO engine.
    target: what is compiled for, None for the default backend.
    is_scheduled: the program as it is is compiled no further than to its schedule, and carries no tags for anybody.
  """

  def __init__(
    self,
    program: str,
    compile_plain: Callable[[], Any],
    compile_tagged: Callable[[str | None], Any],
    target: Target | None,
    *,
    is_scheduled: bool = False,
  ):
    self._program, self.is_scheduled = program, is_scheduled
    self._compile_plain, self._compile_tagged, self._target = compile_plain, compile_tagged, target

  @classmethod
  def of(cls, traced: TracedFn, target: Target | None, compile_fn: Callable[..., Any] = compile_trial) -> "Baseline":
    """A function with its gradient; `compile_fn` may be `compile_draft`."""
    return cls(
      fingerprint_of(traced),
      lambda: compile_fn(*fn_and_gradient(traced), target),
      lambda mark: compile_fn(*fn_and_gradient(traced, tagged_fn(traced, mark)), target),
      target,
    )

  @functools.cached_property
  def plain(self) -> Any:
    """The compiled program as it is."""
    return self._compile_plain()

  @functools.cached_property
  def profile(self) -> MemoryProfile:
    """Memory of the program as it is."""
    return measure(self.plain, self._target)

  def profile_for(self, request: Request) -> MemoryProfile:
    """The same as the budget of a request counts it."""
    return request.measure(self.plain) if request.as_allocated else self.profile

  @functools.cached_property
  def tagged(self) -> Any:
    """The compiled program with tags, which lead from its buffers to equations."""
    return self._compile_tagged(None)

  @functools.cached_property
  def module(self) -> bytes:
    """The module that XLA schedules, for a hook that is installed; no code is generated."""
    return module_of(self.plain) if self.is_scheduled else hook.capture(self._program, self._compile_tagged)

  @functools.cached_property
  def observed(self) -> tuple[bytes, Any]:
    """The module that XLA schedules, and the program that it goes on to compile."""
    return hook.observe(self._program, self._compile_tagged)
