"""What profiles, plans and frontiers share when they are shown: tables as text and HTML, pictures, data frames.

matplotlib and pandas are loaded when they are asked for; where one is not there, a `MissingPackageError` says so.
"""

import html
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coopjax.errors import MissingPackageError

MIB = 2**20
_STYLE = "text-align:left;padding:2px 12px 2px 0;font-variant-numeric:tabular-nums"


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A table with aligned columns; the last one is not padded."""
  widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
  line = lambda row: "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
  return "\n".join(line(row) for row in (columns, *rows))


def html_table(headline: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], more: int = 0) -> str:
  """A headline of some lines over a table, in HTML that inherits the notebook's colours.

  Args:
    headline: text; its lines stay lines.
    columns: headings.
    rows: cells.
    more: rows that are left out, for a last line that says so.
  """
  cell = lambda tag, value: f'<{tag} style="{_STYLE}">{html.escape(str(value))}</{tag}>'
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


def _package(name: str, what: str) -> Any:
  try:
    return importlib.import_module(name)
  except ImportError as error:
    package = name.partition(".")[0]
    raise MissingPackageError(f"{what} needs {package}, which is not installed: pip install {package}") from error
