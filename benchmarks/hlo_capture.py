"""Modules as XLA has them once they are scheduled: handed to a callback, or captured without any code."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import xla as jax_xla


@contextlib.contextmanager
def post_scheduler(callback: Callable[[bytes], bytes | None], platform: str = "cpu") -> Iterator[None]:
  """Hands every module that is scheduled inside the block to `callback`."""
  stage = jax_xla.PipelineStage.POST_SCHEDULER
  jax_xla.register_hlo_module_transformation(callback, name="benchmark", stage=stage, platforms=platform)
  try:
    yield
  finally:
    jax_xla.clear_hlo_module_transformation("benchmark", stage=stage, platforms=platform)


class _Captured(Exception):
  """Ends a compile whose module was all that was wanted."""


def capture(lowered: jax.stages.Lowered, options: dict[str, Any] | None = None, platform: str = "cpu") -> bytes:
  """The largest module at POST_SCHEDULER; no code is generated."""
  modules = []

  def keep(module: bytes) -> None:
    modules.append(bytes(module))
    raise _Captured

  with post_scheduler(keep, platform), contextlib.suppress(jax.errors.JaxRuntimeError):
    lowered.compile(compiler_options=options)
  return max(modules, key=len)
