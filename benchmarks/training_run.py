"""A training run inside budgets: 1,000 steps of a small GPT at 100, 50 and 25% of its memory, resumed in the middle.

The GPT of examples/gpt.py learns from the sources of Python's standard library (AdamW, parameters and optimizer state
donated). The run at 100% is one process. Each budget's run is two: the first half ends with a checkpoint written by
Orbax, the second is a fresh process that restores it, and plans anew. All see the same batches, so every loss must have
the same bits as without a budget. Of each are kept the compiler's temporary bytes, the resident memory of the process
and the time of every step, over the run. Writes benchmarks/results/training_run.json and a picture beside it.

  python benchmarks/training_run.py                   # some ten minutes on two cores
  python benchmarks/training_run.py --steps 100 --budget 0.5
"""

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))

import gpt
import optax
import orbax.checkpoint
import tables

import coopjax

MIB = 2**20
RESULTS = tables.RESULTS / "training_run.json"
CONFIG = gpt.GPTConfig(num_layers=6, width=64, num_heads=4, context=64, batch_size=16)
PARTS = 10  # of the run: means and medians are of one each
COLUMNS = {
  "budget": "{name}",
  "temporaries MiB": "{temp_mib:.1f}",
  "resident MiB, first part": "{first_resident_mib:.0f}",
  "last part": "{last_resident_mib:.0f}",
  "ms a step, first part": "{first_step_ms:.1f}",
  "last part ": "{last_step_ms:.1f}",
  "last loss": "{last_loss:.9f}",
  "steps with other bits": "{num_other_bits}",
}


@dataclasses.dataclass(frozen=True)
class Stretch:
  """Steps that one process runs, from a checkpoint or from the beginning.

  Attributes:
    share: of the temporaries without a budget; 1 for none.
    first: step.
    last: step, left out.
    restored: a checkpoint to begin with, or "".
    saved: where to write one at the end, or "".
    sizes: of the model, `gpt.GPTConfig`'s fields.
  """

  share: float
  first: int
  last: int
  restored: str
  saved: str
  sizes: dict[str, int]


def train(stretch: Stretch) -> tables.Row:
  """Runs a stretch in this process."""
  config = gpt.GPTConfig(**stretch.sizes)
  loss, params = gpt.make_loss(config)
  if stretch.share < 1:
    loss = coopjax.remat(loss, budget=stretch.share, engine="hlo")
  optimizer = optax.adamw(1e-3)
  trained = {"params": params, "state": optimizer.init(params)}
  with orbax.checkpoint.StandardCheckpointer() as checkpointer:
    if stretch.restored:
      trained = checkpointer.restore(stretch.restored, trained)
    data = itertools.islice(gpt.batches(gpt.read_corpus(), config), stretch.first, stretch.last)
    start = time.perf_counter()
    first_batch = next(data)
    step = gpt.make_train_step(loss, optimizer).lower(trained["params"], trained["state"], first_batch).compile()
    facts = {
      "temp_bytes": step.memory_analysis().temp_size_in_bytes,
      "compile_s": time.perf_counter() - start,
      "losses": [],
      "step_s": [],
      "resident_bytes": [],
    }
    for batch in itertools.chain([first_batch], data):
      start = time.perf_counter()
      trained["params"], trained["state"], value = step(trained["params"], trained["state"], batch)
      facts["losses"].append(float(value))
      facts["step_s"].append(time.perf_counter() - start)
      facts["resident_bytes"].append(resident_bytes())
    if stretch.saved:
      checkpointer.save(stretch.saved, trained)
  return facts


def resident_bytes() -> int:
  """Of this process, now; 0 where the system does not say (it is not Linux)."""
  try:
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
  except OSError:
    return 0


def in_process(stretch: Stretch) -> tables.Row:
  """A stretch in a process of its own, whose memory is that of nothing else."""
  command = [sys.executable, __file__, "--stretch", json.dumps(dataclasses.asdict(stretch))]
  done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
  return json.loads(done.stdout.splitlines()[-1])


def run(share: float, num_steps: int, sizes: dict[str, int]) -> tables.Row:
  """All steps under a budget; with one, resumed in the middle."""
  with tempfile.TemporaryDirectory() as directory:
    checkpoint, middle = f"{directory}/middle", num_steps // 2
    if share == 1:
      stretches = [Stretch(share, 0, num_steps, "", "", sizes)]
    else:
      stretches = [
        Stretch(share, 0, middle, "", checkpoint, sizes),
        Stretch(share, middle, num_steps, checkpoint, "", sizes),
      ]
    done = [in_process(stretch) for stretch in stretches]
  losses, step_s, resident = (
    list(itertools.chain(*(each[key] for each in done))) for key in ("losses", "step_s", "resident_bytes")
  )
  parts = lambda values: [values[len(values) * i // PARTS : len(values) * (i + 1) // PARTS] for i in range(PARTS)]
  return {
    "name": f"{share:.0%}",
    "share": share,
    "num_processes": len(done),
    "temp_bytes": max(each["temp_bytes"] for each in done),
    "compile_s": [each["compile_s"] for each in done],
    "losses": losses,
    "step_ms": [1e3 * statistics.median(part) for part in parts(step_s)],
    "resident_mib": [max(part) / MIB for part in parts(resident)],
  }


def shown(row: tables.Row) -> tables.Row:
  """A run as the table shows it."""
  return {
    **row,
    "temp_mib": row["temp_bytes"] / MIB,
    "first_resident_mib": row["resident_mib"][0],
    "last_resident_mib": row["resident_mib"][-1],
    "first_step_ms": row["step_ms"][0],
    "last_step_ms": row["step_ms"][-1],
    "last_loss": row["losses"][-1],
  }


def draw(rows: list[tables.Row], path: pathlib.Path) -> None:
  """Loss over the steps, resident memory and time of a step over the run."""
  import matplotlib

  matplotlib.use("agg")
  from matplotlib import pyplot

  figure, (loss, resident, speed) = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
  for row, style in zip(rows, itertools.cycle(("-", "--", ":"))):
    at = [len(row["losses"]) * (i + 0.5) / PARTS for i in range(PARTS)]
    loss.plot(row["losses"], style, label=row["name"], linewidth=1)
    resident.plot(at, row["resident_mib"], f"o{style}", markersize=3)
    speed.plot(at, row["step_ms"], f"o{style}", markersize=3)
  for axes, title in ((loss, "loss"), (resident, "resident memory, MiB"), (speed, "median ms a step")):
    axes.set(title=title, xlabel="step", ylim=(0, None))
  loss.legend()
  figure.savefig(path, dpi=100)


def main() -> None:
  summary, details = __doc__.split("\n\n", 1)
  parser = argparse.ArgumentParser(description=summary, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("--steps", type=int, default=1000)
  parser.add_argument("--budget", type=float, nargs="+", default=[0.5, 0.25], help="shares of the temporaries")
  parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
  for field in dataclasses.fields(CONFIG):
    if field.type is int:
      parser.add_argument("--" + field.name.replace("_", "-"), type=int, default=getattr(CONFIG, field.name))
  parser.add_argument("--stretch", help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.stretch:
    print(json.dumps(train(Stretch(**json.loads(arguments.stretch)))))
    return
  sizes = {name: value for name, value in vars(arguments).items() if hasattr(CONFIG, name)}
  rows = []
  for share in (1.0, *arguments.budget):
    rows.append(run(share, arguments.steps, sizes))
    pairs = zip(rows[0]["losses"], rows[-1]["losses"], strict=True)
    rows[-1]["num_other_bits"] = sum(plain != fitted for plain, fitted in pairs)
    rows[-1]["within_budget"] = rows[-1]["temp_bytes"] <= share * rows[0]["temp_bytes"]
  draw(rows, arguments.out.with_suffix(".png"))
  tables.console().print(tables.table([shown(row) for row in rows], COLUMNS))
  for row in rows[1:]:
    if not row["num_other_bits"]:
      del row["losses"]  # those of the first run
  tables.write(arguments.out, steps=arguments.steps, sizes=sizes, rows=rows)
  faults = [row["name"] for row in rows if row["num_other_bits"] or not row["within_budget"]]
  if faults:
    sys.exit(f"not inside the budget with the same bits: {', '.join(faults)}")


if __name__ == "__main__":
  main()
