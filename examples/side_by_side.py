"""How the runs of an example are shown: progress while they train, then a table and a picture."""

import math
import pathlib
from typing import Any

import matplotlib
import numpy as np
import rich.box
import rich.console
import rich.progress
import rich.table
from matplotlib import pyplot

from coopjax import Budget

matplotlib.use("agg")  # a picture is written, no window opened

MIB = 2**20


class Display(rich.progress.Progress):
  """One progress bar a run on a terminal, plain lines elsewhere."""

  def __init__(self, runs: list, num_steps: int):
    terminal = rich.console.Console()
    console = terminal if terminal.is_terminal else rich.console.Console(width=120, highlight=False)
    super().__init__(
      rich.progress.TextColumn("{task.description:>9}"),
      rich.progress.BarColumn(),
      rich.progress.MofNCompleteColumn(),
      rich.progress.TimeElapsedColumn(),
      rich.progress.TextColumn("{task.fields[note]}"),
      console=console,
      disable=not console.is_terminal,
    )
    self.tasks_by_run = {run: self.add_task(run.name, total=num_steps, start=False, note="") for run in runs}

  def compiling(self, run) -> None:
    """A run is about to plan and compile."""
    self._say(run, "compiling")

  def compiled(self, run) -> None:
    """A run's step is compiled."""
    self._say(
      run, f"{run.compiled['temp_bytes'] / MIB:.0f} MiB of temporaries, compiled in {run.compiled['compile_s']:.1f} s"
    )

  def stepped(self, run) -> None:
    """A run has trained one step."""
    self.start_task(self.tasks_by_run[run])
    self.advance(self.tasks_by_run[run])
    step = run.steps[-1]
    self._say(run, f"step {len(run.steps)}: {step['step_s']:.2f} s, loss {step['loss']:.6f}")

  def table(self, rows: list[dict[str, Any]]) -> None:
    """The runs side by side."""
    steps = len(rows[0]["losses"])
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD)
    for heading in (
      "budget",
      "allowed\nMiB",
      "compiled\ntemp MiB",
      "resident\nMiB",
      "step\ns",
      "step\ntime",
      f"loss after\n{steps} steps",
      "same\nbits",
    ):
      table.add_column(heading, justify="right")
    for row in rows:
      allowed = "" if row["budget_bytes"] is None else f"{row['budget_bytes'] / MIB:.1f}"
      table.add_row(
        row["name"],
        allowed,
        f"{row['temp_bytes'] / MIB:.1f}",
        f"{row['resident_bytes'] / MIB:.0f}",
        f"{row['step_s']:.2f}",
        f"{row['step_time_ratio']:.2f}x",
        f"{row['losses'][-1]:.9f}",
        "yes" if row["is_bit_identical"] else "no",
      )
    self.console.print(table)

  def _say(self, run, note: str) -> None:
    if self.disable:
      self.console.print(f"{run.name:>9}: {note}")
    else:
      self.update(self.tasks_by_run[run], note=note)


def compare(runs: list, exact: bool) -> list[dict[str, Any]]:
  """One row a run; the first run has no budget and is what the others are measured against.

  Args:
    runs: finished runs.
    exact: whether equal losses are owed to the bit, or within floating-point tolerance.

  Returns:
    JSON-able rows; ``faults`` in a row lists what the run promised and did not hold.
  """
  plain = runs[0]
  rows = []
  for run in runs:
    temp_bytes = run.compiled["temp_bytes"]
    budget_bytes = None if run is plain else Budget.parse(run.budget).resolve(plain.compiled["temp_bytes"])
    is_identical = run.losses == plain.losses
    is_close = all(map(lambda ours, theirs: math.isclose(ours, theirs, rel_tol=1e-4), run.losses, plain.losses))
    faults = []
    if budget_bytes is not None and temp_bytes > budget_bytes:
      faults.append(f"{run.name}: {temp_bytes} bytes of temporaries, over the budget of {budget_bytes}")
    if not (is_identical if exact else is_close):
      faults.append(f"{run.name}: the losses differ from those without a budget: {run.losses} {plain.losses}")
    rows.append(
      {
        "name": run.name,
        "budget_bytes": budget_bytes,
        **run.compiled,
        "resident_bytes": max(step["resident_bytes"] for step in run.steps),
        "step_s": run.step_s,
        "step_time_ratio": run.step_s / plain.step_s,
        "losses": run.losses,
        "is_bit_identical": is_identical,
        "faults": faults,
      }
    )
  return rows


def plot(runs: list, path: pathlib.Path) -> None:
  """Live temporary bytes over the schedule, without a budget and with each, and the budget as a line."""
  plain, *budgeted = runs
  figure, panels = pyplot.subplots(
    1, len(budgeted), figsize=(4.5 * len(budgeted), 4), sharey=True, squeeze=False, layout="constrained"
  )
  for panel, run in zip(panels[0], budgeted):
    for one, color, label in ((plain, "0.75", "no budget"), (run, "tab:blue", f"budget {run.name}")):
      panel.fill_between(
        range(len(one.live_bytes)),
        np.divide(one.live_bytes, MIB),
        step="post",
        color=color,
        alpha=0.9,
        linewidth=0,
        label=f"{label}: {one.compiled['temp_bytes'] / MIB:,.0f} MiB compiled",
      )
    limit = Budget.parse(run.budget).resolve(plain.compiled["temp_bytes"]) / MIB
    panel.axhline(limit, color="tab:red", linestyle="--", linewidth=1, label=f"the budget: {limit:,.0f} MiB")
    panel.set(xlabel="step of the schedule", xlim=(0, len(run.live_bytes)), ylim=(0, None))
    panel.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    panel.spines[["top", "right"]].set_visible(False)
  panels[0][0].set_ylabel("live temporaries, MiB")
  figure.savefig(path, dpi=150)
  pyplot.close(figure)
