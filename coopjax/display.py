"""What profiles, plans and frontiers share when they are shown: tables as text and HTML, pictures, data frames.

matplotlib and pandas are loaded when they are asked for; where one is not there, a `MissingPackageError` names what
brings it.
"""

import html
import importlib
import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coopjax.errors import MissingPackageError, printable

MIB = 2**20
_GAP = "  "  # between columns
_ROOM = 20  # characters for a column while another could be left out
_LEAST = 10  # that a column keeps
_CALLED_BY = " < "  # between frames, the innermost first
_OF_PATHS = "/", ":", "['", "]."  # of files and lines, scopes, arguments
_IN_FUNCTION = re.compile(r"^(\S+:\d+) \([^()]*\)$")
_STYLE = "text-align:left;padding:2px 12px 2px 0;font-variant-numeric:tabular-nums"


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int = 0, spare: Sequence[str] = ()) -> str:
  """A table with aligned columns, a line for each row; the last column is not padded.

  Args:
    columns: headings.
    rows: cells.
    width: characters that a line may take; 0: as many as it takes. Where they are too few, paths under the current
      directory lose it, then lines of code their function; then columns are left out, and long cells shortened: paths,
      of arguments too, and scopes keep their end, stacks of frames and other text their beginning.
    spare: headings of the columns that are left out for it, the first of them first.
  """
  rows = [[printable(cell) for cell in row] for row in rows]
  kept, widths = list(columns), _widths(columns, rows)
  for simpler in (_from_here, _without_function):
    if width and sum(widths.values()) + len(_GAP) * (len(kept) - 1) > width:
      rows = [[simpler(cell) for cell in row] for row in rows]
      widths = _widths(columns, rows)
  needed = lambda most: sum(min(widths[name], most) for name in kept) + len(_GAP) * (len(kept) - 1)
  for name in spare:
    if width and needed(_ROOM) > width and name in kept:
      kept.remove(name)
  most = max(widths[name] for name in kept)
  while width and most > _LEAST and needed(most) > width:
    most -= 1
  places = [(columns.index(name), min(widths[name], most)) for name in kept]
  line = lambda row: _GAP.join(_shortened(row[i], room).ljust(room) for i, room in places).rstrip()
  return "\n".join(line(row) for row in (columns, *rows))


def wrapped(text: str, width: int = 0) -> str:
  """Text whose lines have at most `width` characters, what is carried over indented; of any length for 0."""
  text = printable(text, keeps="\n")
  if not width:
    return text
  fill = lambda line: textwrap.wrap(
    line, width, subsequent_indent=" " * (4 + len(line) - len(line.lstrip())), break_on_hyphens=False
  )
  return "\n".join(part for line in text.split("\n") for part in fill(line) or [""])


def terminal_width() -> int:
  """Characters of a line of the terminal that is written to, or what COLUMNS says; 0 for files and pipes."""
  return shutil.get_terminal_size((0, 0)).columns


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, int]:
  return {name: max(len(row[i]) for row in (columns, *rows)) for i, name in enumerate(columns)}


def _shortened(cell: str, room: int) -> str:
  if len(cell) <= room:
    return cell
  keeps_end = any(mark in cell for mark in _OF_PATHS) and _CALLED_BY not in cell
  return f"..{cell[2 - room :]}" if keeps_end else f"{cell[: room - 2]}.."


def _from_here(cell: str) -> str:
  """With paths as seen from the current directory, where they are in it."""
  return cell.replace(os.path.join(os.getcwd(), ""), "")


def _without_function(cell: str) -> str:
  """A line of code without the function that it stands in: "train.py:12 (block)" is "train.py:12"."""
  return _IN_FUNCTION.sub(r"\1", cell)


def html_table(headline: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], more: int = 0) -> str:
  """A headline of some lines over a table, in HTML that inherits the notebook's colours.

  Args:
    headline: text; its lines stay lines.
    columns: headings.
    rows: cells.
    more: rows that are left out, for a last line that says so.
  """
  cell = lambda tag, value: f'<{tag} style="{_STYLE}">{html.escape(printable(str(value)))}</{tag}>'
  lines = ["".join(cell("th", column) for column in columns)]
  lines += ["".join(cell("td", value) for value in row) for row in rows]
  table = "".join(f"<tr>{line}</tr>" for line in lines)
  rest = f"<p>... and {more:,} more</p>" if more > 0 else ""
  return f'<div><p style="white-space:pre-wrap">{html.escape(headline)}</p><table>{table}</table>{rest}</div>'


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
  """The rows as a ``pandas.DataFrame``."""
  return _package("pandas", "to_frame()").DataFrame(list(rows))


def axes(given: Any, title: str) -> Any:
  """The given axes, or those of a new picture, under a title."""
  pyplot = _package("matplotlib.pyplot", "plot()")
  given = given or pyplot.subplots(figsize=(8, 4.5), layout="constrained")[1]
  given.set_title(title)
  return given


def plot_live_bytes(given: Any, title: str, curves: Mapping[str, Sequence[int]], limit_bytes: int | None = None) -> Any:
  """Live bytes over the schedules of programs, in MiB, and a limit as a dashed line.

  Args:
    given: axes, or None for new ones.
    title: above them.
    curves: live bytes at each step, by name.
    limit_bytes: drawn as a line.
  """
  shown = axes(given, title)
  for name, live_bytes in curves.items():
    shown.stairs([num_bytes / MIB for num_bytes in live_bytes], fill=True, alpha=0.5, label=name)
  if limit_bytes is not None:
    shown.axhline(limit_bytes / MIB, color="tab:red", linestyle="--", label="budget")
  shown.set(xlabel="step of the schedule", ylabel="live temporaries, MiB", ylim=(0, None))
  shown.legend()
  return shown


def plot_totals(given: Any, title: str, totals: Mapping[str, int]) -> Any:
  """Bars of bytes, in MiB: for programs whose live bytes are not known."""
  shown = axes(given, title)
  bars = shown.barh(list(totals), [num_bytes / MIB for num_bytes in totals.values()])
  shown.bar_label(bars, fmt="%.1f", padding=3)
  shown.invert_yaxis()
  shown.set_xlabel("MiB")
  return shown


def require_pictures(what: str) -> None:
  """Raises the error of a missing matplotlib before anything is computed, if it is missing."""
  _package("matplotlib", what)


def _package(name: str, what: str) -> Any:
  try:
    return importlib.import_module(name)
  except ImportError as error:
    package = name.partition(".")[0]
    brings = {"matplotlib": "'coopjax[cli]'"}.get(package, package)
    raise MissingPackageError(f"{what} needs {package}, which is not installed: pip install {brings}") from error
