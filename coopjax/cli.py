"""The command line: ``inspect``, ``diff`` and ``report`` look into dumps, ``explain`` into plans, ``check`` is a gate.

Exit status: 0 fine, 1 over budget (``check``), 2 bad input.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from coopjax import __version__
from coopjax.budget import Budget
from coopjax.errors import CoopjaxError, InvalidBudgetError
from coopjax.memory_profile import GROUP_KEYS, MemoryProfile
from coopjax.remat_plan import RematPlan
from coopjax.report import dump, tables
from coopjax.report.html import to_html
from coopjax.report.profile import inspect

_NUM_TOTALS = 6  # rows of a diff that are always shown
_EXAMPLES = """examples:
  XLA_FLAGS="--xla_dump_to=dump --xla_dump_hlo_as_proto" python train.py    # write a dump of every program
  coopjax inspect dump                                   # the largest one: totals, buffers at the peak
  coopjax inspect dump --module jit_step --group-by line # which lines hold the bytes
  coopjax diff before/ after/                            # what a change did to memory, line by line
  coopjax report before/ after/ -o report.html           # the same as pictures, in one file
  coopjax explain plan.json                              # each decision of a saved plan, with its bytes and cost
  coopjax check dump --module jit_step --budget 24GiB    # exit status 1 over the budget
"""


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs a command; the exit status is its result."""
  options = _parser().parse_args(arguments)
  try:
    return options.command(options)
  except (CoopjaxError, OSError) as error:
    print(f"coopjax: {error}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
  raw = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser(prog="coopjax", description="See and check the memory of compiled JAX programs.",
                                   epilog=_EXAMPLES, formatter_class=raw)
  parser.add_argument("--version", action="version", version=f"coopjax {__version__}")
  commands = parser.add_subparsers(required=True, metavar="COMMAND")
  look = commands.add_parser("inspect", help="totals, and the buffers at the peak with their source lines",
                             epilog=_EXAMPLES, formatter_class=raw)
  look.add_argument("--top", type=_count, default=20, metavar="N", help="rows shown (20)")
  look.add_argument("--sort", choices=tables.SORTS, default="size", help="order of the buffers (size)")
  look.add_argument("--group-by", choices=GROUP_KEYS, help="sum the buffers up")
  look.set_defaults(command=_inspect)
  check = commands.add_parser("check", help="exit with 1 if a program takes more than a budget", epilog=_EXAMPLES,
                              formatter_class=raw)
  check.add_argument("--budget", type=_size, required=True, help="bytes or a size, 24GiB for one")
  check.add_argument("--temp", action="store_true",
                     help="of the temporaries alone; else of arguments + outputs + temporaries - aliased")
  check.set_defaults(command=_check)
  diff = commands.add_parser("diff", help="two programs beside each other", epilog=_EXAMPLES, formatter_class=raw)
  diff.add_argument("--top", type=_count, default=20, metavar="N", help="changes shown (20)")
  diff.add_argument("--group-by", choices=GROUP_KEYS, default="line", help="what is compared at the peaks (line)")
  diff.set_defaults(command=_diff)
  report = commands.add_parser("report", help="one HTML file that works offline", epilog=_EXAMPLES, formatter_class=raw)
  report.add_argument("--output", "-o", default="report.html", metavar="FILE", help="the file written (report.html)")
  report.add_argument("--budget", type=_size, help="of the temporaries, drawn as a line")
  report.add_argument("--plan", metavar="PLAN", help="a file that RematPlan.save wrote: its decisions are listed")
  report.set_defaults(command=_report)
  explain = commands.add_parser("explain", help="a saved plan: each decision, with its bytes and cost", epilog=_EXAMPLES,
                                formatter_class=raw)
  explain.add_argument("path", help="a file that RematPlan.save wrote")
  explain.add_argument("--top", type=_count, default=20, metavar="N", help="decisions shown (20)")
  explain.add_argument("--json", action="store_true", help="print JSON")
  explain.set_defaults(command=_explain)
  form = "a dump directory, or a .hlo.pb, HLO text or -buffer-assignment.txt; gzipped too"
  for command in (look, check, report):
    command.add_argument("path", help=form)
  report.add_argument("after", nargs="?", help="a second one, shown by a toggle")
  for name in ("before", "after"):
    diff.add_argument(name, help=f"{form}; or a plan that RematPlan.save wrote, its totals")
  for command in (look, check, diff, report):
    command.add_argument("--module", help="of a directory: the module whose name contains this (the largest)")
  for command in (look, check, diff):
    command.add_argument("--units", choices=tables.UNITS, default="auto", help="of all sizes (auto)")
    command.add_argument("--json", action="store_true", help="print JSON")
  return parser


def _inspect(options: argparse.Namespace) -> int:
  profile = inspect(options.path, options.module)
  if options.json:
    return _print_json(profile.to_dict())
  others = _other_modules(options, profile)
  print("\n".join([*tables.headline(profile, options.units), *others, ""]))
  if options.group_by:
    columns, rows = tables.GROUP_COLUMNS, tables.group_rows(profile, options.group_by, options.units)
  else:
    columns, rows = tables.BUFFER_COLUMNS, tables.buffer_rows(profile, options.sort, options.units)
  _print_table(columns, rows[: options.top])
  if len(rows) > options.top:
    print(f"... and {len(rows) - options.top} more (--top)")
  return 0


def _check(options: argparse.Namespace) -> int:
  profile = inspect(options.path, options.module)
  taken = profile.temp_bytes if options.temp else profile.total_bytes
  fits = taken <= options.budget
  if options.json:
    _print_json({"name": profile.name, "taken_bytes": taken, "budget_bytes": options.budget, "fits": fits,
                 "is_temp": options.temp, "is_predicted": profile.is_predicted})
    return 0 if fits else 1
  what = "temporaries" if options.temp else "memory in total"
  size = lambda num_bytes: tables.in_units(num_bytes, options.units)
  print(f"{profile.name}: {size(taken)} of {what}, budget {size(options.budget)}: "
        + ("fits" if fits else f"OVER BUDGET by {size(taken - options.budget)}"))
  if not fits:
    print("the largest lines at the peak:")
    _print_table(tables.GROUP_COLUMNS, tables.group_rows(profile, "line", options.units)[:3])
  return 0 if fits else 1


def _diff(options: argparse.Namespace) -> int:
  before, after = (_profile_or_plan(path, options.module) for path in (options.before, options.after))
  if options.json:
    return _print_json({"before": before.to_dict(), "after": after.to_dict()})
  rows = tables.diff_rows(before, after, options.group_by, options.units)
  shown = _NUM_TOTALS + options.top
  _print_table(tables.DIFF_COLUMNS, rows[:shown])
  if len(rows) > shown:
    print(f"... and {len(rows) - shown} more (--top)")
  return 0


def _report(options: argparse.Namespace) -> int:
  before = inspect(options.path, options.module)
  after = inspect(options.after, options.module) if options.after else None
  plan = RematPlan.load(options.plan) if options.plan else None
  path = pathlib.Path(options.output)
  path.write_text(to_html(before, after, plan=plan, budget_bytes=options.budget), encoding="utf-8")
  print(f"{path}: {tables.in_units(path.stat().st_size)}")
  return 0


def _explain(options: argparse.Namespace) -> int:
  plan = RematPlan.load(options.path)
  print(plan.to_json() if options.json else plan.explain(options.top))
  return 0


def _profile_or_plan(path: str, module: str | None) -> MemoryProfile:
  return inspect(RematPlan.load(path)) if path.endswith(".json") else inspect(path, module)


def _other_modules(options: argparse.Namespace, profile: MemoryProfile) -> list[str]:
  """A line that names the other programs in a dump directory."""
  if not pathlib.Path(options.path).is_dir():
    return []
  others = [file.name for file in dump.list_modules(options.path) if file.name != profile.name]
  if not others:
    return []
  return [f"  of {len(others) + 1} modules; --module shows another: {', '.join(others[:5])}"
          + (" ..." if len(others) > 5 else "")]


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
  """With rich on a terminal that has it, else aligned text (for pipes, too)."""
  try:
    from rich import box, console, table
  except ImportError:
    console = None
  if console is None or not sys.stdout.isatty():
    print(tables.to_text(columns, rows))
    return
  shown = table.Table(box=box.SIMPLE_HEAD)
  for column in columns:
    shown.add_column(column, overflow="fold", justify="right" if column in ("bytes", "share", "rank") else "left")
  for row in rows:
    shown.add_row(*row)
  console.Console().print(shown)


def _print_json(fields: dict[str, Any]) -> int:
  print(json.dumps(fields))
  return 0


def _count(text: str) -> int:
  if not text.isdigit() or not int(text):
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
  return int(text)


def _size(text: str) -> int:
  try:
    budget = Budget.parse(int(text) if text.isdigit() else text)
  except InvalidBudgetError as error:
    raise argparse.ArgumentTypeError(str(error)) from error
  return budget.limit_bytes


if __name__ == "__main__":
  sys.exit(main())
