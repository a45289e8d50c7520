"""The command ``run``: a trainer as it is, its steps planned when it first uses them, or by a plan that is made."""

import argparse
import dataclasses
import importlib.util
import os
import pathlib
import runpy
import sys
import traceback
from typing import Any

from coopjax.cli import files, planning_commands
from coopjax.errors import CoopjaxError, UserFunctionError
from coopjax.planning.remat_plan import RematPlan

_EXAMPLES = """examples:
  coopjax run --budget 6GiB train.py --steps 100                       # in place of python train.py --steps 100
  coopjax run --budget fits -o plan.json -m package.trainer run.yml    # in place of python -m package.trainer run.yml
  coopjax run --plan plan.json -m package.trainer run.yml              # by a plan that is made
  coopjax run --budget 16GiB --total --names-only --format maxtext -m maxtext.trainers.pre_train.train_compile run.yml
"""


def add_parser(commands: Any) -> None:
  """Adds the command to a parser's subparsers."""
  run = commands.add_parser(
    "run",
    help="run a trainer as it is, its steps planned for a budget when it first uses them",
    epilog=_EXAMPLES,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  asked = run.add_mutually_exclusive_group(required=True)
  asked.add_argument("--budget", type=planning_commands.budget, help="of each step, as of plan")
  asked.add_argument("--plan", metavar="PLAN", help="a file that RematPlan.save wrote, in place of planning")
  run.add_argument("--total", action="store_true", help="as of plan")
  run.add_argument(
    "--output", "-o", type=_output, metavar="FILE", help="save the plan of the step that was planned last"
  )
  run.add_argument("--format", choices=planning_commands.FORMATS, help="print plans as of plan")
  run.add_argument("--names-only", action="store_true", help="as of plan")
  run.add_argument("--existing", default="replace", choices=planning_commands.EXISTING, help="as of plan (replace)")
  run.add_argument("--engine", default="auto", choices=("auto", "hlo", "policy"), help="(auto)")
  run.add_argument("--effort", default="normal", choices=("fast", "normal", "best"), help="of planning (normal)")
  run.add_argument("-m", dest="is_module", action="store_true", help="what follows is a module, not a file")
  run.add_argument("program", help="path/to/trainer.py, or with -m package.trainer")
  run.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own")
  run.set_defaults(command=_run)


def _output(text: str) -> pathlib.Path:
  """Where the plan goes, wherever the program changes its directory to."""
  return files.output(text).absolute()


def _run(options: argparse.Namespace) -> int:
  import coopjax

  if options.plan:
    held = coopjax.enable(plan=RematPlan.load(options.plan))
  else:
    held = coopjax.plan_steps(
      dataclasses.replace(options.budget, is_total=options.total or options.budget.is_total),
      engine=options.engine,
      effort=options.effort,
      existing=options.existing,
      names_only=options.names_only,
      on_plan=lambda plan: _told(plan, options),
    )
  with held:
    _find(options)
    try:
      _run_program(options)
    except CoopjaxError:
      raise
    except Exception as error:
      traceback.print_exception(_of_program(error))
      return 1
  return 0


def _find(options: argparse.Namespace) -> None:
  """Raises UserFunctionError where there is no such program."""
  if not options.is_module:
    if not os.path.exists(options.program):
      raise UserFunctionError(f"{options.program} does not exist")
    if os.path.isdir(options.program) and not os.path.exists(os.path.join(options.program, "__main__.py")):
      raise UserFunctionError(f"{options.program} is a directory without a __main__.py")
    return
  sys.path.insert(0, os.getcwd())
  package = options.program.partition(".")[0]
  try:
    is_there = importlib.util.find_spec(package) is not None
  except ValueError:  # no name of a module
    is_there = False
  if not is_there:
    raise UserFunctionError(f"there is no module {package} to run {options.program} of")


def _of_program(error: Exception) -> Exception:
  """An error as Python would show it, had it run the program: its frames from the program's first on."""
  ours, frames = (__file__, "<frozen runpy>"), error.__traceback__
  while frames is not None and frames.tb_frame.f_code.co_filename in ours:
    frames = frames.tb_next
  return error.with_traceback(frames)


def _run_program(options: argparse.Namespace) -> None:
  """As Python runs it: as the main module, with its own arguments, and its folder, or this one, to import from."""
  sys.argv = [options.program, *options.arguments]
  if options.is_module:
    runpy.run_module(options.program, run_name="__main__", alter_sys=True)
  else:
    sys.path.insert(0, str(pathlib.Path(options.program).resolve().parent))
    runpy.run_path(options.program, run_name="__main__")


def _told(plan: RematPlan, options: argparse.Namespace) -> None:
  """A plan, shown before the program goes on, and saved."""
  if options.output:
    plan.save(options.output)
  print(f"coopjax: {plan.headline()}", file=sys.stderr)
  if options.format:
    print(getattr(plan, f"to_{options.format}")())
