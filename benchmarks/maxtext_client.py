"""MaxText itself as a client: its trainer and its ahead-of-time compile, unpatched, by hand and inside a budget.

Each run is a process of `maxtext_job`. "by hand" has one of MaxText's own remat_policies and no coopjax; "run" is the
same command line under `coopjax run`, at the bytes of that policy; "names", where that plan does more than names can
say, is one with --names-only, and "yaml" what the last of them writes, `remat_policy: custom`, in a process without
coopjax. On the CPU the real trainer trains on synthetic data; the losses are its own. For v5e its train_compile
compiles for a pod that is not there.

Bytes are a device's temporaries, by the compiler, of the step that MaxText itself compiled. "repeats" are FLOPs of the
compiled module beyond those of the step without checkpoints, loops with their length.

It needs MaxText and coopjax in one environment: `make maxtext` makes one (build/maxtext). Rows that are in the results
file are kept (--again measures them again), so a run that was stopped goes on where it was.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import tables

from coopjax.planning.remat_plan import RematPlan

JOB = pathlib.Path(__file__).with_name("maxtext_job.py")
RESULTS = tables.RESULTS / "maxtext.json"
MIB, GIGA = 2**20, 1e9
COMMON = {
  "run_name": "client",
  "dataset_type": "synthetic",
  "enable_checkpointing": False,
  "enable_goodput_recording": False,
  "gcs_metrics": False,
  "log_config": False,
  "base_num_decoder_layers": 8,
  "attention": "dot_product",
  "steps": 3,
  "skip_jax_distributed_system": True,
}
JOBS = {
  "cpu": COMMON
  | {
    "hardware": "cpu",
    "base_emb_dim": 256,
    "base_mlp_dim": 1024,
    "base_num_query_heads": 8,
    "base_num_kv_heads": 8,
    "head_dim": 32,
    "vocab_size": 1024,
    "max_target_length": 256,
    "per_device_batch_size": 4,
    "dtype": "float32",
  },
  "v5e-16": COMMON
  | {
    "compile_topology": "v5e-16",
    "compile_topology_num_slices": 1,
    "base_emb_dim": 1024,
    "base_mlp_dim": 4096,
    "base_num_query_heads": 16,
    "base_num_kv_heads": 16,
    "head_dim": 64,
    "vocab_size": 8192,
    "max_target_length": 1024,
    "per_device_batch_size": 4,
  },
}
RUNGS = ("full", "minimal")
KEY = ("job", "rung", "how")
# Of a machine that has no TPU: libtpu looks for one otherwise, and for other processes that use it.
ENVIRONMENT = {
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
  "DECOUPLE_GCLOUD": "TRUE",
  "TPU_ACCELERATOR_TYPE": "v5litepod-4",
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_WORKER_HOSTNAMES": "localhost",
}
COLUMNS = {
  "job": "{job}",
  "at the bytes of": "{rung}",
  "how": "{how}",
  "budget\nMiB": "{budget_mib:,.1f}",
  "temporaries\nMiB": "{temp_mib:,.1f}",
  "repeats\nGF": "{repeated_gflop:,.2f}",
  "process has\ncoopjax": "{had_coopjax}",
  "last loss": "{last_loss:.7f}",
  "whole job\ns": "{job_s:.0f}",
}


class Client:
  """One job of MaxText's, each time a process of its own."""

  def __init__(self, name: str, folder: pathlib.Path):
    self._name, self._folder = name, folder

  def by_hand(self, **settings: Any) -> tables.Row:
    """Without coopjax."""
    return self._run((sys.executable, JOB), settings)

  def planned(self, budget: int, *options: str) -> tables.Row:
    """Under `coopjax run`, with what its plan says; the step's own checkpoints are those of "full"."""
    plan = self._folder / "plan.json"
    command = sys.executable, "-m", "coopjax.cli", "run", "--budget", str(budget), "-o", plan, *options, JOB
    row, made = self._run(command, {"remat_policy": "full"}), RematPlan.load(plan)
    return row | {
      "planned_bytes": made.measured.temp_bytes,
      "plain_bytes": made.baseline.temp_bytes,
      "plain_flops": made.baseline.flops or None,
      "engine": made.engine,
      "num_beyond_names": sum(len(names.beyond) for names in made.names),  # they tell where MaxText is installed
      "yaml": "\n".join(line for line in made.to_maxtext().splitlines() if not line.startswith("#")),
    }

  def _run(self, command: tuple[Any, ...], settings: dict[str, Any]) -> tables.Row:
    notes, metrics = self._folder / "notes.json", self._folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    config = JOBS[self._name] | {"base_output_directory": self._folder, "metrics_file": metrics} | settings
    is_compiled = "compile_topology" in config
    module = "maxtext.trainers.pre_train." + ("train_compile" if is_compiled else "train")
    arguments = [_base_yaml(), *(f"{key}={value}" for key, value in config.items())]
    finished = subprocess.run(
      [*map(str, command), str(notes), module, *arguments],
      env=os.environ | ENVIRONMENT,
      capture_output=True,
      text=True,
    )
    if finished.returncode:
      sys.exit(f"{module} failed:\n{finished.stdout[-2000:]}\n{finished.stderr[-6000:]}")
    row = json.loads(notes.read_text())
    losses = [json.loads(line)["learning/loss"] for line in metrics.read_text().splitlines()] if not is_compiled else []
    return row | {"temp_mib": row["temp_bytes"] / MIB, "losses": losses, "last_loss": losses[-1] if losses else None}


def _base_yaml() -> str:
  import maxtext  # finds where it is, and nothing more of it

  return str(pathlib.Path(maxtext.__path__[0]) / "configs" / "base.yml")


def _settings(yaml: str) -> dict[str, str]:
  """The lines of a plan as MaxText's command line takes them."""
  pairs = (line.partition(":") for line in yaml.splitlines())
  return {name: value.strip().strip("'") for name, _, value in pairs}


def measure(name: str, rungs: list[str], rows: dict[tuple, tables.Row], keep: Callable[..., tables.Row]) -> None:
  """All rows of a job that are not there yet; `keep` gets each."""
  with tempfile.TemporaryDirectory() as folder:
    client = Client(name, pathlib.Path(folder))
    for rung in rungs:
      cell = {"job": name, "rung": rung}
      hand = rows.get((name, rung, "by hand")) or keep(cell | {"how": "by hand"} | client.by_hand(remat_policy=rung))
      if (name, rung, "yaml") in rows:
        continue
      cell["budget_mib"] = hand["temp_bytes"] / MIB
      row = keep(cell | {"how": "run"} | client.planned(hand["temp_bytes"]))
      if row["num_beyond_names"]:
        row = keep(cell | {"how": "names"} | client.planned(hand["temp_bytes"], "--names-only"))
      keep(cell | {"how": "yaml"} | client.by_hand(**_settings(row["yaml"])))


def broken(rows: dict[tuple, tables.Row]) -> list[str]:
  """What does not hold of the rows, in words: budgets, the plans' bytes, the losses by hand."""
  found = []
  for (job, rung, how), row in rows.items():
    hand, planned = rows[job, rung, "by hand"], rows.get((job, rung, "names")) or rows.get((job, rung, "run"))
    if row["temp_bytes"] > hand["temp_bytes"]:
      found.append(f"{job}, {rung}, {how}: over the bytes by hand")
    if how == "yaml" and row["temp_bytes"] != planned["planned_bytes"]:
      found.append(f"{job}, {rung}, {how}: {row['temp_bytes']:,} bytes, planned {planned['planned_bytes']:,}")
    if any(abs(a - b) > 1e-5 * abs(b) for a, b in zip(row["losses"], hand["losses"], strict=True)):
      found.append(f"{job}, {rung}, {how}: other losses than by hand")
  return found


def with_repeats(rows: Iterable[tables.Row]) -> list[tables.Row]:
  """The rows, with what each repeats beyond the step of its job without checkpoints, where plans tell of that."""
  rows = list(rows)
  plain = {row["job"]: row["plain_flops"] for row in rows if row.get("plain_flops")}
  return [
    row | {"repeated_gflop": (row["flops"] - plain[row["job"]]) / GIGA} if row["flops"] and row["job"] in plain else row
    for row in rows
  ]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=list(JOBS))
  parser.add_argument("--rungs", nargs="+", default=list(RUNGS), help="remat_policies of MaxText (full minimal)")
  parser.add_argument("--again", action="store_true", help="measure rows that are there, too")
  parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="the file to write")
  options = parser.parse_args()
  rows = {tuple(row[key] for key in KEY): row for row in tables.read(options.out)}
  if options.again:
    rows = {key: row for key, row in rows.items() if key[0] not in options.jobs or key[1] not in options.rungs}

  def keep(row: tables.Row) -> tables.Row:
    rows[tuple(row[key] for key in KEY)] = row
    tables.write(options.out, rows=with_repeats(rows.values()))
    return row

  for name in options.jobs:
    measure(name, options.rungs, rows, keep)
  tables.console().print(tables.table(with_repeats(rows.values()), COLUMNS, "MaxText, unpatched"))
  print(f"written to {options.out}")
  sys.exit("\n".join(broken(rows)) or None)


if __name__ == "__main__":
  main()
