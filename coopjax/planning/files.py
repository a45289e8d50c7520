"""Small files that processes and people share: written as a whole, read without trust."""

import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
import stat
import tempfile
import types
import typing
from typing import Any

MAX_BYTES = 1 << 28  # the largest plan seen has a thousandth of it
_TYPES = {bool: "true or false", float: "a number", int: "a whole number", str: "text", types.NoneType: "null"}


def write_whole(path: pathlib.Path, text: str) -> None:
  """Writes a file that a reader sees as it was or with all of `text`; readable by whom the umask allows."""
  # In a directory of its own: a temporary file of Python's would be its owner's alone.
  with tempfile.TemporaryDirectory(dir=path.parent, prefix=".coopjax-", suffix=".tmp") as directory:
    written = pathlib.Path(directory) / path.name
    written.write_text(text)
    os.replace(written, path)


def read_regular(path: pathlib.Path) -> bytes:
  """The bytes of a plain file; nothing that others may have put in its place is waited for.

  Raises:
    OSError: it can't be read.
    ValueError: it is a pipe, a device or the like, or larger than any plan.
  """
  file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
  with contextlib.closing(os.fdopen(file, "rb")) as opened:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
      raise ValueError("not a plain file")
    if status.st_size > MAX_BYTES:
      raise ValueError(f"{status.st_size:,} bytes, more than any plan has")
    return opened.read(MAX_BYTES + 1)


def misfit(kind: Any, value: Any, name: str = "") -> str:
  """What in JSON is not of the types that a dataclass declares for its fields, in words; "" if all is.

  Fields that are missing, or that the dataclass does not have, are no matter here.

  Args:
    kind: the dataclass, or the type of one of its fields: a tuple is a list in JSON, and a float may be a whole number.
    value: as JSON has it.
    name: of the value; "" for the outermost.
  """
  parts = typing.get_args(kind)
  if isinstance(kind, types.UnionType):
    wrong = [misfit(part, value, name) for part in parts]
    return "" if "" in wrong else wrong[0]
  if dataclasses.is_dataclass(kind):
    if not isinstance(value, dict):
      return _told(name, value, "an object")
    hints, path = _hints(kind), f"{name}." if name else ""
    inside = ((hints[key], each, f"{path}{key}") for key, each in value.items() if key in hints)
  elif typing.get_origin(kind) is tuple:
    if not isinstance(value, list):
      return _told(name, value, "a list")
    if parts[-1] is not ... and len(parts) != len(value):
      return _told(name, value, f"{len(parts)} values")
    kinds = itertools.repeat(parts[0]) if parts[-1] is ... else parts
    inside = ((part, each, f"{name}[{i}]") for i, (part, each) in enumerate(zip(kinds, value)))
  else:
    is_number = isinstance(value, bool) and kind is not bool  # to Python it is
    is_kind = isinstance(value, (int, float) if kind is float else kind) and not is_number
    return "" if is_kind else _told(name, value, _TYPES[kind])
  return next(filter(None, itertools.starmap(misfit, inside)), "")


_hints = functools.cache(typing.get_type_hints)


def _told(name: str, value: Any, expected: str) -> str:
  return f"{name} is {value!r:.60}, not {expected}"
