"""Errors and warnings, each with what was asked, what is reachable and what to try.

Their text, and all that is shown besides, has names of the user's in it: `printable` is what makes these harmless.
"""

import contextlib
import functools
import importlib.util
import logging
import os
import sys
import warnings
from typing import Any

_LIBRARIES = ("jax", "flax", "equinox", "haliax")  # through which users' calls come here


def warn(message: str, category: type[Warning]) -> None:
  """Warns in the name of the user's line: the innermost that is neither ours nor of a library in between."""
  prefixes = _prefixes(*(name for name in _LIBRARIES if name in sys.modules))
  warnings.warn(printable(message, keeps="\n"), category, skip_file_prefixes=prefixes)


def printable(text: str, keeps: str = "") -> str:
  """Text of which a terminal obeys nothing, in one line: other characters as Python's strings, and YAML's, escape them.

  Args:
    text: with names of the user's, paths, or what other libraries say.
    keeps: characters that stay as they are.
  """
  if text.isprintable():
    return text
  return "".join(c if c.isprintable() or c in keeps else c.encode("unicode_escape").decode() for c in text)


def log(logger: logging.Logger, level: int, message: str, *args: Any, **options: Any) -> None:
  """Logs; a handler of the user's that fails must not fail a plan or a compile."""
  with contextlib.suppress(Exception):
    logger.log(level, message, *args, **options)


@functools.cache
def _prefixes(*libraries: str) -> tuple[str, ...]:
  """Where their files lie, and ours."""
  specs = [spec for name in libraries if (spec := importlib.util.find_spec(name)) is not None]
  homes = [os.path.dirname(__file__), *(os.path.dirname(spec.origin) for spec in specs if spec.origin)]
  return tuple(home + os.sep for home in homes)


class CoopjaxError(Exception):
  """Base of every error that coopjax raises."""

  def __str__(self) -> str:
    return printable(super().__str__(), keeps="\n")


def copy_of[Raised: CoopjaxError](error: Raised) -> Raised:
  """The error to be remembered and raised again: without the frames, and their values, that it was raised in."""
  copied = type(error).__new__(type(error), *error.args)
  vars(copied).update(vars(error))
  if notes := getattr(error, "__notes__", None):
    copied.__notes__ = list(notes)
  return copied


class InvalidBudgetError(CoopjaxError, ValueError):
  """A budget that is not a positive number of bytes, a size string or a share in (0, 1]."""


class InvalidProgramError(CoopjaxError, ValueError):
  """A StepProgram with a cycle, a negative size, an unknown id or another fault."""


class InvalidPlanError(CoopjaxError, ValueError):
  """A plan that breaks data order, live bytes or pinned values, or a plan file that can't be read."""


class NotDifferentiableError(CoopjaxError, TypeError):
  """A function with no floating-point argument: it has no gradient, so nothing to rematerialize."""


class OrderedEffectError(CoopjaxError, NotImplementedError):
  """A function whose input or output happens in an order with others (``io_callback(ordered=True)``)."""


class BudgetInfeasibleError(CoopjaxError):
  """No plan reaches the budget.

  Attributes:
    budget_bytes: what was asked: of temporaries, or in total where the budget is one.
    smallest_bytes: the smallest reachable found, as the budget counts.
    op: the op that forces it.
    largest: the three largest values live there, ``(bytes, type, source line)`` each.
    unaided_bytes: temporaries of the program as it is, where they are known; else 0.
  """

  def __init__(
    self, message: str, *, budget_bytes: int, smallest_bytes: int, op: str, largest: tuple, unaided_bytes: int = 0
  ):
    super().__init__(message)
    self.unaided_bytes = unaided_bytes
    self.budget_bytes = budget_bytes
    self.smallest_bytes = smallest_bytes
    self.op = op
    self.largest = largest


class UnknownTargetError(CoopjaxError, ValueError):
  """A target that is none, or one whose topology its compiler does not know or is too small for the program."""


class MissingWheelError(CoopjaxError, ImportError):
  """A target whose compiler is not installed; the message names the extra that brings it."""


class UserFunctionError(CoopjaxError):
  """A function, or its arguments, that the command line was told to plan and that can't be had."""


class MissingPackageError(CoopjaxError, ImportError):
  """A package that only some features need and that is not installed; the message names it."""


class CompileMemoryError(CoopjaxError):
  """A program that does not fit the memory of the device that it is compiled for.

  Attributes:
    memory_bytes: what the device has.
  """

  def __init__(self, message: str, *, memory_bytes: int):
    super().__init__(message)
    self.memory_bytes = memory_bytes


class DumpError(CoopjaxError, ValueError):
  """A path that holds no compiled program that could be read; the message says what was expected and found."""


class PlanMismatchError(CoopjaxError):
  """A plan applied to a program that it was not made for."""


class NoRegionsError(CoopjaxError, ValueError):
  """A step without a remat that a plan may decide on, where one is needed; the message says what to wrap, and where."""


class PolicyNamesError(CoopjaxError, ValueError):
  """A plan, or a step, for which there is no `jax.checkpoint` policy over names; the message says why."""


class RematNoEffectWarning(UserWarning):
  """A remat that changed nothing in the compiled program; the message names the cause."""


class BudgetExceededWarning(UserWarning):
  """A best-effort plan, or a program compiled in place, that stays above its budget."""


class LostUpdateWarning(UserWarning):
  """A function that changes its arguments in place (a Flax NNX module's batch statistics), which are copies."""


class ShardingUnknownWarning(UserWarning):
  """A program that was planned for all devices together, because its sharding is not known where it is traced."""


class CacheWarning(UserWarning):
  """Decisions that can't be kept on disk, or a kept one that can't be read."""


class HostOffloadError(CoopjaxError, ValueError):
  """A budget that allows host offload where nothing can be offloaded: on a CPU, by the HLO engine, or for one block."""


class HostOffloadWarning(UserWarning):
  """A budget that allows host offload on a CPU, where it is planned without."""
