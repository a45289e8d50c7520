"""Bars on a terminal while plans are made: what is being done, the best plan so far, the bound and the gap.

The planning modules log what they do; this listens. Where standard error is no terminal, or rich is not installed,
nothing listens and nothing is shown.
"""

import contextlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from typing import Any

from coopjax.planners.auto import Incumbent

_logger = logging.getLogger("coopjax")


class _Listener(logging.Handler):
  """Shows records of planning in a bar of rich's."""

  def __init__(self, bars: Any, title: str):
    super().__init__(logging.DEBUG)
    self._bars, self._title = bars, title
    self._task = bars.add_task(title, total=None, incumbent="")

  def emit(self, record: logging.LogRecord) -> None:
    if isinstance(record.args, tuple) and record.args and isinstance(record.args[0], Incumbent):
      self._bars.update(self._task, incumbent=str(record.args[0]))
    elif record.name == "coopjax.frontier":
      self._bars.update(self._task, description=f"{self._title}: {record.getMessage()}", incumbent="")


@contextlib.contextmanager
def shown(title: str) -> Iterator[None]:
  """A bar while this lasts, gone afterwards."""
  if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
    yield
    return
  from rich import console, progress

  columns = (
    progress.SpinnerColumn(),
    "{task.description}",
    progress.BarColumn(bar_width=20),
    progress.TimeElapsedColumn(),
    "{task.fields[incumbent]}",
  )
  level = _logger.level
  with progress.Progress(*columns, console=console.Console(stderr=True), transient=True) as bars:
    listener = _Listener(bars, title)
    _logger.addHandler(listener)
    _logger.setLevel(logging.DEBUG)
    try:
      yield
    finally:
      _logger.removeHandler(listener)
      _logger.setLevel(level)
