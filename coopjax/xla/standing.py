"""What is asked of every program that the process compiles, with or without a mark: the state behind `coopjax.enable`.

The state is the process's, and part of the keys of JAX's caches. Where it changes, `jax.jit` traces and compiles anew
what it had compiled under another state, and the persistent compilation cache keeps the programs of each state apart.
Neither knows of hooks, so a plan would else be skipped without a word.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Final, Literal

from coopjax import __version__, compat, contexts
from coopjax.budget import Budget
from coopjax.xla import targets

_thread = threading.local()
DEVICE: Final = "device"  # as a budget: the memory of the device that a program is compiled for


@dataclasses.dataclass(frozen=True)
class Standing:
  """What every program is asked for.

  Attributes:
    budget: temporary memory of each program on one device; ``"device"`` for a total of what the device has, None for a
      better order alone.
    planner: name of a planner.
    effort: how much planning one program may take.
    time_limit_s: a fuse, seconds, or None.
    existing: what becomes of the `jax.checkpoint`s of training steps that are jitted meanwhile.
  """

  budget: Budget | Literal["device"] | None
  planner: str
  effort: str
  time_limit_s: float | None
  existing: str = "keep"


def current() -> Standing | None:
  """What is asked in this thread at present."""
  return contexts.standing.value


def change(standing: Standing | None) -> None:
  """Asks it of every program from now on, in all threads."""
  compat.add_to_cache_key("standing", _cache_key)
  contexts.standing.set_global(standing)


@contextlib.contextmanager
def suspended() -> Iterator[None]:
  """Nothing is asked of what this thread compiles inside: planning's own compiles, which plans are measured by."""
  outer, _thread.is_suspended = is_suspended(), True
  try:
    with contextlib.nullcontext() if current() is None else contexts.standing(None):
      yield
  finally:
    _thread.is_suspended = outer


def is_suspended() -> bool:
  """Whether this thread compiles to plan: such a program never runs, and no other process knows of it."""
  return getattr(_thread, "is_suspended", False)


def _cache_key() -> str:
  """Tells apart what is compiled under one state from what is under another; nothing while nothing is asked."""
  standing = current()
  if standing is None:
    return ""
  is_of_device = standing.budget == DEVICE or (isinstance(standing.budget, Budget) and standing.budget.fits)
  memory_bytes = targets.running().memory_bytes if is_of_device else None
  return f"coopjax {__version__} {standing} {memory_bytes}"
