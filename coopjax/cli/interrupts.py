"""Ctrl-C on the command line: one interrupt that reaches the top wherever it falls.

Python raises `KeyboardInterrupt` where the main thread happens to be. Out of a callback of XLA's that comes as an error
of the compile, and in one of the garbage collector's it is told and dropped, and the command would run on.
"""

import signal
import sys
import threading
from types import FrameType
from typing import Any

_AGAIN_S = 0.05  # by then a callback of the garbage collector's is over


class Interrupts:
  """While this lasts, an interrupt that was dropped comes again.

  Attributes:
    came: whether there was one, in whatever form it arrives.
  """

  came = False

  def __enter__(self) -> "Interrupts":
    self._before = sys.unraisablehook, {}
    is_asked = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored: nohup, a shell's &
    if is_asked and threading.current_thread() is threading.main_thread():
      sys.unraisablehook = self._dropped
      for number in (signal.SIGINT, signal.SIGALRM):
        self._before[1][number] = signal.signal(number, self._raise)
    return self

  def __exit__(self, *_: object) -> None:
    sys.unraisablehook, handlers = self._before
    for number, handler in handlers.items():
      signal.signal(number, handler)

  def _raise(self, number: int, frame: FrameType | None) -> None:
    self.came = True
    raise KeyboardInterrupt

  def _dropped(self, unraisable: Any) -> None:
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
      signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
    else:
      self._before[0](unraisable)
