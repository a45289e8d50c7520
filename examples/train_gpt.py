"""Trains the same GPT with no budget and inside 50%, 25% and 12% of its memory, side by side.

Every run is a process of its own, so that its resident memory is its own. All compile one after the other;
then they take turns, one training step each, so that a busy machine slows all of them alike. Shown are the
compiler's own temporary bytes, the resident memory while training, the time of a step, and the loss, which has
the same bits in all runs. Writes out/train_gpt.png (live bytes over the schedule) and out/train_gpt.json.

  python examples/train_gpt.py                          # no budget, 0.5, 0.25, 0.12
  python examples/train_gpt.py --budget 300MiB --steps 20
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

import gpt
import optax
import side_by_side

import coopjax
from coopjax.xla.compile import measure

OUT = pathlib.Path("out")


def parse_arguments() -> argparse.Namespace:
  summary, details = __doc__.split("\n\n", 1)
  parser = argparse.ArgumentParser(description=summary, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument(
    "--budget",
    nargs="+",
    default=["0.5", "0.25", "0.12"],
    metavar="B",
    help="shares of the unbudgeted run's temporaries, or sizes (300MiB)",
  )
  parser.add_argument("--steps", type=int, default=8, help="training steps of each run; the first is not timed")
  parser.add_argument("--engine", default="hlo", choices=["hlo", "policy", "auto"])
  for field in dataclasses.fields(gpt.GPTConfig):
    if field.type is int:
      parser.add_argument("--" + field.name.replace("_", "-"), type=int, default=field.default, metavar="N")
  parser.add_argument("--worker", help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.steps < 2:
    parser.error("--steps must be at least 2: the first step is not timed")
  try:
    for budget in arguments.budget:
      coopjax.Budget.parse(parse_budget(budget))
  except coopjax.InvalidBudgetError as error:
    parser.error(str(error))
  return arguments


# --- one run, in its own process ------------------------------------------------------------------------------


def train(arguments: argparse.Namespace) -> None:
  """Compiles, reports, then trains one step for every line on standard input, reporting each."""
  config = gpt.GPTConfig(
    **{field.name: getattr(arguments, field.name, field.default) for field in dataclasses.fields(gpt.GPTConfig)}
  )
  budget = parse_budget(arguments.worker)
  loss, params = gpt.make_loss(config)
  if budget is not None:
    loss = coopjax.remat(loss, budget=budget, engine=arguments.engine)
  optimizer = optax.adamw(3e-4)
  state = optimizer.init(params)
  data = gpt.batches(gpt.read_corpus(), config)
  batch = next(data)

  start = time.perf_counter()
  step = gpt.make_train_step(loss, optimizer).lower(params, state, batch).compile()
  memory = step.memory_analysis()
  report(
    temp_bytes=memory.temp_size_in_bytes,
    argument_bytes=memory.argument_size_in_bytes,
    compile_s=time.perf_counter() - start,
    live_bytes=measure(step).live_bytes,
  )

  reset_peak_resident()
  for _ in sys.stdin:
    start = time.perf_counter()
    params, state, value = step(params, state, batch)
    report(loss=float(value), step_s=time.perf_counter() - start, resident_bytes=peak_resident_bytes())
    batch = next(data)


def parse_budget(text: str) -> float | str | None:
  """A share ("0.5") as a float, a size ("300MiB") as it is, "none" as None."""
  if text == "none":
    return None
  try:
    return float(text)
  except ValueError:
    return text


def report(**facts) -> None:
  print(json.dumps(facts), flush=True)


def reset_peak_resident() -> None:
  """Forgets the peak so far (compiling takes memory too), where the system can: Linux."""
  with contextlib.suppress(OSError):
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def peak_resident_bytes() -> int:
  """The most memory this process had resident, since the last reset where there is one."""
  with contextlib.suppress(OSError):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
      if line.startswith("VmHWM:"):
        return int(line.split()[1]) * 1024
  unit = 1 if sys.platform == "darwin" else 1024
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


# --- all runs, side by side -----------------------------------------------------------------------------------


class Run:
  """One budget's process and what it reported."""

  def __init__(self, budget: str):
    self.argument = budget
    self.budget = parse_budget(budget)
    self.name = f"{self.budget:.0%}" if isinstance(self.budget, float) else self.budget or "no budget"
    self.compiled: dict = {}
    self.live_bytes: list[int] = []
    self.steps: list[dict] = []

  def start(self, stack: contextlib.ExitStack) -> None:
    """Starts the process and waits until its step is compiled."""
    command = [sys.executable, *sys.argv, "--worker", self.argument]
    environment = {"JAX_PLATFORMS": "cpu", **os.environ}
    self.process = subprocess.Popen(
      command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )  # Ctrl-C is for the parent, which ends them all
    stack.callback(self.process.wait)
    stack.callback(self.process.terminate)
    self.compiled = self._read()
    self.live_bytes = self.compiled.pop("live_bytes")

  def step(self) -> None:
    """Trains one step."""
    self.process.stdin.write("step\n")
    self.process.stdin.flush()
    self.steps.append(self._read())

  def _read(self) -> dict:
    line = self.process.stdout.readline()
    if not line:
      raise SystemExit(f"The run {self.name!r} ended early (exit code {self.process.wait()}).")
    return json.loads(line)

  @property
  def step_s(self) -> float:
    """Median step, the first left out."""
    return statistics.median(step["step_s"] for step in self.steps[1:])

  @property
  def losses(self) -> list[float]:
    return [step["loss"] for step in self.steps]


def main() -> None:
  arguments = parse_arguments()
  if arguments.worker:
    try:
      train(arguments)
    except coopjax.BudgetInfeasibleError as error:
      sys.exit(str(error))
    return
  runs = [Run(budget) for budget in ("none", *arguments.budget)]
  with contextlib.ExitStack() as stack:
    show = stack.enter_context(side_by_side.Display(runs, arguments.steps))
    for run in runs:
      show.compiling(run)
      run.start(stack)
      show.compiled(run)
    for _ in range(arguments.steps):
      for run in runs:
        run.step()
        show.stepped(run)
  OUT.mkdir(exist_ok=True)
  side_by_side.plot(runs, OUT / "train_gpt.png")
  rows = side_by_side.compare(runs, exact=arguments.engine == "hlo")
  (OUT / "train_gpt.json").write_text(json.dumps({"arguments": vars(arguments), "runs": rows}, indent=1))
  show.table(rows)
  faults = [fault for row in rows for fault in row["faults"]]
  sys.exit("\n".join(faults) if faults else 0)


if __name__ == "__main__":
  try:
    main()
  except KeyboardInterrupt:
    sys.exit("interrupted")
