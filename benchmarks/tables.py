"""How benchmarks show and keep their rows: a table for people, JSON for machines, and what they ran on."""

import json
import os
import pathlib
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import rich.box
import rich.console
import rich.progress
import rich.table

import coopjax

RESULTS = pathlib.Path(__file__).parent / "results"
Row = dict[str, Any]


def console() -> rich.console.Console:
  """Standard output, wide enough for a table when it is no terminal."""
  return rich.console.Console(width=None if sys.stdout.isatty() else 150)


def progress() -> rich.progress.Progress:
  """Bars on a terminal's standard error, gone when they are done; silence elsewhere."""
  return rich.progress.Progress(console=rich.console.Console(stderr=True), transient=True)


def table(rows: Sequence[Row], columns: Mapping[str, str], title: str = "") -> rich.table.Table:
  """A table of rows.

  Args:
    rows: what to show.
    columns: heading, to a format string over a row's fields; what is None stays empty. The first column is the label.
    title: above the table.
  """
  shown = rich.table.Table(title=title or None, title_justify="left", box=rich.box.SIMPLE_HEAD)
  for position, heading in enumerate(columns):
    shown.add_column(heading, justify="right" if position else "left", no_wrap=True)
  for row in rows:
    shown.add_row(*(_cell(text, row) for text in columns.values()))
  return shown


def _cell(text: str, row: Row) -> str:
  try:
    return text.format(**row)
  except (TypeError, KeyError):  # a field that is None, or absent, has no format
    return ""


def machine() -> Row:
  """What the figures were measured on."""
  return {
    "cpus": os.cpu_count(),
    "machine": platform.machine(),
    "python": platform.python_version(),
    "jax": jax.__version__,
    "coopjax": coopjax.__version__,
  }


def read(path: pathlib.Path) -> list[Row]:
  """The rows of a results file; none if there is no file."""
  return json.loads(path.read_text())["rows"] if path.exists() else []


def merged(before: Sequence[Row], measured: Sequence[Row], case: Sequence[str]) -> list[Row]:
  """The rows of ``before``, those of each case that was measured again in place of its own; new cases come last.

  Args:
    before: what a results file has.
    measured: rows of some cases, all of them new.
    case: fields in which the rows of one case agree; what a row lacks is None.
  """
  cases: dict[tuple, list[Row]] = {}
  for rows in (before, measured):
    found: dict[tuple, list[Row]] = {}
    for row in rows:
      found.setdefault(tuple(row.get(field) for field in case), []).append(row)
    cases |= found
  return [row for rows in cases.values() for row in rows]


def write(path: pathlib.Path, **contents: Any) -> None:
  """Writes a results file, the machine included; whoever stops it leaves the old one or the new one."""
  path.parent.mkdir(parents=True, exist_ok=True)
  unfinished = path.with_suffix(".new")
  unfinished.write_text(json.dumps({"machine": machine(), **contents}, indent=1, allow_nan=False) + "\n")
  unfinished.replace(path)
