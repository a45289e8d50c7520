"""The commands that plan: ``plan`` for one budget, ``frontier`` for a range of them, ``fit`` for batches; and
``calibrate``, which measures what they may plan by.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

from coopjax import display
from coopjax.budget import Budget
from coopjax.cli import files
from coopjax.errors import (
  BudgetExceededWarning,
  BudgetInfeasibleError,
  CoopjaxError,
  InvalidBudgetError,
  RematNoEffectWarning,
)

FORMATS = ("jax", "maxtext", "haliax")
EXISTING = ("replace", "keep", "at_least")
PICTURES = (".png", ".svg", ".pdf")
_EXAMPLES = """examples:
  coopjax plan train.py:loss --args make_args --budget 6GiB -o plan.json   # make_args() returns the arguments of loss
  coopjax plan train.py:step --shapes shapes.json --budget 16GiB --total   # a whole step: all that the device holds
  coopjax plan train.py:loss --shapes shapes.json --budget 50% --target tpu:v5e:2x2
  coopjax plan train.py:step --args make_args --budget 16GiB --total --names-only --format maxtext   # or jax, haliax
  coopjax plan train.py:step --args make_args --budget fits --target tpu:v5e:4x4 --mesh fsdp=8,tensor=2
  coopjax frontier train.py:loss --args make_args -o frontier.svg          # memory against recompute
  coopjax frontier train.py:loss --args make_args --budget 75% 50% 25% --json > frontier.json
  coopjax fit train.py:step --args-for-batch args_for --target tpu:v5e:2x2        # the largest batch that fits
  coopjax calibrate -o speeds.json                                         # times the device that is here, and
  coopjax plan train.py:loss --args make_args --budget 6GiB --target speeds.json       # plans by what it does

A shapes file is JSON: a list of arguments, or {"args": [...], "kwargs": {...}}. An array is text as reports print it,
"f32[8,128]"; objects and lists are pytrees of them:
  [{"embed": "f32[512,64]", "blocks": ["bf16[64,64]", "bf16[64,64]"]}, "s32[8,128]"]
"""


def add_parsers(commands: Any) -> None:
  """Adds the commands to a parser's subparsers."""
  raw = argparse.RawDescriptionHelpFormatter
  plan = commands.add_parser(
    "plan", help="plan a function or a step for a budget, and compile the plan", epilog=_EXAMPLES, formatter_class=raw
  )
  plan.add_argument("--budget", type=budget, required=True, help="a size (6GiB), bytes, or a share (50%%, 0.5)")
  plan.add_argument(
    "--total",
    action="store_true",
    help="the budget is of arguments + outputs + temporaries - aliased, not of the temporaries alone",
  )
  plan.add_argument(
    "--offload", action="store_true", help="values may go to the host's memory, where that takes less time than repeats"
  )
  plan.add_argument(
    "--offload-at-most", type=host_bytes, metavar="SIZE", help="the same, and no more than that (40GiB) for each device"
  )
  plan.add_argument(
    "--output", "-o", type=files.output, metavar="FILE", help="save the plan, for RematPlan.load, explain and report"
  )
  plan.add_argument("--top", type=positive, default=20, metavar="N", help="decisions shown (20)")
  plan.add_argument(
    "--format", choices=FORMATS, help="print the plan as a policy over names, for a job without coopjax, not a report"
  )
  plan.add_argument("--best-effort", action="store_true", help="the smallest plan, where none holds the budget")
  plan.set_defaults(command=functools.partial(_printed, _plan))
  frontier = commands.add_parser(
    "frontier", help="memory against recompute, under a range of budgets", epilog=_EXAMPLES, formatter_class=raw
  )
  frontier.add_argument("--budget", type=budget, nargs="+", help="budgets (shares from 100%% down to the least)")
  frontier.add_argument(
    "--output",
    "-o",
    type=functools.partial(files.output, endings=(*PICTURES, ".json")),
    metavar="FILE",
    help="a picture (.png, .svg, .pdf), or .json for report --frontier",
  )
  frontier.set_defaults(command=functools.partial(_printed, _frontier))
  fit = commands.add_parser(
    "fit", help="the largest batch that a device takes, and the fastest", epilog=_EXAMPLES, formatter_class=raw
  )
  fit.add_argument("--budget", type=budget, default=Budget("fits"), help="as of plan (fits)")
  fit.add_argument("--batches", type=positive, nargs="+", metavar="N", help="to try (doubled until none fits)")
  fit.add_argument("--microbatches", type=positive, nargs="+", default=[1], metavar="N", help="numbers of them (1)")
  fit.add_argument("--unit", type=positive, default=1, metavar="N", help="that batches are multiples of (1)")
  fit.add_argument(
    "--output", "-o", type=files.output, metavar="FILE", help="save the plan of the largest batch, as of plan"
  )
  fit.add_argument("function", help="path/to/module.py:function or package.module:function")
  fit.add_argument(
    "--args-for-batch",
    metavar="FUNCTION",
    required=True,
    help="a function, beside the other or module.py:function, from a batch, and a number of microbatches if they are "
    "given, to the arguments as a tuple",
  )
  fit.set_defaults(command=functools.partial(_printed, _fit))
  calibrate = commands.add_parser("calibrate", help="time the device that is here, for planning by what it does")
  calibrate.add_argument(
    "--output", "-o", type=files.output, metavar="FILE", help="save the profile, for --target FILE"
  )
  calibrate.add_argument("--repeats", type=positive, default=5, metavar="N", help="runs; the fastest counts (5)")
  calibrate.add_argument("--json", action="store_true", help="print JSON")
  calibrate.set_defaults(command=_calibrate)
  for command in (plan, frontier):
    command.add_argument("function", help="path/to/module.py:function or package.module:function")
    arguments = command.add_mutually_exclusive_group(required=True)
    arguments.add_argument("--shapes", metavar="FILE", help="JSON with the shapes of the arguments (see below)")
    arguments.add_argument(
      "--args",
      metavar="FUNCTION",
      help="a function, beside the other or module.py:function, "
      "that returns the arguments as a tuple: arrays or jax.ShapeDtypeStruct",
    )
    command.add_argument(
      "--names-only", action="store_true", help="the best plan that a policy over the program's own names can say"
    )
    command.add_argument("--time-limit", type=float, metavar="SECONDS", help="a fuse: ends planning, a budget (none)")
  for command in (plan, frontier, fit):
    command.add_argument(
      "--existing", default="replace", choices=EXISTING, help="what becomes of a step's jax.checkpoints (replace)"
    )
    command.add_argument("--planner", default="auto", help="auto, peak, segments, coop, fastsa, model or exact (auto)")
    command.add_argument("--engine", default="auto", choices=("auto", "hlo", "policy"), help="(auto)")
    command.add_argument(
      "--target", help="hardware, there or not: gpu:h100, tpu:v5e:2x2, ..., or a profile (the default backend)"
    )
    command.add_argument(
      "--mesh",
      type=_mesh_axes,
      metavar="AXIS=N,...",
      help="a mesh of the target's devices, fsdp=16,tensor=4, which is set (jax.set_mesh) where arguments are made",
    )
    command.add_argument("--effort", default="normal", choices=("fast", "normal", "best"), help="of planning (normal)")
    command.add_argument("--json", action="store_true", help="print JSON")


_Command = Callable[[argparse.Namespace], tuple[int, str]]  # the exit status, and the text of the result


def _printed(command: _Command, options: argparse.Namespace) -> int:
  """Prints the result of a command, and nothing beside it: what the user's code prints goes to standard error."""
  with contextlib.redirect_stdout(sys.stderr):
    status, text = _on_mesh(command, options)
  print(text)
  return status


def _on_mesh(command: _Command, options: argparse.Namespace) -> tuple[int, str]:
  """Runs a command, under the mesh that it asks for."""
  if options.mesh is None:
    return command(options)
  import jax

  from coopjax.xla import targets

  device = targets.running() if options.target is None else targets.resolve(options.target)
  names, sizes = zip(*options.mesh)
  with jax.set_mesh(device.mesh(sizes, names, [jax.sharding.AxisType.Auto] * len(names))):
    return command(options)


def _plan(options: argparse.Namespace) -> tuple[int, str]:
  import coopjax

  function, args, kwargs = _asked(options)
  budget = dataclasses.replace(
    options.budget,
    is_total=options.total or options.budget.is_total,
    offload=options.offload_at_most or options.offload,
  )
  try:
    with warnings.catch_warnings():
      for category in (RematNoEffectWarning, BudgetExceededWarning):  # what is printed says so
        warnings.simplefilter("ignore", category)
      planned = {"names_only": options.names_only, **_settings(options)}
      planned |= {"on_infeasible": "best_effort"} if options.best_effort else {}
      plan = coopjax.plan(function, *args, budget=budget, **planned, **kwargs)
  except BudgetInfeasibleError as error:
    fields = {"fits": False, "budget_bytes": error.budget_bytes, "smallest_bytes": error.smallest_bytes}
    notes = [note.replace("on_infeasible='best_effort'", "--best-effort") for note in advice(error)]
    return 1, json.dumps(fields) if options.json else "\n".join([f"OVER BUDGET: {error}", *notes])
  if options.output:
    plan.save(options.output)
  if options.format:
    text = getattr(plan, f"to_{options.format}")()
  else:
    text = plan.to_json() if options.json else plan.explain(options.top, display.terminal_width())
  return 0 if plan.fits else 1, text


def advice(error: Exception) -> list[str]:
  """What an error of ours says to try, which Python prints under its traceback; JAX's notes are about tracebacks."""
  return getattr(error, "__notes__", []) if isinstance(error, CoopjaxError) else []


def _frontier(options: argparse.Namespace) -> tuple[int, str]:
  import coopjax

  function, args, kwargs = _asked(options)
  suffix = options.output.suffix if options.output else ""
  if suffix in PICTURES:
    display.require_pictures(f"frontier -o {options.output}")
  planned = {"names_only": options.names_only, **_settings(options)}
  found = coopjax.frontier(function, *args, budgets=options.budget, **planned, **kwargs)
  text = json.dumps(found.to_dict())
  if suffix == ".json":
    options.output.write_text(text)
  elif suffix:
    import matplotlib

    matplotlib.use("agg")  # no window, no display
    found.plot().figure.savefig(options.output, dpi=150)
  return 0, text if options.json else found.table(display.terminal_width())


def _fit(options: argparse.Namespace) -> tuple[int, str]:
  import coopjax
  from coopjax.cli import user_functions

  found = coopjax.fit(
    user_functions.load_function(options.function),
    user_functions.load_beside(options.function, options.args_for_batch),
    batches=options.batches,
    microbatches=options.microbatches,
    unit=options.unit,
    budget=options.budget,
    **_settings(options),
  )
  if options.output and found.largest and found.largest.plan:
    found.largest.plan.save(options.output)
  text = json.dumps(found.to_dict()) if options.json else found.table(display.terminal_width())
  return 0 if found.largest else 1, text


def _calibrate(options: argparse.Namespace) -> int:
  import coopjax

  profile = coopjax.calibrate(repeats=options.repeats)
  if options.output:
    profile.save(options.output)
  fields = dataclasses.asdict(profile) | {"target": profile.target}
  print(json.dumps(fields) if options.json else "\n".join(f"{name:>22}  {_shown(fields[name])}" for name in fields))
  return 0


def _shown(value: str | float) -> str:
  return value if isinstance(value, str) else f"{value:.3g}"


def _asked(options: argparse.Namespace) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
  """The function with its arguments."""
  from coopjax.cli import user_functions

  return (
    user_functions.load_function(options.function),
    *user_functions.load_arguments(options.function, options.shapes, options.args),
  )


def _settings(options: argparse.Namespace) -> dict[str, Any]:
  settings = {
    "existing": options.existing,
    "planner": options.planner,
    "engine": options.engine,
    "target": options.target,
    "effort": options.effort,
  }
  return settings | ({"time_limit_s": options.time_limit} if "time_limit" in options else {})


def _mesh_axes(text: str) -> list[tuple[str, int]]:
  axes = [part.partition("=") for part in text.split(",")]
  if not all(name.isidentifier() and size.isdigit() and int(size) for name, _, size in axes):
    raise argparse.ArgumentTypeError(f"{text!r} is no mesh: expected axes with their sizes, fsdp=16,tensor=4 for one")
  return [(name, int(size)) for name, _, size in axes]


def positive(text: str) -> int:
  """A count that was typed."""
  if not text.isdigit() or not int(text):
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
  return int(text)


def host_bytes(text: str) -> int:
  """The most that may go to the host, as it was typed."""
  try:
    return int(Budget(share=1.0, offload=text).host_bytes)
  except InvalidBudgetError as error:
    raise argparse.ArgumentTypeError(str(error)) from error


def budget(text: str) -> Budget:
  """A budget that was typed."""
  try:
    if text.isdigit():
      return Budget.parse(int(text))
    return Budget.parse(float(text) if text.replace(".", "", 1).isdigit() else text)
  except (InvalidBudgetError, ValueError) as error:
    raise argparse.ArgumentTypeError(str(error)) from error
