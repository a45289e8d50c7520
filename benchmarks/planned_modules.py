"""Digests of what the HLO pass makes of each program of the corpus: shows that a refactoring changes no planned module.

  write     hlo_corpus x budgets {90, 70, 50, 30 %} x {order, clones, both}: sha256 of each planned module, predicted
            temporaries, recompute cost and planner. No allowance is in the way, so the same code gives the same rows.
  compare   two such files, cell by cell; exit status 1, and the cells that differ, if there are any

  python -m benchmarks.hlo_corpus build/captured
  git stash; python benchmarks/planned_modules.py write build/before.json --modules build/captured; git stash pop
  python benchmarks/planned_modules.py write build/after.json --modules build/captured
  python benchmarks/planned_modules.py compare build/before.json build/after.json

Modules name their source files and lines, so what is captured depends on the checkout and on JAX: both files of a
comparison want the same captured ones. The core is built anew in between if C++ changed. About 3 minutes a file.
"""

import argparse
import hashlib
import os
import pathlib
import sys
from collections.abc import Iterator

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hlo_corpus
import tables

from coopjax import _core
from coopjax.hlo_engine.recompute_order import Changes, recompute_order
from coopjax.xla.module import parse_module, predict_memory

BUDGETS = (0.9, 0.7, 0.5, 0.3)
KEY = ("program", "budget", "changes")
PLANNED = ("sha256", "temp_bytes", "recompute_cost_s", "planner")
COLUMNS = {
  "program": "{program}",
  "budget": "{budget:.0%}",
  "changes": "{changes}",
  "what": "{what}",
  "before": "{before}",
  "after": "{after}",
}


def digest(module: bytes | None) -> str:
  """Of a serialized module; "" for one that is left as it came."""
  return "" if module is None else hashlib.sha256(module).hexdigest()


def rows_of(name: str, module: bytes) -> Iterator[tables.Row]:
  """The cells of one program."""
  parsed = parse_module(module)
  before_bytes = predict_memory(parsed).temp_bytes
  for share in BUDGETS:
    for changes in Changes:
      result = recompute_order(parsed, int(share * before_bytes), changes=changes, max_steps=_core.UNLIMITED_STEPS)
      yield {
        "program": name,
        "budget": share,
        "changes": changes.name.lower(),
        "module_sha256": digest(module),
        "sha256": digest(result.module_bytes),
        "temp_bytes": result.after.temp_bytes,
        "recompute_cost_s": result.recompute_cost_s,
        "planner": result.planner,
      }


def captured(directory: pathlib.Path | None, names: list[str]) -> Iterator[tuple[str, bytes]]:
  """The scheduled modules of programs, from a directory where there is one."""
  for name in names:
    yield name, hlo_corpus.capture(name) if directory is None else (directory / f"{name}.pb").read_bytes()


def write(out: pathlib.Path, directory: pathlib.Path | None, names: list[str]) -> None:
  """Plans the programs and writes a row per cell."""
  hlo_corpus.use_virtual_devices()
  rows = []
  with tables.progress() as progress:
    bar = progress.add_task("planned", total=len(names))
    for name, module in captured(directory, names):
      progress.update(bar, description=name)
      rows.extend(rows_of(name, module))
      progress.advance(bar)
  tables.write(out, rows=rows)
  tables.console().print(f"{len(rows)} planned modules of {len(names)} programs, written to {out}")


def differences(before: list[tables.Row], after: list[tables.Row]) -> Iterator[tables.Row]:
  """What differs, a row per cell: that it is missing, that another module came in, or what was planned."""
  cells = [{tuple(row[name] for name in KEY): row for row in rows} for rows in (before, after)]
  for key in dict.fromkeys([*cells[0], *cells[1]]):
    old, new = (rows.get(key) for rows in cells)
    cell = dict(zip(KEY, key, strict=True))
    if old is None or new is None:
      yield {
        **cell,
        "what": "cell",
        "before": "missing" if old is None else "there",
        "after": "missing" if new is None else "there",
      }
    elif old["module_sha256"] != new["module_sha256"]:
      yield {
        **cell,
        "what": "module that came in",
        "before": old["module_sha256"][:12],
        "after": new["module_sha256"][:12],
      }
    else:
      for what in PLANNED:
        if old[what] != new[what]:
          show = lambda row, what=what: row[what][:12] if what == "sha256" else row[what]
          yield {**cell, "what": what, "before": show(old), "after": show(new)}


def compare(before: pathlib.Path, after: pathlib.Path) -> int:
  """Shows what differs between two files; returns the exit status."""
  rows = [tables.read(path) for path in (before, after)]
  for path, read in zip((before, after), rows, strict=True):
    if not read:
      raise SystemExit(f"{path} has no rows: nothing was written there")
  found = list(differences(*rows))
  console = tables.console()
  if found:
    console.print(tables.table(found, COLUMNS, f"{before} against {after}"))
  num_cells = len({tuple(row[name] for name in KEY) for row in found})
  console.print(
    f"{num_cells} of {len(rows[1])} planned modules differ" if found else f"{len(rows[1])} planned modules are the same"
  )
  return 1 if found else 0


def main() -> None:
  text, details = __doc__.split("\n\n", 1)
  parser = argparse.ArgumentParser(description=text, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  commands = parser.add_subparsers(dest="command", required=True)
  writing = commands.add_parser("write", help="plan, and write the digests")
  writing.add_argument("out", type=pathlib.Path)
  writing.add_argument("--modules", type=pathlib.Path, help="directory of captured modules; captured anew by default")
  writing.add_argument("--names", nargs="+", choices=hlo_corpus.PROGRAMS, metavar="name", help="all by default")
  comparing = commands.add_parser("compare", help="two files of digests")
  comparing.add_argument("before", type=pathlib.Path)
  comparing.add_argument("after", type=pathlib.Path)
  arguments = parser.parse_args()
  if arguments.command == "compare":
    sys.exit(compare(arguments.before, arguments.after))
  write(arguments.out, arguments.modules, arguments.names or list(hlo_corpus.PROGRAMS))


if __name__ == "__main__":
  main()
