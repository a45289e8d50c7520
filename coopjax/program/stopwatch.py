"""Seconds for people to see: the one clock of the package, beside that of progress bars. Nothing is decided by it."""

import time


class Stopwatch:
  """Runs from when it is made."""

  def __init__(self):
    self._started_s = time.perf_counter()

  @property
  def seconds(self) -> float:
    """Since then."""
    return time.perf_counter() - self._started_s
