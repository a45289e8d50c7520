"""Small files that processes and people share: written as a whole, read without trust."""

import contextlib
import os
import pathlib
import stat
import tempfile

MAX_BYTES = 1 << 28  # the largest plan seen has a thousandth of it


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
