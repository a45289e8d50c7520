"""How much a search may do: counted in steps, so that the same is asked and the same found on every machine.

A step is about ten nanoseconds of a search (``xla_pass/base/allowance.h``). Searches of the core count theirs; what
solvers do is estimated and counted here. The counts are the thread's.

A fuse is for who would rather have some plan in time than the best one: when it blows, every search of the thread ends
with what it has. That may differ between machines, so what it cut short says so.
"""

import contextlib
import math
import numbers
from collections.abc import Iterator

from coopjax import _core

SKETCH = "sketch"  # less than anyone asks for: finds nearly as much in most programs
EFFORTS = ("fast", "normal", "best")
DEFAULT_STEPS = 1_000_000_000
# XLA:CPU compiles an instruction, those inside fusions counted, in 0.3 to 0.5 ms. Efforts are searched one after the
# other where more may be worth it: all up to "normal" are about as much.
_STEPS_PER_INSTRUCTION = {SKETCH: 5_000, "fast": 15_000, "normal": 25_000, "best": 600_000}
_MOST_INSTRUCTIONS = 100_000
_LEAST_INSTRUCTIONS = 500  # smaller programs get as many steps: some 0.1 s, which find much


def check_effort(effort: str) -> None:
  """Raises ValueError for what is no effort."""
  if effort not in EFFORTS:
    raise ValueError(f"effort={effort!r}: one of {', '.join(EFFORTS)}")


def check_fuse(time_limit_s: float | None) -> None:
  """Raises ValueError for what is neither None nor a positive number of seconds."""
  if time_limit_s is not None and (not isinstance(time_limit_s, numbers.Real) or not time_limit_s > 0):
    raise ValueError(f"time_limit_s={time_limit_s!r}: a positive number of seconds, or None")


def steps_of(effort: str, num_instructions: int) -> int:
  """Steps that planning a program of so many instructions may take."""
  return _STEPS_PER_INSTRUCTION[effort] * min(max(num_instructions, _LEAST_INSTRUCTIONS), _MOST_INSTRUCTIONS)


def up_to(effort: str) -> tuple[str, ...]:
  """The efforts that are no greater, the least first."""
  return EFFORTS[: EFFORTS.index(effort) + 1]


class Allowance:
  """So many steps from when it was made."""

  def __init__(self, max_steps: int):
    self._start, self._max_steps = _core.steps_taken(), max_steps

  @property
  def left(self) -> int:
    """Steps that may still be taken; none where a fuse has blown."""
    left = self._max_steps - (_core.steps_taken() - self._start)
    if left > 0 and not _core.is_fuse_blown():
      return left
    _core.count_cut()
    return 0

  @property
  def is_over(self) -> bool:
    return self.left == 0


@contextlib.contextmanager
def fuse(time_limit_s: float | None) -> Iterator[None]:
  """Ends the searches of the block after so many seconds, or when a fuse around it blows."""
  outer_s = _core.fuse_seconds_left()
  if time_limit_s is None or outer_s <= time_limit_s:
    yield
    return
  _core.light_fuse(time_limit_s)
  try:
    yield
  finally:
    spent_s = time_limit_s - _core.fuse_seconds_left()
    _core.light_fuse(None if math.isinf(outer_s) else outer_s - spent_s)
