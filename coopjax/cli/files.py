"""Files that a command is to write: looked at before anything is computed, which may take minutes."""

import argparse
import os
import pathlib
from collections.abc import Sequence


def output(text: str, endings: Sequence[str] = ()) -> pathlib.Path:
  """The path of a file that can be written; `endings`: what its name may end in."""
  path = pathlib.Path(text)
  if endings and path.suffix not in endings:
    raise argparse.ArgumentTypeError(f"{text}: expected a name that ends in {', '.join(endings)}")
  if not path.parent.is_dir():
    raise argparse.ArgumentTypeError(f"{text}: there is no directory {path.parent}")
  if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
    raise argparse.ArgumentTypeError(f"{text} can't be written")
  return path
