"""The command line: ``inspect``, ``diff`` and ``report`` look into dumps, ``explain`` into plans, ``check`` is a gate.

``plan``, ``frontier``, ``fit`` and ``calibrate`` stand in `coopjax.cli.planning_commands`, ``run`` in
`coopjax.cli.run_command`.

Exit status: 0 fine, 1 over budget (``check``, ``plan``, ``fit``), 2 bad input, 130 interrupted. A reader that stops
early (``| head``) is none of these. docs/command_line.md says what each command prints with ``--json``.
"""

import argparse
import contextlib
import json
import os
import pathlib
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from coopjax import __version__, display
from coopjax.budget import Budget
from coopjax.cli import files, planning_commands, run_command
from coopjax.cli.interrupts import Interrupts
from coopjax.errors import CoopjaxError, InvalidBudgetError, InvalidPlanError, MissingPackageError, printable
from coopjax.memory_profile import GROUP_KEYS, MemoryProfile
from coopjax.planning.remat_plan import RematPlan
from coopjax.report import tables

SHELLS = ("bash", "zsh", "fish")
_NUM_TOTALS = 6  # rows of a diff that are always shown
_EXAMPLES = """examples:
  XLA_FLAGS="--xla_dump_to=dump --xla_dump_hlo_as_proto" python train.py    # write a dump of every program
  coopjax inspect dump                                   # the largest one: totals, buffers at the peak
  coopjax inspect dump --module jit_step --group-by line # which lines hold the bytes
  coopjax diff before/ after/                            # what a change did to memory, line by line
  coopjax report before/ after/ -o report.html           # the same as pictures, in one file
  coopjax explain plan.json                              # each decision of a saved plan, with its bytes and cost
  coopjax check dump --module jit_step --budget 24GiB    # exit status 1 over the budget
  coopjax plan train.py:loss --args make_args --budget 6GiB -o plan.json
  coopjax frontier train.py:loss --args make_args -o frontier.svg
  coopjax run --budget 6GiB train.py --steps 100         # python train.py --steps 100, its step planned
  eval "$(coopjax completion bash)"                      # the tab key completes commands and options; zsh, fish too
"""


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs a command; the exit status is its result."""
  parser = _parser()
  _complete(parser)
  options = parser.parse_args(arguments)
  with Interrupts() as interrupts, _warnings_told():
    return _run(options, interrupts)


@contextlib.contextmanager
def _warnings_told() -> Iterator[None]:
  """Warnings that no line of the user's has part in name none: the command's own script, or runpy's, is not theirs."""
  script, format_warning = sys.argv[0], warnings.formatwarning

  def told(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    if filename != script and not filename.startswith("<"):
      return format_warning(message, category, filename, lineno, line)
    return f"coopjax: {category.__name__}: {message}\n"

  warnings.formatwarning = told
  try:
    yield
  finally:
    warnings.formatwarning = format_warning


def _run(options: argparse.Namespace, interrupts: Interrupts) -> int:
  try:
    status = options.command(options)
    sys.stdout.flush()
  except BrokenPipeError:  # nobody reads on
    _drop_output()
    return 0
  except (KeyboardInterrupt, Exception) as error:
    if interrupts.came or isinstance(error, KeyboardInterrupt):
      print("coopjax: interrupted", file=sys.stderr)
      return 130
    if options.traceback:
      raise
    print(printable(f"coopjax: {_told(error)}", keeps="\n"), file=sys.stderr)
    try:
      sys.stdout.flush()
    except OSError:
      _drop_output()
    return 2
  return status


def _drop_output() -> None:
  """What is left in the buffer goes nowhere: else the interpreter's own flush fails at its end, and is the status."""
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _told(error: Exception) -> str:
  """An error in a line or a few: ours say all by themselves, others what they are and which of the user's lines."""
  if isinstance(error, (CoopjaxError, OSError, ValueError)) and not _users_line(error):
    if isinstance(error, OSError) and error.strerror:
      return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return "\n".join([str(error), *planning_commands.advice(error)])
  return f"{_users_line(error)}{type(error).__name__}: {error} (--traceback shows where)"


def _users_line(error: Exception) -> str:
  """The innermost line outside of coopjax and of installed packages that an error passed, or ""."""
  coopjax, frames = str(pathlib.Path(__file__).parents[1]), traceback.extract_tb(error.__traceback__)
  theirs = coopjax, sysconfig.get_path("stdlib"), "<"
  is_users = lambda file: not file.startswith(theirs) and "-packages" not in file
  return next((f"{frame.filename}:{frame.lineno}: " for frame in reversed(frames) if is_users(frame.filename)), "")


def _parser() -> argparse.ArgumentParser:
  raw = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser(
    prog="coopjax",
    description="See, check and plan the memory of compiled JAX programs.",
    epilog=_EXAMPLES,
    formatter_class=raw,
  )
  parser.add_argument("--version", action="version", version=f"coopjax {__version__}")
  parser.add_argument("--traceback", action="store_true", help="of an error, all of it")
  commands = parser.add_subparsers(required=True, metavar="COMMAND")
  look = commands.add_parser(
    "inspect", help="totals, and the buffers at the peak with their source lines", epilog=_EXAMPLES, formatter_class=raw
  )
  look.add_argument("--top", type=planning_commands.positive, default=20, metavar="N", help="rows shown (20)")
  look.add_argument("--sort", choices=tables.SORTS, default="size", help="order of the buffers (size)")
  look.add_argument("--group-by", choices=GROUP_KEYS, help="sum the buffers up")
  look.add_argument("--arguments", action="store_true", help="the program's arguments, not what is live at the peak")
  look.set_defaults(command=_inspect)
  check = commands.add_parser(
    "check", help="exit with 1 if a program takes more than a budget", epilog=_EXAMPLES, formatter_class=raw
  )
  check.add_argument("--budget", type=_size, required=True, help="bytes or a size, 24GiB for one")
  check.add_argument(
    "--temp", action="store_true", help="of the temporaries alone; else of arguments + outputs + temporaries - aliased"
  )
  check.set_defaults(command=_check)
  diff = commands.add_parser("diff", help="two programs beside each other", epilog=_EXAMPLES, formatter_class=raw)
  diff.add_argument("--top", type=planning_commands.positive, default=20, metavar="N", help="changes shown (20)")
  diff.add_argument("--group-by", choices=GROUP_KEYS, default="line", help="what is compared at the peaks (line)")
  diff.set_defaults(command=_diff)
  report = commands.add_parser("report", help="one HTML file that works offline", epilog=_EXAMPLES, formatter_class=raw)
  report.add_argument(
    "--output", "-o", type=files.output, default="report.html", metavar="FILE", help="the file written (report.html)"
  )
  report.add_argument("--budget", type=_size, help="of the temporaries, drawn as a line")
  report.add_argument("--frontier", metavar="FILE", help="a file that coopjax frontier -o FILE.json wrote: drawn, too")
  report.add_argument("--plan", metavar="PLAN", help="a file that RematPlan.save wrote: its decisions are listed")
  report.add_argument("--json", action="store_true", help="print JSON")
  report.set_defaults(command=_report)
  explain = commands.add_parser(
    "explain", help="a saved plan: each decision, with its bytes and cost", epilog=_EXAMPLES, formatter_class=raw
  )
  explain.add_argument("path", help="a file that RematPlan.save wrote")
  explain.add_argument("--top", type=planning_commands.positive, default=20, metavar="N", help="decisions shown (20)")
  explain.add_argument("--json", action="store_true", help="print JSON")
  explain.set_defaults(command=_explain)
  planning_commands.add_parsers(commands)
  run_command.add_parser(commands)
  completion = commands.add_parser(
    "completion", help="print what makes a shell complete commands and options", epilog=_EXAMPLES, formatter_class=raw
  )
  completion.add_argument("shell", choices=SHELLS)
  completion.set_defaults(command=_completion)
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


def _complete(parser: argparse.ArgumentParser) -> None:
  """Answers a shell that asks for completions, and exits; does nothing otherwise."""
  if "_ARGCOMPLETE" in os.environ:
    try:
      import argcomplete
    except ImportError:  # the shell remembers what is no longer installed: a traceback would stand in the line typed
      sys.exit(1)
    argcomplete.autocomplete(parser)


def _completion(options: argparse.Namespace) -> int:
  try:
    from argcomplete.shell_integration import shellcode
  except ImportError as error:
    raise MissingPackageError("completion needs argcomplete: pip install 'coopjax[cli]'") from error
  print(shellcode(["coopjax"], shell=options.shell))
  return 0


def _inspect(options: argparse.Namespace) -> int:
  profile = _profile(options.path, options.module)
  if options.json:
    return _print_json(profile.to_dict())
  others = _other_modules(options, profile)
  print(display.wrapped("\n".join([*tables.headline(profile, options.units), *others, ""]), display.terminal_width()))
  if options.group_by:
    shown = profile.arguments if options.arguments else profile.at_peak()
    columns, rows = tables.GROUP_COLUMNS, tables.group_rows(profile, shown, options.group_by, options.units)
  elif options.arguments:
    columns, rows = tables.ARGUMENT_COLUMNS, tables.argument_rows(profile, options.units)
  else:
    columns, rows = tables.BUFFER_COLUMNS, tables.buffer_rows(profile, options.sort, options.units)
  _print_table(columns, rows[: options.top])
  if len(rows) > options.top:
    print(f"... and {len(rows) - options.top} more (--top)")
  return 0


def _check(options: argparse.Namespace) -> int:
  profile = _profile(options.path, options.module)
  taken = profile.temp_bytes if options.temp else profile.total_bytes
  fits = taken <= options.budget
  if options.json:
    _print_json(
      {
        "name": profile.name,
        "taken_bytes": taken,
        "budget_bytes": options.budget,
        "fits": fits,
        "is_temp": options.temp,
        "is_predicted": profile.is_predicted,
      }
    )
    return 0 if fits else 1
  what = "temporaries" if options.temp else "memory in total"
  size = lambda num_bytes: tables.in_units(num_bytes, options.units)
  verdict = "fits" if fits else f"OVER BUDGET by {size(taken - options.budget)}"
  told = f"{profile.name}: {size(taken)} of {what}, budget {size(options.budget)}: {verdict}"
  print(display.wrapped(told, display.terminal_width()))
  if not fits:
    print("the largest lines at the peak:")
    _print_table(tables.GROUP_COLUMNS, tables.group_rows(profile, profile.at_peak(), "line", options.units)[:3])
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
  from coopjax.report.html import to_html

  before = _profile(options.path, options.module)
  after = _profile(options.after, options.module) if options.after else None
  plan = RematPlan.load(options.plan) if options.plan else None
  frontier = _frontier(pathlib.Path(options.frontier)) if options.frontier else None
  path = options.output
  path.write_text(to_html(before, after, plan=plan, frontier=frontier, budget_bytes=options.budget), encoding="utf-8")
  num_bytes = path.stat().st_size
  if options.json:
    return _print_json({"path": str(path), "num_bytes": num_bytes})
  print(f"{path}: {tables.in_units(num_bytes)}")
  return 0


def _explain(options: argparse.Namespace) -> int:
  plan = RematPlan.load(options.path)
  print(plan.to_json() if options.json else plan.explain(options.top, display.terminal_width()))
  return 0


def _profile(path: str, module: str | None) -> MemoryProfile:
  from coopjax.report.profile import inspect  # loads JAX: not for --help and completions

  return inspect(path, module)


def _profile_or_plan(path: str, module: str | None) -> MemoryProfile:
  return RematPlan.load(path).measured if path.endswith(".json") else _profile(path, module)


def _frontier(path: pathlib.Path) -> Any:
  from coopjax.planning.budget_frontier import Frontier

  try:
    return Frontier.from_dict(json.loads(path.read_text()))
  except ValueError as error:
    raise InvalidPlanError(f"{path}: {error}") from error


def _other_modules(options: argparse.Namespace, profile: MemoryProfile) -> list[str]:
  """A line that names the other programs in a dump directory."""
  if not pathlib.Path(options.path).is_dir():
    return []
  from coopjax.report import dump

  others = [file.name for file in dump.list_modules(options.path) if file.name != profile.name]
  if not others:
    return []
  return [
    f"  of {len(others) + 1} modules; --module shows another: {', '.join(others[:5])}"
    + (" ..." if len(others) > 5 else "")
  ]


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
  print(display.text_table(columns, rows, display.terminal_width(), tables.SPARE_COLUMNS))


def _print_json(fields: dict[str, Any]) -> int:
  print(json.dumps(fields))
  return 0


def _size(text: str) -> int:
  try:
    budget = Budget.parse(int(text) if text.isdigit() else text)
  except InvalidBudgetError as error:
    raise argparse.ArgumentTypeError(str(error)) from error
  if budget.fits:
    raise argparse.ArgumentTypeError(
      f"{text} is what a device leaves a program, and a dump names none: bytes or a size"
    )
  if budget.limit_bytes is None:
    raise argparse.ArgumentTypeError(f"{text} is a share, and there is nothing here to take it of: bytes or a size")
  return budget.limit_bytes
