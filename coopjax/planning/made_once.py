"""What is made once in a process, whoever asks for it, and kept under what it was made of."""

import collections
import threading
from collections.abc import Callable, Hashable
from typing import Any

from coopjax.errors import BudgetInfeasibleError, copy_of


class Result:
  """What is made once, or the error that is raised; while one thread makes it, others wait.

  Attributes:
    found: that; None as long as there is none.
  """

  def __init__(self):
    self.found: Any = None
    self._is_made, self._lock = False, threading.RLock()

  def once[Made](self, make: Callable[[], Made]) -> Made:
    with self._lock:
      if not self._is_made:
        try:
          self.found = make()
        except BudgetInfeasibleError as error:
          self.found = copy_of(error)
        self._is_made = True
    if isinstance(self.found, BudgetInfeasibleError):
      raise copy_of(self.found)
    return self.found


class Results:
  """What came of programs, or of one, the latest so many; safe under threads."""

  def __init__(self, num_kept: int = 64):
    self._num_kept = num_kept
    self._of: collections.OrderedDict[Hashable, Result] = collections.OrderedDict()
    self._lock = threading.Lock()

  def once[Made](self, key: Hashable, make: Callable[[], Made]) -> Made:
    """What is made for a key, or the error that is raised, once."""
    with self._lock:
      result = self._of.setdefault(key, Result())
      self._of.move_to_end(key)
      while len(self._of) > self._num_kept:
        self._of.popitem(last=False)
    return result.once(make)
