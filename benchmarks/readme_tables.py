"""Writes what the README says of benchmarks from their results, between `<!-- name -->` and `<!-- /name -->`.

python benchmarks/readme_tables.py            # after a benchmark has written its results
python benchmarks/readme_tables.py --check    # exits with 1 where README and results differ
"""

import argparse
import json
import pathlib
import re
import sys
from typing import Any

import ladder_frontiers

ROOT = pathlib.Path(__file__).parent.parent
README, RESULTS = ROOT / "README.md", ROOT / "benchmarks" / "results"
MIB = 2**20


def read(name: str) -> dict[str, Any]:
  return json.loads((RESULTS / f"{name}.json").read_text())


def demo() -> str:
  """The runs of examples/train_gpt.py as a table."""
  rows = read("train_gpt")["runs"]
  num_steps = len(rows[0]["losses"])
  lines = [
    f"| budget | allowed | compiled temporaries | resident memory | step time | loss after {num_steps} steps |",
    "|---|---|---|---|---|---|",
  ]
  for row in rows:
    has_budget = row["budget_bytes"] is not None
    cells = (
      row["name"] if has_budget else "none",
      f"{row['budget_bytes'] / MIB:.1f} MiB" if has_budget else "",
      f"{row['temp_bytes'] / MIB:.1f} MiB",
      f"{row['resident_bytes'] / MIB:.0f} MiB",
      f"{row['step_time_ratio']:.2f}x",
      f"{row['losses'][-1]:.9f}",
    )
    lines.append(f"| {' | '.join(cells)} |")
  return "\n".join(lines)


def peers() -> str:
  """The rows of benchmarks/peers.py as a table: each model's first engine."""
  found = read("peers")["rows"]
  lines = [
    "| model, engine | temporaries | 50% | 25% | 12% | per-block `jax.checkpoint` | ours at its bytes |",
    "|---|---|---|---|---|---|---|",
  ]
  for model in dict.fromkeys(row["model"] for row in found):
    of_model = [row for row in found if row["model"] == model]
    engine = next(row["kind"] for row in of_model if row["kind"] in ("auto", "hlo"))
    ours = [row for row in of_model if row["kind"] == engine]
    cells = (
      f"{model}, `{engine}`",
      f"{of_model[0]['temp_mib']:.0f} MiB",
      *(_cost(row) if row["holds"] else f"least: {row['temp_mib']:.0f} MiB" for row in ours if not _rival(row)),
      _sized(next(row for row in of_model if row["kind"] == "hand")),
      _sized(next(row for row in ours if _rival(row) == "per-block")),
    )
    lines.append(f"| {' | '.join(cells)} |")
  return "\n".join(lines)


def peers_at_rungs() -> str:
  """The scanned model of benchmarks/peers.py at the bytes of rungs as a table: by hand and each of its engines."""
  found = [row for row in read("peers")["rows"] if row["model"] == "scanned Llama"]
  engines = dict.fromkeys(row["kind"] for row in found if _rival(row))
  lines = [
    f"| at the bytes of | by hand | {' | '.join(f'`{engine}`' for engine in engines)} |",
    f"|---|---|{'---|' * len(engines)}",
  ]
  by_hand = {row["variant"]: row for row in found if row["kind"] == "hand"}
  for rival in dict.fromkeys(filter(None, map(_rival, found))):
    hand = by_hand["jax.checkpoint per block" if rival == "per-block" else rival]
    ours = [next(row for row in found if row["kind"] == engine and _rival(row) == rival) for engine in engines]
    lines.append(f"| {rival} | {' | '.join(map(_sized, [hand, *ours]))} |")
  return "\n".join(lines)


def _cost(row: dict[str, Any]) -> str:
  return f"{row['time_ratio_of_min']:.2f}x, {row['recomputed_gflop']:+.0f}"


def _sized(row: dict[str, Any]) -> str:
  return f"{row['temp_mib']:.0f} MiB, {_cost(row)}"


def _rival(row: dict[str, Any]) -> str | None:
  """What is by hand, at whose bytes a row is ours."""
  at = re.fullmatch(r"coopjax \w+ at (\S+) bytes", row["variant"])
  return at[1] if at else None


def torch_peer() -> str:
  """The rows of benchmarks/torch_peer.py as a table."""
  found = read("torch_peer")
  lines = [
    f"| PyTorch {found['torch']}, the demo's GPT | kept for the backward pass | measured peak | step time | step |",
    "|---|---|---|---|---|",
  ]
  for row in found["rows"]:
    kept = (
      f"{row['temp_mib']:.0f} MiB, temporaries" if row["saved_mib"] is None else f"{row['saved_mib']:.0f} MiB saved"
    )
    lines.append(
      f"| {row['name']} | {kept} | {row['peak_mib']:.0f} MiB | {row['time_ratio']:.2f}x | {row['step_s']:.2f} s |"
    )
  return "\n".join(lines)


def training_run() -> str:
  """The runs of benchmarks/training_run.py as a table."""
  found = read("training_run")
  plain = found["rows"][0]
  lines = [
    f"| budget | allowed | compiled temporaries | processes | loss after {found['steps']:,} steps | other bits |",
    "|---|---|---|---|---|---|",
  ]
  for row in found["rows"]:
    allowed = f"{row['share'] * plain['temp_bytes'] / MIB:.1f} MiB" if row["share"] < 1 else ""
    cells = (
      row["name"] if allowed else "none",
      allowed,
      f"{row['temp_bytes'] / MIB:.1f} MiB",
      str(row["num_processes"]),
      f"{row.get('losses', plain['losses'])[-1]:.9f}",
      f"{row['num_other_bits']} steps",
    )
    lines.append(f"| {' | '.join(cells)} |")
  return "\n".join(lines)


def seeing() -> str:
  """The report's row of benchmarks/seeing.py as a sentence."""
  row = next(row for row in read("seeing")["rows"] if "report" in row["what"])
  return (
    f"The report of a program of {row['num_buffers']:,} steps ({row['size_mb']:.0f} MB) answers the first key after "
    f"{row['seconds']:.1f} s in Chromium (`python benchmarks/seeing.py`)."
  )


def hand_ladder() -> str:
  """The rows of benchmarks/ladder_frontiers.py as a table."""
  lines = [
    "| model | policies | FLOPs repeated at equal bytes | bytes at equal FLOPs |",
    "|---|---|---|---|",
  ]
  for rows in ladder_frontiers.chosen("auto"):
    row = ladder_frontiers.of_program(rows)
    name = row["program"].replace("_", " and ")
    lines.append(
      f"| {name} | {row['num_rungs']} | {row['flops']:.2f}, at most {row['worst_flops']:.2f} "
      f"| {row['bytes']:.2f}, at most {row['worst_bytes']:.2f} |"
    )
  return "\n".join(lines)


BLOCKS = {
  "train_gpt": demo,
  "hand_ladder": hand_ladder,
  "peers": peers,
  "peers_at_rungs": peers_at_rungs,
  "torch_peer": torch_peer,
  "training_run": training_run,
  "seeing": seeing,
}


def filled(text: str) -> str:
  """The README with all blocks written anew."""
  for name, block in BLOCKS.items():
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", re.DOTALL)
    text, count = pattern.subn(lambda match: match[1] + block() + match[2], text)
    if count != 1:
      sys.exit(f"{README.name} has {count} blocks {name}, expected one")
  return text


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
  parser.add_argument("--check", action="store_true", help="only compare")
  arguments = parser.parse_args()
  text = README.read_text()
  if arguments.check and filled(text) != text:
    sys.exit("README.md differs from benchmarks/results: python benchmarks/readme_tables.py")
  README.write_text(filled(text))


if __name__ == "__main__":
  main()
