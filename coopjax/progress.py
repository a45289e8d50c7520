"""A line on a terminal while planning takes long: what is being planned, and how far that is.

What takes part says so with `shown`, and tells what it does with `note`. Where standard error is no terminal, or rich
is not installed, nothing is shown, and a plan never depends on what is.
"""

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator

from coopjax.errors import printable

_AFTER_S = 2.0  # most plans are there before
_lines: list[Callable[[str], object]] = []  # of the process at most one: what is planned inside takes part in it


def note(text: str) -> None:
  """Tells what is being done, to whoever looks."""
  for tell in _lines[:1]:
    tell(text)


@contextlib.contextmanager
def shown(title: str) -> Iterator[None]:
  """A line while this lasts, from when it has lasted some seconds, gone afterwards."""
  if _lines or not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
    yield
    return
  from rich import console, markup, progress

  columns = progress.SpinnerColumn(), "{task.description}", progress.TimeElapsedColumn(), "{task.fields[note]}"
  escape = lambda text: markup.escape(printable(text))
  line = progress.Progress(*columns, console=console.Console(stderr=True), transient=True)
  task = line.add_task(escape(title), total=None, note="")
  timer = threading.Timer(_AFTER_S, line.start)
  timer.daemon = True
  _lines.append(lambda text: line.update(task, note=escape(text)))
  timer.start()
  try:
    yield
  finally:
    _lines.clear()
    timer.cancel()
    timer.join()
    line.stop()
